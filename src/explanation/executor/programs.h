// SPDX-License-Identifier: Apache-2.0
// The plan as its ranks run it: which program each rank has, where its tensors are kept, in which
// order its nodes may run, and which communications meet. Made once for all trials; everything that
// keeps a plan from running and shows without numbers is found here, as docs/format.md states it.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::executor {

// The plan cannot run; the message says where and why.
class CannotRun : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ranks are row-major indices of coordinates, the slowest axis first.
class Mesh {
 public:
  explicit Mesh(const Plan& plan);
  std::int64_t ranks() const { return ranks_; }
  std::size_t axes() const { return sizes_.size(); }
  std::int64_t size(std::size_t axis) const { return sizes_[axis]; }
  std::int64_t coordinate(Rank rank, std::size_t axis) const {
    return rank / strides_[axis] % sizes_[axis];
  }
  Rank moved(Rank rank, std::size_t axis, std::int64_t to) const {
    return Rank(rank + (to - coordinate(rank, axis)) * strides_[axis]);
  }
  Rank moved(Rank rank, const Coordinates& to) const;
  bool at(Rank rank, const Coordinates& where) const;

 private:
  std::vector<std::int64_t> sizes_, strides_;
  std::int64_t ranks_ = 1;
};

// One running of a node. `microbatch` is -1 for a node that runs once.
struct Instance {
  NodeId node;
  std::int32_t microbatch = -1;
};

// What all ranks of a program share. A tensor has one slot, or one for each microbatch.
struct ProgramLayout {
  std::vector<std::int32_t> firstSlot;  // by tensor
  std::vector<TensorId> tensorOfSlot;
  std::unordered_map<NameId, TensorId> tensorByName;
  std::vector<Instance> instances;       // in the order in which a rank prefers them
  std::vector<std::int32_t> waitsFor;    // for each instance: how many others must be done before
  std::vector<std::uint32_t> firstNext;  // for each instance: where its part of `next` begins
  std::vector<std::int32_t> next;        // instances that wait for it
  std::vector<std::int32_t> reads;       // by slot: how often it is read
  std::vector<char> produced;            // by slot: whether a node does
  std::int32_t slots() const { return static_cast<std::int32_t>(tensorOfSlot.size()); }
};

struct Member {
  Rank rank;
  std::int32_t instance = -1;
};

// One communication: who takes part, in group order (a sender before its receiver).
struct Rendezvous {
  std::vector<Member> members;
};

class Programs {
 public:
  // Throws CannotRun: double assignment, tensors that are read and never produced or only later,
  // communications without partner or with partners that mean something else.
  explicit Programs(const Problem& problem);

  const Problem& problem() const { return problem_; }
  const Mesh& mesh() const { return mesh_; }
  ProgramId programOf(Rank rank) const { return programOf_[rank]; }
  const Program& program(Rank rank) const { return problem_.plan.programs[programOf(rank)]; }
  const ProgramLayout& layout(Rank rank) const { return layouts_[programOf(rank)]; }
  const ProgramLayout& layoutOf(ProgramId program) const { return layouts_[program]; }
  const Node& node(Rank rank, std::int32_t instance) const;
  const CommunicationSpec* communication(Rank rank,
                                         std::int32_t instance) const;  // nullptr: an operator
  // All slots of all ranks, numbered through.
  std::int64_t slot(Rank rank, std::int32_t slot) const { return firstSlotOfRank_[rank] + slot; }
  std::int64_t slots() const { return firstSlotOfRank_.back(); }
  std::int32_t slotOf(const ProgramLayout& layout, const Graph& graph, TensorId tensor,
                      std::int32_t microbatch) const {
    const auto t = static_cast<std::size_t>(tensor);
    return layout.firstSlot[t] + (graph.tensors[t].perMicrobatch ? microbatch : 0);
  }
  // Slots of an instance's operand and result; -1: absent.
  std::int32_t operandSlot(Rank rank, std::int32_t instance, std::size_t operand) const;
  std::int32_t resultSlot(Rank rank, std::int32_t instance, std::size_t result) const;

  const std::vector<Rendezvous>& rendezvous() const { return rendezvous_; }
  std::int32_t rendezvousOf(Rank rank, std::int32_t instance) const {
    return rendezvousOf_[firstInstance_[rank] + instance];
  }

  // Of ranks whose programs have handles: each collective and the next one of the same process
  // group (the same ranks), which comes after it; ascending.
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
  const std::map<Rank, Pairs>& groupOrder() const { return groupOrder_; }

  // "/programs/0/nodes/3 (linear) on rank 2 (dp=1 tp=0), microbatch 1"
  std::string place(Rank rank, std::int32_t instance) const;
  std::string rankText(Rank rank) const;

 private:
  void layOut(ProgramId program);
  void checkReads(ProgramId program, const std::vector<std::int32_t>& producers,
                  const std::vector<std::vector<std::int32_t>>& instancesOf) const;
  static void orderAround(const Program& program,
                          const std::vector<std::vector<std::int32_t>>& instancesOf,
                          const std::map<NameId, std::int32_t>& begun,
                          const std::vector<char>& begins,
                          std::vector<std::pair<std::int32_t, std::int32_t>>& edges);
  void meet();
  std::vector<Rank> groupOf(Rank rank, const CommunicationSpec& spec) const;
  void checkRendezvous(const Rendezvous& rendezvous) const;

  const Problem& problem_;
  Mesh mesh_;
  std::vector<ProgramId> programOf_;
  std::vector<ProgramLayout> layouts_;
  std::vector<std::int64_t> firstSlotOfRank_, firstInstance_;
  std::vector<Rendezvous> rendezvous_;
  std::vector<std::int32_t> rendezvousOf_;
  std::map<Rank, Pairs> groupOrder_;
};

const char* nameOf(Communication kind);

}  // namespace shardproof::executor
