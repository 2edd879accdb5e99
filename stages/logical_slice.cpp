// SPDX-License-Identifier: Apache-2.0
#include "stages/logical_slice.h"

#include <algorithm>
#include <map>

#include "ops/registry.h"

namespace shardproof {

namespace {

// Of what hides a tensor all is computed where no more tensors than these lead to it; else only
// what least leads to, and more where that does not reach the tensor.
constexpr std::size_t kManyAbove = 200;

}  // namespace

LogicalSlice::LogicalSlice(const CutContext& cut, const LocalSlice& local, Stage& stage)
    : cut_(cut), local_(local), stage_(stage) {
  chooseCut();
  build();
}

std::span<const Operand> LogicalSlice::relevantOperands(const Node& node) const {
  const auto operands = cut_.model.in(node);
  return ops::Registry::instance().at(node.op).traits.rearranges && !operands.empty()
             ? operands.first(1)
             : operands;
}

std::unordered_set<TensorId> LogicalSlice::reach(const std::vector<TensorId>& from,
                                                 const std::unordered_set<TensorId>& stop,
                                                 bool passStart) const {
  std::unordered_set<TensorId> seen(from.begin(), from.end());
  std::vector<TensorId> stack(from.begin(), from.end());
  while (!stack.empty()) {
    const TensorId t = stack.back();
    stack.pop_back();
    if (stop.contains(t) && !(passStart && std::find(from.begin(), from.end(), t) != from.end()))
      continue;
    const NodeId n = cut_.planIndex.modelProducer(t);
    if (n < 0) continue;
    for (const Operand& operand : relevantOperands(cut_.model.nodes[n])) {
      if (operand.present() && seen.insert(operand.tensor).second) stack.push_back(operand.tensor);
    }
  }
  return seen;
}

void LogicalSlice::chooseCut() {
  stops_.clear();
  if (cut_.options.proved) return;  // the model begins at its inputs
  std::vector<TensorId> claimed;
  for (const EntryId e : cut_.entries) claimed.push_back(cut_.plan.lineage[e].tensor);
  std::map<LocalId, std::vector<TensorId>> perInstance;  // logical tensors it is bound to
  for (const BoundEquation& equation : local_.assumptions()) {
    const TensorId tensor = sourceOf(cut_.plan.lineage[equation.entry].tensor);
    stops_.insert(tensor);
    for (const auto& [instance, weight] : equation.instances.parts) {
      if (const LocalId id = local_.find(instance)) perInstance[id].push_back(tensor);
    }
  }
  // A claim about a tensor that is itself assumed (two lineages of one gradient) needs no logical
  // operator.
  for (;;) {
    reached_ = reach(claimed, stops_, false);
    // A local tensor none of whose logical tensors the claim reaches: something between hides it.
    // Compute the hiding ones instead.
    std::unordered_set<TensorId> hidden;
    for (const auto& [id, tensors] : perInstance) {
      if (std::none_of(tensors.begin(), tensors.end(),
                       [&](TensorId t) { return reached_.contains(t); }))
        hidden.insert(tensors.begin(), tensors.end());
    }
    std::vector<std::pair<std::size_t, TensorId>> opened;  // with what leads to them
    std::size_t above = 0;
    if (!hidden.empty()) {
      for (const TensorId t : reached_) {
        if (!stops_.contains(t) || cut_.planIndex.modelProducer(t) < 0) continue;
        const auto all = reach({t}, {}, true);
        if (std::none_of(hidden.begin(), hidden.end(),
                         [&](TensorId h) { return h != t && all.contains(h); }))
          continue;
        opened.emplace_back(all.size(), t);
        above += all.size();
      }
    }
    if (opened.empty()) break;
    // A parameter is above its own update, and above all gradients: not all of them need be opened
    // to reach it.
    if (above > kManyAbove) opened = {*std::min_element(opened.begin(), opened.end())};
    for (const auto& [size, t] : opened) stops_.erase(t);
  }
}

TensorId LogicalSlice::sourceOf(TensorId t) const {
  for (;;) {
    const NodeId n = cut_.planIndex.modelProducer(t);
    if (n < 0) return t;
    const Node& node = cut_.model.nodes[n];
    const auto operands = cut_.model.in(node);
    if (operands.empty() || !operands[0].present() ||
        !ops::Registry::instance().at(node.op).traits.rearranges)
      return t;
    t = operands[0].tensor;
  }
}

void LogicalSlice::build() {
  std::vector<TensorId> claimed;
  for (const EntryId e : cut_.entries) claimed.push_back(cut_.plan.lineage[e].tensor);
  std::vector<NodeId> nodes;
  std::unordered_set<NodeId> nodeSeen;
  // Canonical order: operands first, starting at the claim.
  struct Frame {
    TensorId tensor;
    std::size_t next = 0;
  };
  std::unordered_set<TensorId> seen;
  const auto walk = [&](TensorId start) {
    std::vector<Frame> stack;
    if (seen.insert(start).second) stack.push_back({start});
    while (!stack.empty()) {
      Frame& frame = stack.back();
      const NodeId n =
          stops_.contains(frame.tensor) ? NodeId() : cut_.planIndex.modelProducer(frame.tensor);
      if (n >= 0) {
        const auto operands = relevantOperands(cut_.model.nodes[n]);
        if (frame.next < operands.size()) {
          const Operand& operand = operands[frame.next++];
          if (operand.present() && seen.insert(operand.tensor).second)
            stack.push_back({operand.tensor});
          continue;
        }
        if (nodeSeen.insert(n).second) nodes.push_back(n);
      }
      tensor(frame.tensor, n >= 0);
      stack.pop_back();
    }
  };
  for (const TensorId t : claimed) walk(t);
  for (const BoundEquation& equation : local_.assumptions()) {
    const TensorId t = cut_.plan.lineage[equation.entry].tensor;
    if (cut_.options.proved || seen.contains(sourceOf(t)))
      walk(t);  // what the lineage names, computed from its source
  }
  for (const NodeId n : nodes) {
    const Node& node = cut_.model.nodes[n];
    StageNode made;
    made.logical = true;
    made.op = node.op;
    made.attributes = cut_.planIndex.problem().attributes.share(node.attributes);
    made.node = n;
    const std::size_t relevant = relevantOperands(node).size();
    for (const Operand& operand : cut_.model.in(node)) {
      const bool shapeOnly = made.in.size() >= relevant;
      made.in.push_back(!operand.present() ? StageTensorId()
                        : shapeOnly        ? shapeOnlyTensor(operand.tensor)
                                           : tensor(operand.tensor, false));
    }
    for (const TensorId t : cut_.model.out(node))
      made.out.push_back(t >= 0 && seen.contains(t) && !stops_.contains(t) ? tensor(t, true)
                                                                           : StageTensorId());
    stage_.nodes.push_back(std::move(made));
  }
}

TensorFacts LogicalSlice::factsOf(TensorId t) const {
  if (cut_.options.facts) return cut_.options.facts->at(t);
  return cut_.model.tensors[t].kind == TensorKind::kProduced ? TensorFacts::unknown()
                                                             : TensorFacts{};
}

StageTensorId LogicalSlice::shapeOnlyTensor(TensorId t) {
  return addLogical(shapeOnlyIds_, t, Origin::kVariable);
}

StageTensorId LogicalSlice::addLogical(std::unordered_map<TensorId, StageTensorId>& ids, TensorId t,
                                       Origin origin) {
  const auto [it, inserted] = ids.emplace(t, StageTensorId(stage_.tensors.size()));
  if (inserted) {
    const Tensor& tensor = cut_.model.tensors[t];
    StageTensor made;
    made.info = {tensor.shape, tensor.element};
    made.logical = true;
    if (origin == Origin::kVariable) made.facts = factsOf(t);
    made.tensor = t;
    made.origin = origin;
    describe(made, tensor, cut_.model);
    stage_.tensors.push_back(std::move(made));
  }
  return it->second;
}

StageTensorId LogicalSlice::tensor(TensorId t, bool computed) {
  const bool constant = cut_.model.tensors[t].kind == TensorKind::kConstant;
  return addLogical(logicalIds_, t,
                    constant   ? Origin::kConstant
                    : computed ? Origin::kComputed
                               : Origin::kVariable);
}

}  // namespace shardproof
