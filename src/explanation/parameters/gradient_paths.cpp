// SPDX-License-Identifier: Apache-2.0
#include "parameters/gradient_paths.h"

#include <algorithm>
#include <set>

#include "executor/value.h"
#include "ops/collectives.h"
#include "ops/registry.h"

namespace shardproof {

namespace {

bool reduces(const CommunicationSpec& spec) { return ops::collectiveOf(spec.kind).reduces; }

// Every tensor that these are computed of, with them: operands first.
std::vector<TensorId> ancestors(const Graph& graph, const std::vector<NodeId>& producer,
                                std::span<const TensorId> of) {
  std::vector<TensorId> order;
  std::vector<char> seen(graph.tensors.size(), 0);
  std::vector<std::pair<TensorId, bool>> open;
  for (const TensorId t : of) open.emplace_back(t, false);
  while (!open.empty()) {
    const auto [tensor, done] = open.back();
    open.pop_back();
    if (done) {
      order.push_back(tensor);
      continue;
    }
    if (seen[tensor] != 0) continue;
    seen[tensor] = 1;
    open.emplace_back(tensor, true);
    if (!producer[tensor].valid()) continue;
    for (const Operand& o : graph.in(graph.nodes[producer[tensor]]))
      if (o.present() && seen[o.tensor] == 0) open.emplace_back(o.tensor, false);
  }
  return order;
}

}  // namespace

GradientPaths::GradientPaths(const Plan& plan, const Program& program)
    : plan_(plan),
      program_(program),
      producer_(program.graph.tensors.size()),
      inBackward_(program.graph.tensors.size()) {
  for (const NodeId n : firstIds<NodeId>(program.graph.nodes.size()))
    for (const TensorId t : program.graph.out(program.graph.nodes[n]))
      if (t.valid()) producer_[t] = n;
}

std::vector<std::int32_t> GradientPaths::reducedAxes(const Node& node) const {
  if (node.communication < 0) return {};
  const CommunicationSpec& spec = program_.communications[node.communication];
  if (!reduces(spec)) return {};
  std::set<std::int32_t> axes(spec.groupAxes.begin(), spec.groupAxes.end());
  for (std::size_t member = 1; member < spec.groupAt.size(); ++member)
    for (const auto& [axis, coordinate] : spec.groupAt[member])
      for (const auto& [other, first] : spec.groupAt.front())
        if (axis == other && coordinate != first) axes.insert(axis);
  std::erase_if(axes,
                [&](std::int32_t a) { return plan_.mesh[static_cast<std::size_t>(a)].size < 2; });
  return {axes.begin(), axes.end()};
}

void GradientPaths::findBackward(std::span<const TensorId> made,
                                 std::span<const TensorId> results) {
  const Graph& graph = program_.graph;
  std::vector<char> isMade(graph.tensors.size(), 0), isForward(graph.tensors.size(), 0);
  for (const TensorId t : made) isMade[t] = 1;
  for (const TensorId result : results) {
    const std::vector<TensorId> before = ancestors(graph, producer_, {&result, 1});
    if (std::none_of(before.begin(), before.end(), [&](TensorId t) { return isMade[t] != 0; }))
      for (const TensorId t : before) isForward[t] = 1;
  }
  std::vector<TensorId> all;
  for (const TensorId t : firstIds<TensorId>(graph.tensors.size())) all.push_back(t);
  for (const TensorId t : ancestors(graph, producer_, all)) {
    if (isForward[t] != 0 || !producer_[t].valid()) continue;
    const Node& node = graph.nodes[producer_[t]];
    for (const Operand& o : graph.in(node))
      if (o.present())
        inBackward_[t].insert(inBackward_[o.tensor].begin(), inBackward_[o.tensor].end());
    for (const std::int32_t axis : reducedAxes(node)) inBackward_[t][axis] = producer_[t];
  }
}

TensorId GradientPaths::passedOn(const Node& node) const {
  const Graph& graph = program_.graph;
  std::vector<TensorId> in;
  for (const Operand& o : graph.in(node))
    if (o.present()) in.push_back(o.tensor);
  if (in.empty()) return TensorId::none();
  if (node.communication >= 0) {
    const CommunicationSpec& spec = program_.communications[node.communication];
    return reduces(spec) || spec.kind == Communication::kAllGather ? in.front() : TensorId::none();
  }
  const auto& op = ops::Registry::instance().at(node.op);
  if (op.traits.moves && in.size() == 1) return in.front();
  if (op.name != "mul" && op.name != "div" && op.name != "neg") return TensorId::none();
  const Shape& shape = graph.tensors[graph.out(node).front()].shape;
  if (in.size() == 1) return in.front();
  const auto isNumber = [&](TensorId t) {
    return executor::positionsOf(graph.tensors[t].shape) == 1 && graph.tensors[t].shape != shape;
  };
  if (isNumber(in[1])) return in[0];
  return op.name == "mul" && isNumber(in[0]) ? in[1] : TensorId::none();
}

GradientPaths::Path GradientPaths::pathTo(TensorId gradient) const {
  Path path{gradient, {}};
  while (producer_[path.made].valid()) {
    const Node& node = program_.graph.nodes[producer_[path.made]];
    const TensorId operand = passedOn(node);
    if (!operand.valid()) break;
    for (const std::int32_t axis : reducedAxes(node)) path.reductions[axis] = producer_[path.made];
    path.made = operand;
  }
  return path;
}

}  // namespace shardproof
