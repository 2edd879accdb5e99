// SPDX-License-Identifier: Apache-2.0
// Under which conditions a proof is about the program that was recorded: the ledger of the report.
#pragma once

#include <string>

#include "shardproof/graph.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

// What is compared, what is not, and what was assumed, with what the user accepts of it, and the
// approved differences.
void describeCapture(Report& report, const Problem& problem, const VerifyOptions& options);

// Whether a pattern of VerifyOptions::allowUncompared is about this.
bool allows(const std::string& pattern, const std::string& what);

// Sets the verdict of a plan whose outputs are all proved. After describeCapture().
void concludeProof(Report& report);

}  // namespace shardproof
