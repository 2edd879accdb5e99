// SPDX-License-Identifier: Apache-2.0
#include "infer/extrapolate.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "util/index.h"

namespace shardproof::infer {

namespace {

// Of each local tensor that nodes produce: what it is like. Programs may call different tensors by
// one name.
using Kind = std::pair<OperatorId, Shape>;
using Kinds = std::map<std::pair<NameId, Coordinates>, Kind>;

Kinds kindsOf(const Problem& problem) {
  Kinds kinds;
  for (const Program& program : problem.plan.programs) {
    const Graph& graph = program.graph;
    for (const Node& node : graph.nodes)
      for (const TensorId t : graph.out(node))
        if (t.valid())
          kinds[{graph.tensors[t].name, program.at}] = {node.op, graph.tensors[t].shape};
  }
  return kinds;
}

// Those that no lineage names.
Locals unnamedLocals(const Problem& problem) {
  std::set<NameId> named;
  for (const LineageEntry& entry : problem.plan.lineage)
    for (const Shard& shard : entry.shards)
      for (const Part& part : shard.parts) named.insert(part.local);
  for (const PlacedPart& placed : problem.plan.placed) named.insert(placed.local);
  Locals locals;
  for (const Program& program : problem.plan.programs)
    for (const Tensor& tensor : program.graph.tensors)
      if (tensor.kind == TensorKind::kProduced && !tensor.added && !named.contains(tensor.name))
        locals.emplace(tensor.name, program.at);
  return locals;
}

// Where the shard would be at coordinate `c`, of those at two others; an empty box: nowhere.
decltype(Shard::box) boxAt(const Problem& problem, TensorId tensor, const Shard& a,
                           std::int64_t atA, const Shard& b, std::int64_t atB, std::int64_t c) {
  decltype(Shard::box) box = a.box;
  for (std::size_t d = 0; d < box.size(); ++d) {
    const std::int64_t apart = b.box[d].first - a.box[d].first,
                       extent = box[d].second - box[d].first;
    if (apart % (atB - atA) != 0) return {};
    box[d].first += apart / (atB - atA) * (c - atA);
    box[d].second = box[d].first + extent;
    std::int64_t nearest = box[d].first, furthest = box[d].second;
    for (const auto& [axis, offsets] : a.step) {
      const std::int64_t n =
          axis == kMicrobatchAxis ? problem.plan.microbatches : problem.plan.mesh[at(axis)].size;
      (offsets[d] < 0 ? nearest : furthest) += (n - 1) * offsets[d];
    }
    if (nearest < 0 || furthest > problem.model.graph.tensors[tensor].shape[d]) return {};
  }
  return box;
}

}  // namespace

void extrapolate(const Problem& problem,
                 const std::vector<std::vector<std::int32_t>>& coordinatesOf,
                 const Locals& uninformative, std::vector<LineageEntry>& entries) {
  const auto& mesh = problem.plan.mesh;
  const bool allExecuted = coordinatesOf.empty();
  if (allExecuted && uninformative.empty()) return;
  Locals left = unnamedLocals(problem);
  const Kinds kinds = kindsOf(problem);
  for (const LineageEntry& entry : entries)
    for (const Part& part : entry.shards[0].parts) left.erase({part.local, part.at});
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const auto executed = [&](std::int32_t c) {
      return allExecuted ||
             std::binary_search(coordinatesOf[axis].begin(), coordinatesOf[axis].end(), c);
    };
    if (uninformative.empty() && coordinatesOf[axis].size() == at(mesh[axis].size)) continue;
    // By what else the entry says: the coordinates, and its place.
    using Rest =
        std::tuple<TensorId, NameId, Coordinates, std::vector<std::int32_t>, decltype(Shard::step)>;
    std::map<Rest, std::vector<std::pair<std::int32_t, std::size_t>>> alike;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      const Shard& shard = entries[e].shards[0];
      if (shard.parts.size() != 1) continue;
      Coordinates others = shard.parts[0].at;
      const auto own = std::find_if(others.begin(), others.end(),
                                    [&](const auto& c) { return at(c.first) == axis; });
      if (own == others.end()) continue;
      const std::int32_t c = own->second;
      others.erase(own);
      alike[{entries[e].tensor, shard.parts[0].local, others, shard.sum, shard.step}].emplace_back(
          c, e);
    }
    for (const auto& [rest, found] : alike) {
      if (found.size() < 2 || found[0].first == found[1].first) continue;
      const auto [atA, a] = found[0];
      const auto [atB, b] = found[1];
      for (std::int32_t c = 0; c < mesh[axis].size; ++c) {
        if (uninformative.empty() && executed(c)) continue;
        Shard shard = entries[a].shards[0];
        for (auto& [of, coordinate] : shard.parts[0].at)
          if (at(of) == axis) coordinate = c;
        if (executed(c) && !uninformative.contains({shard.parts[0].local, shard.parts[0].at}))
          continue;
        const auto kind = kinds.find({shard.parts[0].local, shard.parts[0].at});
        if (kind == kinds.end() ||
            kind->second != kinds.at({shard.parts[0].local, entries[a].shards[0].parts[0].at}) ||
            left.erase(kind->first) == 0)
          continue;
        shard.box = boxAt(problem, entries[a].tensor, shard, atA, entries[b].shards[0], atB, c);
        if (shard.box.size() != entries[a].shards[0].box.size()) continue;
        entries.push_back({entries[a].tensor, Role::kCutPoint, {std::move(shard)}});
      }
    }
  }
}

}  // namespace shardproof::infer
