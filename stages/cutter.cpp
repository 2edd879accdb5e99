// SPDX-License-Identifier: Apache-2.0
// A stage is put together of its two sides: local_slice.h, which finds what the claims depend on in
// the plan and which lineage may be assumed there, and logical_slice.h, which goes as far in the
// model. Cutting begins with as few coordinates as axis_symmetry.h allows, and begins again with
// more where it meets something that tells them apart.
#include "stages/cutter.h"

#include <set>
#include <unordered_map>

#include "ops/collectives.h"
#include "stages/axis_symmetry.h"
#include "stages/cut_context.h"
#include "stages/local_slice.h"
#include "stages/logical_slice.h"

namespace shardproof {

namespace {

class Cutter {
 public:
  explicit Cutter(const CutContext& cut) : cut_(cut), local_(cut), logical_(cut, local_, stage_) {}

  Stage run() {
    stage_.entry = cut_.entries.front();
    stage_.names = &cut_.planIndex.problem().names;
    stage_.collapsedAxes = cut_.symmetry.collapsedAxes();
    buildLocal();
    return std::move(stage_);
  }

 private:
  StageTensorId localTensor(const LocalInstance& instance, Origin origin) {
    const auto [it, inserted] = stageIds_.emplace(instance, StageTensorId(stage_.tensors.size()));
    if (inserted) {
      const Graph& graph = cut_.plan.programs[instance.program].graph;
      const TensorId shapedLike = local_.shapedLike(instance);
      const Tensor& tensor = graph.tensors[shapedLike];
      StageTensor made;
      made.info = {local_.shapeOf(instance), tensor.element};
      made.origin = origin;
      made.tensor = shapedLike;
      made.program = instance.program;
      made.rank = instance.rank;
      made.microbatch = instance.microbatch;
      describe(made, tensor, graph);
      stage_.tensors.push_back(std::move(made));
    }
    return it->second;
  }

  Equation equation(const BoundEquation& from) {
    Equation made;
    made.logical = logical_.tensor(cut_.plan.lineage[from.entry].tensor, false);
    made.box = from.instances.box;
    made.step = from.instances.step;
    made.entry = from.entry;
    made.shard = from.shard;
    made.output = cut_.plan.lineage[from.entry].role == Role::kOutput;
    for (const auto& [instance, weight] : from.instances.parts) {
      const LocalId id = local_.find(instance);
      made.parts.emplace_back(localTensor(instance, id ? local_.origin(id) : Origin::kBoundary),
                              weight);
    }
    return made;
  }

  void buildLocal() {
    for (const LocalNodeId n : local_.order()) {
      const LocalSlice::LocalNode& from = local_.node(n);
      const Node& node = cut_.plan.programs[from.program].graph.nodes[from.node];
      StageNode made;
      made.op = node.op;
      made.attributes = cut_.planIndex.problem().attributes.share(
          cut_.planIndex.attributesOf(from.program, node, from.rank));
      made.program = from.program;
      made.node = from.node;
      made.rank = from.rank;
      made.microbatch = from.microbatch;
      made.weight = from.weight;
      made.member = from.member;
      if (from.op.valid()) {
        made.op = from.op;
        made.attributes = from.attributes;
      } else if (node.communication >= 0) {
        const CommunicationSpec& spec =
            cut_.plan.programs[from.program].communications[node.communication];
        made.communication = from.communication;
        if (ops::collectiveOf(made.communication).reduces) made.reduction = spec.reduction;
        made.dim = spec.dim;
        made.odim = spec.odim;
      }
      const auto id = [&](LocalId local) {
        return !local ? StageTensorId() : localTensor(local_.instance(local), local_.origin(local));
      };
      for (const LocalId t : from.in) made.in.push_back(id(t));
      // A result that is a boundary elsewhere in the stage is not computed here.
      for (const LocalId t : from.out)
        made.out.push_back(t && local_.origin(t) == Origin::kComputed ? id(t) : StageTensorId());
      stage_.nodes.push_back(std::move(made));
    }
    for (const BoundEquation& claim : local_.claims()) stage_.claims.push_back(equation(claim));
    std::set<EntryId> used;
    for (const BoundEquation& bound : local_.assumptions()) {
      stage_.assumptions.push_back(equation(bound));
      if (!isGiven(cut_.plan.lineage[bound.entry].role)) used.insert(bound.entry);
    }
    stage_.usedEntries.assign(used.begin(), used.end());
  }

  const CutContext& cut_;
  Stage stage_;
  LocalSlice local_;
  LogicalSlice logical_;
  std::unordered_map<LocalInstance, StageTensorId, InstanceHash> stageIds_;
};

}  // namespace

Stage cutStages(const PlanIndex& planIndex, const std::vector<EntryId>& entries,
                const CutOptions& options) {
  return withRefinement<Stage>(AxisSymmetry(planIndex, options.collapse, options.apart),
                               [&](const AxisSymmetry& symmetry) {
                                 const CutContext cut(planIndex, entries, options, symmetry);
                                 return Cutter(cut).run();
                               });
}

Stage cutStage(const PlanIndex& planIndex, EntryId entry, const CutOptions& options) {
  return cutStages(planIndex, {entry}, options);
}

}  // namespace shardproof
