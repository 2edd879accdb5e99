// SPDX-License-Identifier: Apache-2.0
#include "shrink/kept_ranks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ops/registry.h"
#include "plan/symmetry_classes.h"
#include "util/index.h"

namespace shardproof {

namespace {

constexpr std::int32_t kLeastMicrobatches = 2;  // that stay

// Programs cover each rank once (the reader has checked it).
std::vector<ProgramId> programsOfRanks(const Plan& plan, const MeshView& mesh) {
  std::vector<ProgramId> result(static_cast<std::size_t>(mesh.ranks()));
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    std::vector<Rank> ranks{mesh.with(Rank(0), plan.programs[p].at)};
    for (std::int32_t axis = 0; axis < mesh.axes(); ++axis) {
      const auto& at = plan.programs[p].at;
      if (std::any_of(at.begin(), at.end(), [axis](const auto& c) { return c.first == axis; }))
        continue;
      const std::size_t n = ranks.size();
      for (std::int32_t c = 1; c < mesh.size(axis); ++c) {
        for (std::size_t i = 0; i < n; ++i) ranks.push_back(mesh.with(ranks[i], axis, c));
      }
    }
    for (const Rank r : ranks) result[r] = p;
  }
  return result;
}

bool alike(const CommunicationSpec& a, const CommunicationSpec& b) {
  return a.kind == b.kind && a.comm == b.comm && a.tag == b.tag && a.groupAxes == b.groupAxes &&
         a.groupAt == b.groupAt && a.peer == b.peer && a.reduction == b.reduction &&
         a.dim == b.dim && a.odim == b.odim && a.sizes == b.sizes && a.pairs == b.pairs;
}

// Of two microbatches, neither of which reads of another one. What they make for running sums may
// have other names.
bool alike(const Program& program, const Node& a, const Node& b) {
  const Graph& graph = program.graph;
  const auto aIn = graph.in(a), bIn = graph.in(b);
  const auto aOut = graph.out(a), bOut = graph.out(b);
  if (a.op != b.op || a.attributes != b.attributes || a.steps != b.steps || a.added != b.added ||
      (a.communication < 0) != (b.communication < 0))
    return false;
  const auto sameResult = [&](TensorId x, TensorId y) {
    if (x == y) return true;
    if (!x.valid() || !y.valid()) return false;
    const Tensor &p = graph.tensors[x], &q = graph.tensors[y];
    return !p.perMicrobatch && !q.perMicrobatch && p.shape == q.shape && p.element == q.element;
  };
  return std::equal(aIn.begin(), aIn.end(), bIn.begin(), bIn.end(),
                    [](const Operand& x, const Operand& y) { return x.tensor == y.tensor; }) &&
         std::equal(aOut.begin(), aOut.end(), bOut.begin(), bOut.end(), sameResult) &&
         (a.communication < 0 ||
          alike(program.communications[a.communication], program.communications[b.communication]));
}

// That nodes of one microbatch are those of any other, in one order.
bool sameNodes(const Program& program, const std::vector<std::vector<NodeId>>& nodesOf) {
  const auto& nodes = program.graph.nodes;
  return std::all_of(nodesOf.begin(), nodesOf.end(), [&](const std::vector<NodeId>& own) {
    return std::equal(own.begin(), own.end(), nodesOf[0].begin(), nodesOf[0].end(),
                      [&](NodeId a, NodeId b) { return alike(program, nodes[a], nodes[b]); });
  });
}

// That microbatches are named by running sums, of which all are summands once, and by nodes that
// are there for all of them.
bool treatsMicrobatchesAlike(const Problem& problem, const Program& program) {
  const Graph& graph = program.graph;
  const MicrobatchesRead reads(problem, graph);
  std::map<TensorId, std::vector<Microbatch>> read;
  std::vector<std::vector<NodeId>> nodesOf(static_cast<std::size_t>(problem.plan.microbatches));
  bool named = false;
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
    const Node& node = graph.nodes[n];
    const bool sum = isRunningSum(problem, graph, node);
    bool some = false, stays = false;
    for (const Operand& o : graph.in(node)) {
      const Microbatch of = o.present() ? reads.of(node, o) : Microbatch::none();
      const bool one = of.isOne() && (sum || of != node.microbatch);
      if (one) read[o.tensor].push_back(of);
      some = some || one;
      stays = stays || !one || of.number() < kLeastMicrobatches;
    }
    if (some && !(stays && sum)) return false;
    if (!node.microbatch.isOne() || (some && sum)) continue;
    nodesOf[at(node.microbatch.number())].push_back(n);
    named = true;
  }
  if (std::any_of(program.communications.begin(), program.communications.end(),
                  [](const CommunicationSpec& spec) { return spec.tag.has_value(); }))
    return false;
  // What is under way is told by nodes.
  if (named && !(program.asynchrony.empty() && sameNodes(program, nodesOf))) return false;
  // What nodes of each microbatch make under names of their own is read as one tensor's instances.
  std::map<TensorId, std::vector<Microbatch>> instances;
  std::map<TensorId, TensorId> first;  // of the first microbatch
  for (const std::vector<NodeId>& own : nodesOf)
    for (std::size_t i = 0; i < own.size(); ++i)
      for (std::size_t r = 0; r < graph.nodes[own[i]].outCount; ++r)
        first.emplace(graph.out(graph.nodes[own[i]])[r], graph.out(graph.nodes[nodesOf[0][i]])[r]);
  for (const auto& [tensor, of] : read) {
    const auto it = reads.madeFor(tensor).isOne() ? first.find(tensor) : first.end();
    std::vector<Microbatch>& all = instances[it == first.end() ? tensor : it->second];
    all.insert(all.end(), of.begin(), of.end());
  }
  return std::all_of(instances.begin(), instances.end(), [&](auto& of) {
    std::sort(of.second.begin(), of.second.end());
    std::vector<Microbatch> all;
    for (std::int32_t k = 0; k < problem.plan.microbatches; ++k) all.push_back(Microbatch::of(k));
    return of.second == all;
  });
}

}  // namespace

