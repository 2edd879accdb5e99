// SPDX-License-Identifier: Apache-2.0
// Memory of a program while its communication is under way (docs/format.md, "Asynchronous
// communication"): what a rank reads before it has arrived, and what it writes while it is still
// sent or received. Values do not depend on it, so it is checked before any proof.
#pragma once

#include <vector>

#include "shardproof/report.h"

namespace shardproof {

class PlanIndex;

void checkAsync(const PlanIndex& planIndex, std::vector<Defect>& defects);

}  // namespace shardproof
