// SPDX-License-Identifier: Apache-2.0
#include "plan/symmetry_classes.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace shardproof {

namespace {

bool same(const Tensor& a, const Tensor& b) {
  return std::tie(a.name, a.shape, a.kind, a.element, a.elementDeclared, a.perMicrobatch,
                  a.constant) == std::tie(b.name, b.shape, b.kind, b.element, b.elementDeclared,
                                          b.perMicrobatch, b.constant);
}
bool sameButAttributes(const Node& a, const Node& b) {
  return std::tie(a.op, a.firstIn, a.inCount, a.firstOut, a.outCount, a.microbatch, a.communication,
                  a.steps) == std::tie(b.op, b.firstIn, b.inCount, b.firstOut, b.outCount,
                                       b.microbatch, b.communication, b.steps);
}
bool same(const std::shared_ptr<const ConstantValue>& a,
          const std::shared_ptr<const ConstantValue>& b) {
  return a == b || *a == *b;
}
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return same(x, y); });
}
// Where a node is in the exporter's source (`loc`) is not compared: it changes no value.
bool sameContent(const Program& a, const Program& b, bool attributes) {
  const auto sameNode = [&](const Node& x, const Node& y) {
    return sameButAttributes(x, y) && (!attributes || x.attributes == y.attributes);
  };
  return a.issueOrder == b.issueOrder && a.graph.results == b.graph.results &&
         std::equal(a.graph.nodes.begin(), a.graph.nodes.end(), b.graph.nodes.begin(),
                    b.graph.nodes.end(), sameNode) &&
         a.graph.operands == b.graph.operands && same(a.graph.tensors, b.graph.tensors) &&
         same(a.graph.constants, b.graph.constants) && a.communications == b.communications &&
         a.steps == b.steps && a.asynchrony == b.asynchrony;
}

}  // namespace

std::vector<ProgramId> firstOfSameContent(const std::vector<Program>& programs, bool attributes) {
  std::vector<ProgramId> first(programs.size());
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::vector<std::int32_t>>
      distinct;  // only programs of equal sizes are compared
  for (const ProgramId p : firstIds<ProgramId>(programs.size())) {
    const Graph& graph = programs[p].graph;
    auto& candidates = distinct[{graph.nodes.size(), graph.tensors.size(), graph.operands.size()}];
    const auto it = std::find_if(candidates.begin(), candidates.end(), [&](std::int32_t q) {
      return sameContent(programs[q], programs[p], attributes);
    });
    first[p] = ProgramId(it == candidates.end() ? p : *it);
    if (it == candidates.end()) candidates.push_back(first[p]);
  }
  return first;
}

SymmetryClasses::SymmetryClasses(const Plan& plan, const MeshView& mesh,
                                 const std::vector<ProgramId>& programOfRank, bool attributes,
                                 bool pieces) {
  const auto axes = static_cast<std::size_t>(mesh.axes());
  // A coordinate that a group, root, peer or lineage part names is in a class of its own, and so is
  // each of an axis whose members have a source of their own, or pieces of their own that are not
  // of equal size as another member's (`lengths`; of all_to_all, whose sizes are a table, and of
  // groups over several axes: whatever the sizes are).
  std::vector<std::vector<char>> named(axes);
  for (std::size_t a = 0; a < axes; ++a)
    named[a].assign(static_cast<std::size_t>(mesh.size(static_cast<std::int32_t>(a))), 0);
  const auto name = [&](const Coordinates& at) {
    for (const auto& [axis, c] : at) named[axis][c] = 1;
  };
  std::vector<std::set<std::vector<std::int64_t>>> lengths(axes);  // of pieces, by coordinate
  for (const Program& program : plan.programs) {
    for (const CommunicationSpec& spec : program.communications) {
      for (const Coordinates& at : spec.groupAt) name(at);
      name(spec.peer);
      if (!spec.tellsMembersApart()) continue;
      if (!pieces && spec.groupAxes.size() == 1 && !spec.sizes.empty() &&
          (spec.kind == Communication::kAllGather || spec.kind == Communication::kReduceScatter)) {
        lengths[spec.groupAxes[0]].insert(spec.sizes);
        continue;
      }
      for (const std::int32_t axis : spec.groupAxes)
        std::fill(named[axis].begin(), named[axis].end(), char{1});
    }
  }
  // Where a stretch that a lineage part names begins, or has ended. Programs' show in `runs`.
  std::vector<std::set<std::int32_t>> edges(axes);
  for (const LineageEntry& entry : plan.lineage) {
    for (const Shard& shard : entry.shards) {
      for (const Part& part : shard.parts) {
        name(part.at);
        for (const Stretch& s : part.within) edges[s.axis].insert({s.low, s.high});
      }
    }
  }
  const std::vector<ProgramId> content = firstOfSameContent(plan.programs, attributes);
  classes_.resize(axes);
  first_.resize(axes);
  for (std::size_t a = 0; a < axes; ++a) {
    const auto axis = static_cast<std::int32_t>(a);
    // What the ranks of a coordinate run, in the order of their other coordinates.
    std::vector<std::vector<ProgramId>> runs(named[a].size());
    for (const Rank rank : firstIds<Rank>(mesh.ranks())) {
      runs[mesh.coordinate(rank, axis)].push_back(content[programOfRank[rank]]);
    }
    std::map<std::pair<std::vector<ProgramId>, std::vector<std::int64_t>>, std::size_t> classOf;
    for (std::size_t c = 0; c < runs.size(); ++c) {
      // Between two neighbouring edges all coordinates are in the same stretches. (Those between
      // other edges may be, too, but are not looked for.)
      if (edges[a].contains(static_cast<std::int32_t>(c))) classOf.clear();
      std::size_t cls = classes_[a].size();
      if (!named[a][c]) {
        std::vector<std::int64_t> own;
        for (const std::vector<std::int64_t>& sizes : lengths[a]) own.push_back(sizes.at(c));
        cls = classOf.emplace(std::pair(std::move(runs[c]), std::move(own)), cls).first->second;
      }
      if (cls == classes_[a].size()) classes_[a].emplace_back();
      classes_[a][cls].push_back(static_cast<std::int32_t>(c));
      first_[a].push_back(classes_[a][cls].front());
    }
  }
}

}  // namespace shardproof
