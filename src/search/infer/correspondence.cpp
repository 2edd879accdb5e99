// SPDX-License-Identifier: Apache-2.0
#include "infer/correspondence.h"

namespace shardproof::infer {

Correspondence::Correspondence(const Problem& problem)
    : problem_(problem), kinds_(problem.plan.programs.size()) {
  for (const Program& program : problem.plan.programs)
    producers_.push_back(producersOf(program.graph));
}

const Correspondence::Kinds& Correspondence::kindsIn(ProgramId p) const {
  std::optional<Kinds>& kinds = kinds_[p.index()];
  if (kinds) return *kinds;
  kinds.emplace();
  const Program& program = problem_.plan.programs[p];
  const Graph& graph = program.graph;
  kinds->byTensor.resize(graph.tensors.size());
  for (const Node& node : graph.nodes) {
    const bool communicates = node.communication >= 0;
    for (const TensorId t : graph.out(node)) {
      if (!t.valid()) continue;
      const Tensor& tensor = graph.tensors[t];
      Kind kind{communicates ? OperatorId() : node.op,
                communicates ? program.communications[node.communication].comm : NameId(),
                producers_[p][t].result,
                tensor.shape,
                tensor.perMicrobatch,
                tensor.element};
      auto& all = kinds->all[kind];
      kinds->byTensor[t] = {std::move(kind), all.size()};
      all.push_back(t);
    }
  }
  return *kinds;
}

TensorId Correspondence::tensor(ProgramId p, TensorId t, ProgramId q) const {
  if (p == q) return t;
  const Graph &here = problem_.plan.programs[p].graph, &there = problem_.plan.programs[q].graph;
  const auto [n, result] = producers_[p][t];
  if (!n.valid()) return {};
  if (here.nodes.size() != there.nodes.size()) {
    const Kinds &ours = kindsIn(p), &theirs = kindsIn(q);
    const auto& [kind, k] = ours.byTensor[t];
    const auto own = ours.all.find(kind), other = theirs.all.find(kind);
    return other != theirs.all.end() && own->second.size() == other->second.size()
               ? other->second[k]
               : TensorId::none();
  }
  const Node &a = here.nodes[n], &b = there.nodes[n];
  if (a.op != b.op || a.outCount != b.outCount) return {};
  const TensorId other = there.out(b)[result];
  if (!other.valid()) return {};
  const Tensor &x = here.tensors[t], &y = there.tensors[other];
  return x.shape == y.shape && x.perMicrobatch == y.perMicrobatch && x.element == y.element
             ? other
             : TensorId::none();
}

}  // namespace shardproof::infer
