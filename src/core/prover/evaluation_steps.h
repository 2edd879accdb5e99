// SPDX-License-Identifier: Apache-2.0
// In which steps one side of a stage is executed.
#pragma once

#include <cstddef>
#include <vector>

#include "shape_reduction/reduction.h"
#include "stages/stage.h"

namespace shardproof {

// What is done at once: a node, or a tree of additions whose inner results nothing else reads, at
// its root. Addition is associative and commutative, and a sum of many terms has the value, in
// each algebra, of the additions one by one.
struct EvaluationStep {
  std::size_t node;
  std::vector<StageTensorId> reads;
  bool tree = false;
};

// Of the model's nodes or the plan's, in their order. `inEquation`, by tensor: an assumption or a
// claim speaks of it. `trees`: additions are taken together; otherwise each node is a step.
std::vector<EvaluationStep> evaluationSteps(const Stage& stage, const ReducedStage& reduced,
                                            const std::vector<char>& inEquation, bool logical,
                                            bool trees);

}  // namespace shardproof
