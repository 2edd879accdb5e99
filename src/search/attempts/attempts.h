// SPDX-License-Identifier: Apache-2.0
// The attempts at a verdict, in order, until one settles it. What decides is the same in all of
// them: lemmas are proved before they are used, and a difference is one of the plan's outputs. So
// an attempt with wrong lemmas costs time, and no verdict.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shardproof/budget.h"
#include "shardproof/infer.h"
#include "shardproof/verify.h"

namespace shardproof {

// As verify(), with the lemmas that were found where `infer` asks for them: `problem` has them
// then. The report lists the attempts, and what was found.
Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& options,
                       Infer infer);
Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& options, Infer infer,
                       const Budget& budget);

// Whether some input holds integers of which not all values are looked at: an index.
bool hasIndices(const Problem& problem);

// A first look at what is read from HLO programs, whose own cut points are often enough: little
// time for each stage, and in all. `read` reads the programs again, with all values of indices or
// without. Nothing where it does not settle the verdict; `problem` is then what it was, and
// `tried` has these attempts. `seconds`: what reading took.
std::optional<Report> lookFirst(
    std::unique_ptr<Problem>& problem,
    const std::function<std::unique_ptr<Problem>(bool completeIndices)>& read, double seconds,
    const VerifyOptions& options, const Budget& budget, std::vector<AttemptReport>& tried);

}  // namespace shardproof
