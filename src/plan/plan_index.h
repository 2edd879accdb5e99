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

#include "plan/mesh.h"
#include "plan/spmd_graph.h"
#include "plan/symmetry_classes.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

// One instance of a local tensor. No microbatch for tensors that exist once per rank.
struct LocalInstance {
  std::int32_t program = -1;
  std::int32_t tensor = -1;
  std::int32_t rank = -1;
  Microbatch microbatch;
  bool shapeOnly =
      false;  // an operand of which only the shape matters: it has no value, nor a producer
  friend bool operator==(const LocalInstance&, const LocalInstance&) = default;
};

struct Producer {
  std::int32_t node = -1;
  std::int32_t result = -1;  // position among the node's results
  Microbatch microbatch;     // the node's `mb`
};

// Where a lineage part mentions a local tensor.
struct Mention {
  std::int32_t entry, shard, part;
};

class PlanIndex {
 public:
  explicit PlanIndex(const Problem& problem);

  const Problem& problem() const { return problem_; }
  const MeshView& mesh() const { return mesh_; }
  // Defects found before any solving; when there are any the plan is not equivalent and the rest of
  // this object must not be used.
  const std::vector<Defect>& defects() const { return defects_; }

  std::int32_t programOf(std::int64_t rank) const {
    return programOfRank_[static_cast<std::size_t>(rank)];
  }
  std::int32_t findTensor(std::int32_t program, NameId name) const;  // -1: none
  std::span<const Producer> producers(std::int32_t program, std::int32_t tensor) const;
  // The producer of one instance; node -1 when there is none.
  Producer producerOf(const LocalInstance& instance) const;
  // The ranks of the group of a communication node on `rank`, in group order. With a collapsed axis
  // the caller enumerates itself.
  std::vector<std::int64_t> groupOf(const CommunicationSpec& spec, std::int64_t rank) const;
  bool inGroup(const CommunicationSpec& spec, std::int64_t rank, std::int64_t other) const;
  // The nodes of `member` that meet the communication `spec` which `requester` issues for
  // `microbatch` (none: once). A plan without defects has exactly one.
  std::vector<std::int32_t> partners(std::int64_t member, const CommunicationSpec& spec,
                                     Microbatch microbatch, std::int64_t requester) const;
  // Ranks all of whose coordinates are representatives of their symmetry classes: what holds for
  // them holds for all.
  std::vector<std::int64_t> representativeRanks() const;
  // Calls f(rank) for every rank that agrees with `at`.
  template <class F>
  void forEachRank(const Coordinates& at, F&& f) const {
    std::vector<std::int64_t> ranks{mesh_.with(0, at)};
    for (std::int32_t axis = 0; axis < mesh_.axes(); ++axis) {
      bool fixed = false;
      for (const auto& c : at) fixed = fixed || c.first == axis;
      if (fixed) continue;
      std::vector<std::int64_t> wider;
      for (const std::int64_t r : ranks) {
        for (std::int32_t c = 0; c < mesh_.size(axis); ++c) wider.push_back(mesh_.with(r, axis, c));
      }
      ranks = std::move(wider);
    }
    for (const std::int64_t r : ranks) f(r);
  }
  bool representative(std::int64_t rank) const;
  const SymmetryClasses& symmetry() const { return symmetry_; }
  // True when the program's `at`, or a group, root or peer of its communications, names a
  // coordinate of this axis. A program that does not runs on all coordinates of the axis or on
  // none, and does the same on all of them.
  bool names(std::int32_t program, std::int32_t axis) const {
    return programNames_[static_cast<std::size_t>(program) *
                             static_cast<std::size_t>(mesh_.axes()) +
                         static_cast<std::size_t>(axis)] != 0;
  }
  // The model's node that produces a logical tensor; -1: none does.
  std::int32_t modelProducer(std::int32_t tensor) const {
    return modelProducers_[static_cast<std::size_t>(tensor)];
  }
  std::span<const Mention> mentions(std::int32_t program, std::int32_t tensor) const;
  std::int64_t entryKey(std::int32_t entry) const {
    return entryKeys_[static_cast<std::size_t>(entry)];
  }
  // Operator instances the plan stands for (program nodes times free ranks and microbatches).
  double operatorInstances() const;
  const SpmdGraph& spmdGraph() const { return spmdGraph_; }
  NodePlace place(std::int32_t program, std::int32_t node) const;
  std::string opName(std::int32_t program, const Node& node) const;

 private:
  struct ProgramIndex {
    std::unordered_map<NameId, std::int32_t> tensorByName;
    std::vector<std::uint32_t> producerOffsets;
    std::vector<Producer> producers;
    std::unordered_map<NameId, std::vector<std::int32_t>> nodesByComm;
    std::vector<std::uint32_t> mentionOffsets;
    std::vector<Mention> mentions;
    std::uint32_t firstVertex = 0;
  };
  void indexModel();
  void indexPrograms();
  void findNamedAxes();
  void indexMentions();
  std::vector<std::pair<std::int32_t, std::int32_t>> orderSpmdNodes();

  const Problem& problem_;
  MeshView mesh_;
  std::vector<std::int32_t> modelProducers_;
  std::vector<std::int32_t> programOfRank_;
  std::vector<ProgramIndex> programs_;
  SymmetryClasses symmetry_;
  std::vector<char> programNames_;  // programs x axes
  std::vector<Defect> defects_;
  SpmdGraph spmdGraph_;
  std::vector<std::int64_t> vertexOrder_;  // topological position of each vertex's strong component
  std::vector<std::int64_t> entryKeys_;
};

}  // namespace shardproof
