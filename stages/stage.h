// SPDX-License-Identifier: Apache-2.0
// A stage: one lineage entry's claim, the slices of model and plan that it depends on, and the
// lineage assumed where the slices stop. It stands alone: whatever a verdict on it depends on is in
// here, and nothing that looks at a stage needs the problem that it was cut from. Ids of names,
// programs, nodes, entries and ranks are there for messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/operator.h"
#include "shardproof/graph.h"
#include "stages/axis_symmetry.h"
#include "terms/facts.h"

namespace shardproof {

using StageTensorId = Id<struct StageTensorTag>;  // index into Stage::tensors

enum class Origin : std::uint8_t {
  kComputed,  // by a stage node
  kConstant,
  kVariable,  // free: a model input, or a logical tensor at which the logical slice stops
  kBoundary,  // a local tensor that assumed lineage defines
  kUnbound,   // a local input that no lineage mentions: anything
};

struct StageTensor {
  ops::TensorInfo info;
  Origin origin = Origin::kComputed;
  bool logical = false;
  TensorFacts facts;                              // of a logical variable; of anything else nothing
  TensorKind kind = TensorKind::kProduced;        // what the model or the plan says it is
  std::shared_ptr<const ConstantValue> constant;  // of a constant
  // Of an input of the model; for evaluation in numbers only, so the canonical form leaves it out.
  std::shared_ptr<const KnownInput> known;
  NameId name;        // for messages
  TensorId tensor;    // of the model or of the program
  ProgramId program;  // local tensors: which instance (messages only)
  Rank rank;
  Microbatch microbatch;
};

struct StageNode {
  bool logical = false;
  OperatorId op;  // invalid for communication
  std::shared_ptr<const Attributes> attributes;
  std::vector<StageTensorId> in, out;  // none: absent
  // Communication: one member's result from all members' operands, in group order. What members
  // have in common is made once: of a reduce_scatter the sum is an all_reduce, of which each takes
  // its `part`; of what a root scatters as well.
  Communication communication = Communication::kNone;
  Reduction reduction = Reduction::kSum;
  std::int32_t dim = 0, odim = 0;
  std::int32_t member = 0;           // this rank's place in the group
  std::vector<std::int64_t> weight;  // how many members each operand stands for
  ProgramId program;                 // where it stands in the plan (or model), for messages
  NodeId node;
  Rank rank;
  Microbatch microbatch;
};

// logical[box] == sum over parts of weight * local.
struct Equation {
  // How the box moves along a collapsed axis, and the coordinate that this equation is for.
  struct Step {
    std::int32_t collapsed = 0;  // index into Stage::collapsedAxes
    std::int32_t coordinate = 0;
    Shape offset;  // per dimension and coordinate, not all zero
  };
  StageTensorId logical;
  std::vector<std::pair<std::int64_t, std::int64_t>> box;
  std::vector<std::pair<StageTensorId, std::int64_t>> parts;  // with their weights
  std::vector<Step> step;
  EntryId entry;
  std::int32_t shard = -1;
  bool output = false;  // the entry is about an output of the model
};

struct Stage {
  EntryId entry;  // the claim's lineage entry
  std::vector<StageTensor> tensors;
  std::vector<StageNode> nodes;  // logical ones first, each side in an order of execution
  std::vector<Equation> claims, assumptions;
  std::vector<CollapsedAxis> collapsedAxes;
  std::vector<EntryId> usedEntries;  // lineage entries that `assumptions` comes from, sorted,
                                     // without those of role input
  const Names* names =
      nullptr;  // of the tensors, for messages; it outlives the stage, or is not there
  std::size_t logicalNodes() const;
  std::size_t parallelNodes() const { return nodes.size() - logicalNodes(); }
};

// The stage tensor of whose elements `tensor` has the numbers (KnownInput::Kind::kNumberOf), or
// none.
StageTensorId knownSource(const Stage& stage, const StageTensor& tensor);

// The stage as bytes with names replaced by position. Two stages with equal forms have the same
// proof, whatever problems they are of: operators, attributes, full shapes, wiring, constants and
// lineage are all in it. stages/canonical_reader.h makes a stage of it again.
std::string canonicalForm(const Stage& stage);

// The name of tensor `t` of the stage; without Stage::names a made-up one, "t7" for tensor 7.
std::string tensorName(const Stage& stage, StageTensorId t);

}  // namespace shardproof
