// SPDX-License-Identifier: Apache-2.0
// Causes of plans that cannot run: communications that do not meet, shapes, cyclic waits.
#pragma once

#include <string>

#include "diagnose/causes.h"

namespace shardproof::diagnose {

Causes structuralCauses(const Problem& problem, const Report& report, const std::string& modelFile);

}  // namespace shardproof::diagnose
