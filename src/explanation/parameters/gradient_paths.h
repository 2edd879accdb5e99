// SPDX-License-Identifier: Apache-2.0
// What happens to a gradient between backward, which makes it, and the end of the step: which
// collectives reduce it, on the way through operators that only move or scale its elements.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

// By axis of the mesh: a node of the program that reduces over it.
using Reductions = std::map<std::int32_t, NodeId>;

// Of one program of a plan, which outlives it.
class GradientPaths {
 public:
  GradientPaths(const Plan& plan, const Program& program);

  struct Path {
    TensorId made;          // as backward makes it
    Reductions reductions;  // from there on
  };
  Path pathTo(TensorId gradient) const;

  // Tells backward from forward. made: gradients as backward makes them. results: those of the step
  // that are no gradients. Of these the loss belongs to forward, the norm of the gradients does
  // not.
  void findBackward(std::span<const TensorId> made, std::span<const TensorId> results);
  // The nearest reductions that a tensor is computed of and the results of forward are not.
  const Reductions& inBackward(TensorId tensor) const { return inBackward_[tensor]; }

 private:
  std::vector<std::int32_t> reducedAxes(const Node& node) const;
  // The operand that a node moves, scales or reduces; none: it computes something else.
  TensorId passedOn(const Node& node) const;

  const Plan& plan_;
  const Program& program_;
  std::vector<NodeId> producer_;  // by tensor
  std::vector<Reductions> inBackward_;
};

}  // namespace shardproof
