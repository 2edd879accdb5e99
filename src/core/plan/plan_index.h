// SPDX-License-Identifier: Apache-2.0
// The indexed plan: who produces what, who meets whom, and in which order lineage may be relied on.
// Nothing is expanded: program nodes stand for their SPMD instances (free mesh axes x
// microbatches).
//
// Enters: a Problem as the reader made it. Leaves: look-ups for the slicer, the defects that show
// before any solving, and for each lineage entry a key such that a stage may assume only entries
// with a smaller key.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/attribute_steps.h"
#include "plan/mesh.h"
#include "plan/spmd_graph.h"
#include "plan/symmetry_classes.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

// One instance of a local tensor. No microbatch for tensors that exist once per rank.
struct LocalInstance {
  ProgramId program;
  TensorId tensor;
  Rank rank;
  Microbatch microbatch;
  bool shapeOnly =
      false;  // an operand of which only the shape matters: it has no value, nor a producer
  friend bool operator==(const LocalInstance&, const LocalInstance&) = default;
};

struct Producer {
  NodeId node;
  std::int32_t result = -1;  // position among the node's results
  Microbatch microbatch;     // the node's `mb`
};

// Where a lineage part mentions a local tensor.
struct Mention {
  EntryId entry;
  std::int32_t shard, part;
};

class PlanIndex {
 public:
  explicit PlanIndex(const Problem& problem);

  const Problem& problem() const { return problem_; }
  const MeshView& mesh() const { return mesh_; }
  // Defects found before any solving; when there are any the plan is not equivalent and the rest of
  // this object must not be used.
  const std::vector<Defect>& defects() const { return defects_; }

  ProgramId programOf(Rank rank) const { return programOfRank_[rank]; }
  TensorId findTensor(ProgramId program, NameId name) const;  // -1: none
  std::span<const Producer> producers(ProgramId program, TensorId tensor) const;
  // The producer of one instance; node -1 when there is none.
  Producer producerOf(const LocalInstance& instance) const;
  // The ranks of the group of a communication node on `rank`, in group order. With a collapsed axis
  // the caller enumerates itself.
  std::vector<Rank> groupOf(const CommunicationSpec& spec, Rank rank) const;
  bool inGroup(const CommunicationSpec& spec, Rank rank, Rank other) const;
  // The nodes of `member` that meet the communication `spec` which `requester` issues for
  // `microbatch` (none: once). A plan without defects has exactly one.
  std::vector<NodeId> partners(Rank member, const CommunicationSpec& spec, Microbatch microbatch,
                               Rank requester) const;
  // Where `member` has no collective of this kind: the first one of another kind that has its name
  // and both ranks. NodeId::none(): there is none.
  NodeId inPlaceOf(const CommunicationSpec& spec, Rank member, Rank requester) const;
  // Ranks all of whose coordinates are representatives of their symmetry classes: what holds for
  // them holds for all.
  std::vector<Rank> representativeRanks() const;
  // Calls f(rank) for every rank that runs the program.
  template <class F>
  void forEachRank(ProgramId program, F&& f) const {
    const Program& p = problem_.plan.programs[program];
    std::vector<Rank> ranks{mesh_.with(Rank(0), p.at)};
    for (std::int32_t axis = 0; axis < mesh_.axes(); ++axis) {
      bool fixed = false;
      for (const auto& c : p.at) fixed = fixed || c.first == axis;
      if (fixed) continue;
      const ir::Range range = ir::rangeOf(problem_.plan, p.within, axis);
      std::vector<Rank> wider;
      for (const Rank r : ranks) {
        for (std::int32_t c = range.low; c < range.high; ++c)
          wider.push_back(mesh_.with(r, axis, c));
      }
      ranks = std::move(wider);
    }
    for (const Rank r : ranks) f(r);
  }
  bool representative(Rank rank) const;
  const SymmetryClasses& symmetry() const { return symmetry_; }
  // True when the program's `at` (as a stretch, too), or a group, root or peer of its
  // communications, names a coordinate of this axis. A program that does not runs on all
  // coordinates of the axis or on none, and does the same on all of them but for attributes that
  // move (AttributeSteps).
  bool names(ProgramId program, std::int32_t axis) const {
    return programNames_[static_cast<std::size_t>(program) *
                             static_cast<std::size_t>(mesh_.axes()) +
                         axis] != 0;
  }
  // The model's node that produces a logical tensor; -1: none does.
  NodeId modelProducer(TensorId tensor) const { return modelProducers_[tensor]; }
  std::span<const Mention> mentions(ProgramId program, TensorId tensor) const;
  std::int64_t entryKey(EntryId entry) const { return entryKeys_[entry]; }
  // Operator instances the plan stands for (program nodes times free ranks and microbatches).
  double operatorInstances() const;
  const SpmdGraph& spmdGraph() const { return spmdGraph_; }
  // The attributes of a node's instance.
  AttributesId attributesOf(ProgramId program, const Node& node, Rank rank) const {
    const Plan& plan = problem_.plan;
    return ir::attributesAt(plan, plan.programs[program], node,
                            [&](std::int32_t axis) { return mesh_.coordinate(rank, axis); });
  }
  NodePlace place(ProgramId program, NodeId node) const;
  std::string opName(ProgramId program, const Node& node) const;

 private:
  struct ProgramIndex {
    std::unordered_map<NameId, TensorId> tensorByName;
    std::vector<std::uint32_t> producerOffsets;
    std::vector<Producer> producers;
    std::unordered_map<NameId, std::vector<NodeId>> nodesByComm;
    std::vector<std::uint32_t> mentionOffsets;
    std::vector<Mention> mentions;
    std::uint32_t firstVertex = 0;
  };
  void indexModel();
  void indexPrograms();
  void findNamedAxes();
  void indexMentions();
  std::vector<std::pair<ProgramId, NodeId>> orderSpmdNodes();

  const Problem& problem_;
  MeshView mesh_;
  std::vector<NodeId> modelProducers_;
  std::vector<ProgramId> programOfRank_;
  std::vector<ProgramIndex> programs_;
  SymmetryClasses symmetry_;
  std::vector<char> programNames_;  // programs x axes
  std::vector<Defect> defects_;
  SpmdGraph spmdGraph_;
  std::vector<std::int64_t> vertexOrder_;  // topological position of each vertex's strong component
  std::vector<std::int64_t> entryKeys_;
};

}  // namespace shardproof
