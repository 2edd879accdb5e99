// SPDX-License-Identifier: Apache-2.0
// What a report lists of a recorded program: what is compared, what is not, and what was assumed.
#pragma once

#include "shardproof/graph.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

// Fills in the ledger of the report, with what the user accepts of it, and the approved
// differences. `report.outputTensors` is set.
void describeCapture(Report& report, const Problem& problem, const VerifyOptions& options);

}  // namespace shardproof
