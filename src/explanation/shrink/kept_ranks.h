// SPDX-License-Identifier: Apache-2.0
// Which ranks and microbatches a smaller plan keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/mesh.h"
#include "shardproof/graph.h"

namespace shardproof {

struct KeptRanks {
  std::vector<std::vector<std::int32_t>>
      ofAxis;                              // for each axis the coordinates that stay, ascending
  std::vector<std::int32_t> microbatches;  // those that stay, ascending
  std::vector<ProgramId> programOfRank;    // of the full mesh

  const std::vector<std::int32_t>& of(std::int32_t axis) const {
    return axis == kMicrobatchAxis ? microbatches : ofAxis[axis];
  }
  // The place of a coordinate among those that stay; -1: it goes.
  std::int32_t newCoordinate(std::int32_t axis, std::int32_t coordinate) const;
  // Whether a program's ranks, or some of them, stay.
  bool keeps(const Coordinates& at) const;
};

// Whether all microbatches do the same: nodes that name one are there for each of them, in one
// order and alike, though results may have names of their own; sums over all of them may be written
// as running sums.
bool microbatchesAreAlike(const Problem& problem);
// A node that adds two tensors up in one that exists once per rank: where one is the summand of a
// microbatch that goes, the other one passes.
bool isRunningSum(const Problem& problem, const Graph& graph, const Node& node);
// Of which microbatches operands of a graph are.
class MicrobatchesRead {
 public:
  MicrobatchesRead(const Problem& problem, const Graph& graph);
  // Of which one the node reads an instance, or what a node of that microbatch alone has made under
  // a name of its own. None: of its own, if it runs for each, or the tensor exists once.
  Microbatch of(const Node& node, const Operand& operand) const;
  // One: of no running sum the result, made by a node of that microbatch, once.
  Microbatch madeFor(TensorId tensor) const { return madeFor_[tensor.index()]; }

 private:
  const Graph& graph_;
  std::vector<Microbatch> madeFor_;  // by tensor
};
// Whether a node, where microbatches are alike, is that of a microbatch that goes.
bool goes(const Problem& problem, const KeptRanks& kept, const Graph& graph, const Node& node);

// Of each class of coordinates that the plan does not tell apart (src/core/plan/symmetry_classes.h)
// the first `perClass`, of all others every one: a defect may be there and nowhere else.
// `perClass[axis]`, and last of the microbatches: at least 2; what is not less than the class keeps
// it whole.
// `attributes`: SymmetryClasses.
KeptRanks keepRanks(const Problem& problem, const std::vector<std::int32_t>& perClass,
                    bool attributes);

}  // namespace shardproof
