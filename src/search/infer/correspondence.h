// SPDX-License-Identifier: Apache-2.0
// Which tensor of one program is produced by the node that corresponds to a node of another
// program.
//
// Programs of ranks at different coordinates mostly have the same nodes in the same order. Where
// one has further nodes (its shards are shorter), the k-th result of a kind corresponds to the k-th
// result of that kind in the other program, if both have equally many.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "infer/producers.h"
#include "shardproof/graph.h"

namespace shardproof::infer {

class Correspondence {
 public:
  explicit Correspondence(const Problem& problem);

  const Producer& producer(ProgramId p, TensorId t) const { return producers_[p][t]; }
  // The tensor of program `q` for tensor `t` of program `p`; none where there is no such node.
  TensorId tensor(ProgramId p, TensorId t, ProgramId q) const;

 private:
  // Operator (or communication), which result, shape, per microbatch, element.
  using Kind = std::tuple<OperatorId, NameId, std::size_t, Shape, bool, ElementKind>;
  struct Kinds {
    std::map<Kind, std::vector<TensorId>> all;           // in the order of their nodes
    std::vector<std::pair<Kind, std::size_t>> byTensor;  // its kind, and its position there
  };
  const Kinds& kindsIn(ProgramId p) const;

  const Problem& problem_;
  std::vector<std::vector<Producer>> producers_;     // by program and tensor
  mutable std::vector<std::optional<Kinds>> kinds_;  // by program, once needed
};

}  // namespace shardproof::infer
