// SPDX-License-Identifier: Apache-2.0
// Which nodes of a plan are one line of the training script that the plan comes from, and which
// tensors stand at the same place.
//
// Ranks of one pipeline stage run the same operations for the same microbatches in the same order,
// so their programs correspond node by node, by place. Within a program a node corresponds to those
// that do the same for other microbatches. Where programs differ (one has further nodes, as its
// shards are shorter), only tensors correspond: the k-th result of a kind to the k-th result of
// that kind in the other program, if both have equally many. That is a guess, for who checks it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

struct NodeRef {
  ProgramId program;
  NodeId node;
  auto operator<=>(const NodeRef&) const = default;
};

class Correspondence {
 public:
  // A program as far as it is compared. Numbers are the caller's, equal in all programs for what is
  // the same.
  struct Outline {
    struct Node {
      std::int32_t operation = -1;  // with the microbatch, the key of a node
      Microbatch microbatch;
      std::int32_t line = -1;  // equal for nodes that differ in their microbatch only; -1: no other
      std::vector<TensorId> in, out;  // none: absent
    };
    std::vector<Node> nodes;
    std::vector<std::int32_t> kinds;  // of each tensor: what results that correspond have in common
  };

  explicit Correspondence(std::vector<Outline> programs);
  // The operation is the operator, or the kind of communication; the kind of a tensor its shape,
  // its kind of element, and whether it exists per microbatch. Nodes of one line read and make the
  // same tensors.
  explicit Correspondence(const Problem& problem);

  // Programs with equal keys at all places, ascending, this one included.
  const std::vector<ProgramId>& programsLike(ProgramId program) const {
    return members_[stageOf_[program]];
  }
  bool alike(ProgramId a, ProgramId b) const { return stageOf_[a] == stageOf_[b]; }
  // The node, then those of its line for other microbatches.
  std::vector<NodeRef> microbatchesOf(NodeRef node) const;
  // These, then those in the other programs alike, each with its microbatches.
  std::vector<NodeRef> line(NodeRef node) const;
  // The first node that makes the tensor; none: it is given.
  NodeId producer(ProgramId program, TensorId tensor) const;
  // The tensor of `to` that the corresponding node makes, or reads where it is given; of programs
  // alike only. None: there is none.
  TensorId tensor(ProgramId from, TensorId tensor, ProgramId to) const;
  // The result of `to` for one of `from`, of equal kind: see above.
  TensorId result(ProgramId from, TensorId tensor, ProgramId to) const;

 private:
  // Where a tensor is first made, or else first read.
  struct Place {
    NodeId node;
    std::size_t index = 0;
    bool made = false;
  };
  // Operation, which result, kind of the tensor.
  using Kind = std::tuple<std::int32_t, std::size_t, std::int32_t>;
  using Results = std::map<Kind, std::vector<TensorId>>;  // in the order of their nodes
  void groupPrograms();
  void groupMicrobatches();
  void findPlaces();
  Kind kindOf(ProgramId program, NodeId node, std::size_t result) const;
  const Results& resultsOf(ProgramId program) const;

  std::vector<Outline> programs_;
  std::vector<std::size_t> stageOf_;             // by program: an index into `members_`
  std::vector<std::vector<ProgramId>> members_;  // programs alike
  std::vector<std::vector<Place>> places_;       // by program and tensor
  std::vector<std::map<std::int32_t, std::vector<NodeId>>> lines_;  // by program and line
  mutable std::vector<std::optional<Results>> results_;             // by program, once needed
};

}  // namespace shardproof