std::int32_t KeptRanks::newCoordinate(std::int32_t axis, std::int32_t coordinate) const {
  const auto& kept = of(axis);
  const auto it = std::lower_bound(kept.begin(), kept.end(), coordinate);
  return it == kept.end() || *it != coordinate ? -1 : static_cast<std::int32_t>(it - kept.begin());
}

bool KeptRanks::keeps(const Coordinates& at) const {
  return std::all_of(at.begin(), at.end(),
                     [this](const auto& c) { return newCoordinate(c.first, c.second) >= 0; });
}

KeptRanks keepRanks(const Problem& problem, const std::vector<std::int32_t>& perClass,
                    bool attributes) {
  const Plan& plan = problem.plan;
  const MeshView mesh(plan.mesh);
  KeptRanks kept;
  kept.programOfRank = programsOfRanks(plan, mesh);
  const SymmetryClasses symmetry(plan, mesh, kept.programOfRank, attributes, true);
  for (std::int32_t axis = 0; axis < mesh.axes(); ++axis) {
    std::vector<std::int32_t> stay;
    for (const auto& cls : symmetry.classes(axis)) {
      const auto most = std::min<std::size_t>(cls.size(), static_cast<std::size_t>(perClass[axis]));
      stay.insert(stay.end(), cls.begin(), cls.begin() + static_cast<std::ptrdiff_t>(most));
    }
    std::sort(stay.begin(), stay.end());
    kept.ofAxis.push_back(std::move(stay));
  }
  const std::int32_t few = microbatchesAreAlike(problem) ? perClass.back() : plan.microbatches;
  kept.microbatches.resize(static_cast<std::size_t>(std::min(few, plan.microbatches)));
  std::iota(kept.microbatches.begin(), kept.microbatches.end(), 0);
  return kept;
}

bool microbatchesAreAlike(const Problem& problem) {
  const Plan& plan = problem.plan;
  if (!std::all_of(plan.programs.begin(), plan.programs.end(),
                   [&](const Program& p) { return treatsMicrobatchesAlike(problem, p); }))
    return false;
  std::set<NameId> ofOne;  // names of what exists for one microbatch
  for (const Program& program : plan.programs) {
    const MicrobatchesRead reads(problem, program.graph);
    for (const TensorId t : firstIds<TensorId>(program.graph.tensors.size()))
      if (reads.madeFor(t).isOne()) ofOne.insert(program.graph.tensors[t].name);
  }
  return std::all_of(plan.lineage.begin(), plan.lineage.end(), [&](const LineageEntry& entry) {
    return std::all_of(entry.shards.begin(), entry.shards.end(), [&](const Shard& shard) {
      return std::none_of(shard.parts.begin(), shard.parts.end(), [&](const Part& part) {
        return part.microbatch.isOne() || ofOne.contains(part.local);
      });
    });
  });
}

bool isRunningSum(const Problem& problem, const Graph& graph, const Node& node) {
  static const OperatorId kAdd = ops::Registry::instance().find("add");
  return node.op == kAdd && node.communication < 0 && !node.microbatch.isEach() &&
         node.inCount == 2 && problem.attributes.at(node.attributes).empty() &&
         graph.in(node)[0].present() && graph.in(node)[1].present() && graph.out(node)[0].valid() &&
         !graph.tensors[graph.out(node)[0]].perMicrobatch;
}

MicrobatchesRead::MicrobatchesRead(const Problem& problem, const Graph& graph)
    : graph_(graph), madeFor_(graph.tensors.size()) {
  for (const Node& node : graph.nodes) {
    if (!node.microbatch.isOne() || isRunningSum(problem, graph, node)) continue;
    for (const TensorId t : graph.out(node))
      if (t.valid() && !graph.tensors[t].perMicrobatch) madeFor_[t.index()] = node.microbatch;
  }
}

Microbatch MicrobatchesRead::of(const Node& node, const Operand& operand) const {
  if (!graph_.tensors[operand.tensor].perMicrobatch) return madeFor(operand.tensor);
  return operand.microbatch.orElse(node.microbatch.isOne() ? node.microbatch : Microbatch::none());
}

bool goes(const Problem& problem, const KeptRanks& kept, const Graph& graph, const Node& node) {
  return node.microbatch.isOne() &&
         kept.newCoordinate(kMicrobatchAxis, node.microbatch.number()) < 0 &&
         !isRunningSum(problem, graph, node);
}

}  // namespace shardproof
