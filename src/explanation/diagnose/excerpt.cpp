// SPDX-License-Identifier: Apache-2.0
#include "diagnose/excerpt.h"

#include <map>
#include <set>
#include <utility>

#include "diagnose/slice.h"
#include "ir/local_parts.h"
#include "shardproof/error.h"

namespace shardproof::diagnose {

namespace {

// What of the model computes `wanted` from the tensors `given`, which become its inputs; where
// lineage gives that tensor itself (its partial sums, say) it is the only one.
struct ModelPart {
  Model model;
  std::map<TensorId, TensorId> tensors;  // the whole model's -> the part's
  std::vector<NodeId> nodes;
};

ModelPart modelPart(const Model& whole, TensorId wanted, const std::set<TensorId>& given) {
  const Graph& from = whole.graph;
  std::map<TensorId, NodeId> producer;
  for (const NodeId n : firstIds<NodeId>(from.nodes.size()))
    for (const TensorId t : from.out(from.nodes[n]))
      if (t.valid()) producer.emplace(t, n);
  std::set<NodeId> nodes;
  std::set<TensorId> needed;
  std::vector<TensorId> todo{wanted};
  while (!todo.empty()) {
    const TensorId t = todo.back();
    todo.pop_back();
    if (!needed.insert(t).second || given.contains(t)) continue;
    const auto made = producer.find(t);
    if (made == producer.end() || !nodes.insert(made->second).second) continue;
    for (const Operand& o : from.in(from.nodes[made->second]))
      if (o.present()) todo.push_back(o.tensor);
  }
  // Also what ranks read and the model does not: that may be the mistake.
  needed.insert(given.begin(), given.end());
  std::set<NameId> names;
  for (const TensorId t : needed) names.insert(from.tensors[t].name);
  ModelPart part;
  part.model.file = whole.file;
  part.model.name = whole.name;
  Graph& to = part.model.graph;
  to.constants = from.constants;
  for (const TensorId t : needed) {
    part.tensors.emplace(t, TensorId(to.tensors.size()));
    Tensor& made = to.tensors.emplace_back(from.tensors[t]);
    if (!names.contains(made.gradientOf)) made.gradientOf = NameId();
    if (given.contains(t) && made.kind == TensorKind::kProduced) made.kind = TensorKind::kInput;
  }
  for (const NodeId n : nodes) {
    Node node = from.nodes[n];
    const auto in = from.in(node);
    const auto out = from.out(node);
    node.firstIn = static_cast<std::uint32_t>(to.operands.size());
    for (Operand o : in) {
      if (o.present()) o.tensor = part.tensors.at(o.tensor);
      to.operands.push_back(o);
    }
    node.firstOut = static_cast<std::uint32_t>(to.results.size());
    for (const TensorId t : out) {
      const bool computed = t.valid() && needed.contains(t) && !given.contains(t);
      to.results.push_back(computed ? part.tensors.at(t) : TensorId());
    }
    part.nodes.push_back(n);
    to.nodes.push_back(node);
  }
  part.model.outputs = {part.tensors.at(wanted)};
  return part;
}

}  // namespace

Excerpt excerptOf(const Problem& problem, EntryId entry) {
  const Image whole(problem);
  Slice slice = SliceCutter(whole).cut(problem, entry, kMostSliceNodes, true);
  Problem& made = *slice.problem;
  const auto drawn = [](const Graph& graph) { return !graph.drawnMasks.empty(); };
  for (const Program& program : made.plan.programs)
    if (drawn(program.graph)) throw Unsupported("the stage has masks of dropout");
  Excerpt excerpt;
  std::set<TensorId> given;
  const TensorId wanted = problem.plan.lineage[entry].tensor;
  for (std::size_t e = 1; e < made.plan.lineage.size(); ++e)
    given.insert(made.plan.lineage[EntryId(e)].tensor);
  ModelPart model = modelPart(made.model, wanted, given);
  for (const DrawnMask& mask : made.model.graph.drawnMasks)
    for (const NodeId n : model.nodes)
      if (n == mask.node) throw Unsupported("the stage has masks of dropout");
  made.model = std::move(model.model);
  excerpt.modelNodeOf = std::move(model.nodes);
  for (std::size_t e = 0; e < made.plan.lineage.size(); ++e) {
    LineageEntry& own = made.plan.lineage[EntryId(e)];
    own.tensor = model.tensors.at(own.tensor);
    if (e == 0) own.role = Role::kOutput;
    excerpt.entryOf.push_back(slice.entryOf[e]);
  }
  ir::makePartsOwn(made);  // it gets a file of its own
  excerpt.nodeOf = std::move(slice.nodeOf);
  excerpt.problem = std::move(slice.problem);
  return excerpt;
}

}  // namespace shardproof::diagnose
