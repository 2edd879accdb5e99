// SPDX-License-Identifier: Apache-2.0
// Turns a failed stage into a message that leads to the place in the plan.
#pragma once

#include <string>
#include <vector>

#include "ops/registry.h"
#include "plan/plan_index.h"
#include "refute/stage_outcome.h"
#include "shardproof/report.h"
#include "stages/stage.h"

namespace shardproof {

Defect describeFailure(const PlanIndex& planIndex, const Stage& stage, const StageOutcome& outcome);
// A counterexample to `from` as one to `to`, which is equal but for its names.
Counterexample renamed(const Counterexample& example, const Stage& from, const Stage& to);
// What a claim says: "y[4:8, 0:8] == y on rank 0 (dp=0 tp=0 microbatch 1)", and of a sum over axes
// "loss[] == sum over dp, mb of loss.part on pp=1 tp=0".
std::string claimText(const PlanIndex& planIndex, const Stage& stage, const Equation& claim);
std::string numberText(double value);
// Leaves out defects of guesses, inferred or in the file, where there are others: what fails may be
// the guess. The diagnosis begins at them, so that this comes after it.
void leaveOutGuesses(const Problem& problem, Report& report);
std::vector<std::string> outputNames(const Problem& problem);  // of the model's outputs

}  // namespace shardproof
