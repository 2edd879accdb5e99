// Operators that wait, through one another, for their own results. Families of instances may run in circles that their instances do not (microbatch k reads what
// microbatch k - 1 made), so the instances of such families are looked at one by one. Cutting finds the circles that lineage depends on, too
// (CyclicWait); here also those whose results nothing needs, and those through an operand that only lends its shape: they keep a rank from running all the same.
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <boost/graph/strong_components.hpp>

#include "plan/checks.h"
#include "plan/family_graph.h"
#include "plan/join.h"
#include "util/union_find.h"

namespace shardproof {

namespace {

class Instances {
 public:
  Instances(const Join& join, const std::vector<std::pair<std::int32_t, std::int32_t>>& nodes) : join_(join), plan_(join.problem().plan) {
    std::vector<std::vector<std::int32_t>> ofProgram(plan_.programs.size());
    for (const auto& [p, n] : nodes) ofProgram[static_cast<std::size_t>(p)].push_back(n);
    for (const std::int64_t rank : join.representativeRanks()) {
      for (const std::int32_t n : ofProgram[static_cast<std::size_t>(join.programOf(rank))]) {
        for (const Microbatch m : microbatchesOf(nodeAt(rank, n))) ids_.emplace(Key{rank, n, m}, static_cast<std::uint32_t>(ids_.size()));
      }
    }
  }

  void report(std::vector<Defect>& defects) const {
    UnionFind<std::uint32_t> met(ids_.size());
    for (const auto& [key, id] : ids_) meet(key, id, met);
    std::vector<std::pair<FamilyGraph::Vertex, FamilyGraph::Vertex>> edges;
    std::vector<char> cyclic(ids_.size(), 0);
    for (const auto& [key, id] : ids_) {
      forEachSource(key, [&, to = met.find(id)](std::uint32_t source) {
        const std::uint32_t from = met.find(source);
        if (from == to) cyclic[to] = 1;
        else edges.emplace_back(from, to);
      });
    }
    std::vector<std::uint32_t> component(ids_.size(), 0);
    const FamilyGraph graph(ids_.size(), edges);
    boost::strong_components(graph, boost::make_iterator_property_map(component.begin(), get(boost::vertex_index, graph)));
    for (const auto& [from, to] : edges) {
      if (component[from] == component[to]) cyclic[to] = 1;
    }
    for (const auto& [key, id] : ids_) {
      if (!cyclic[met.find(id)]) continue;
      const auto& [rank, node, microbatch] = key;
      defects.push_back(dataCycle(join_, join_.programOf(rank), node, rank, microbatch));
      return;   // one leads to the circle; there may be thousands
    }
  }

 private:
  using Key = std::tuple<std::int64_t, std::int32_t, Microbatch>;   // rank, node, microbatch

  const Node& nodeAt(std::int64_t rank, std::int32_t n) const { return programAt(rank).graph.nodes[static_cast<std::size_t>(n)]; }
  const Program& programAt(std::int64_t rank) const { return plan_.programs[static_cast<std::size_t>(join_.programOf(rank))]; }
  std::vector<Microbatch> microbatchesOf(const Node& node) const {
    if (!node.microbatch.isEach()) return {node.microbatch};
    std::vector<Microbatch> all;
    for (std::int32_t m = 0; m < plan_.microbatches; ++m) all.push_back(Microbatch::of(m));
    return all;
  }

  // All members of a communication wait for each other: one vertex.
  void meet(const Key& key, std::uint32_t id, UnionFind<std::uint32_t>& met) const {
    const auto& [rank, n, microbatch] = key;
    const Node& node = nodeAt(rank, n);
    if (node.communication < 0) return;
    const CommunicationSpec& spec = programAt(rank).communications[static_cast<std::size_t>(node.communication)];
    for (const std::int64_t member : join_.groupOf(spec, rank)) {
      if (member == rank) continue;
      for (const std::int32_t other : join_.partners(member, spec, microbatch, rank)) {
        const auto it = ids_.find(Key{member, other, nodeAt(member, other).microbatch.at(microbatch)});
        if (it != ids_.end()) met.unite(id, it->second);
      }
    }
  }

  template <class F>
  void forEachSource(const Key& key, F&& f) const {
    const auto& [rank, n, microbatch] = key;
    const Graph& graph = programAt(rank).graph;
    for (const Operand& operand : graph.in(nodeAt(rank, n))) {
      if (!operand.present()) continue;
      const bool perMicrobatch = graph.tensors[static_cast<std::size_t>(operand.tensor)].perMicrobatch;
      const Microbatch wanted = perMicrobatch ? operand.microbatch.orElse(microbatch) : Microbatch::none();
      const Producer producer = join_.producerOf({join_.programOf(rank), operand.tensor, static_cast<std::int32_t>(rank), wanted});
      const auto it = ids_.find(Key{rank, producer.node, producer.microbatch.at(wanted)});
      if (it != ids_.end()) f(it->second);
    }
  }

  const Join& join_;
  const Plan& plan_;
  std::map<Key, std::uint32_t> ids_;
};

}  // namespace

Defect dataCycle(const Join& join, std::int32_t program, std::int32_t node, std::int64_t rank, Microbatch microbatch) {
  Defect defect;
  defect.kind = DefectKind::kDeadlock;
  defect.nodes.push_back(join.place(program, node));
  defect.message = defect.nodes.front().pointer + " (" + defect.nodes.front().op + "): waits, through other operators, for its own result";
  defect.ranks = {rank};
  if (microbatch.isOne()) defect.microbatch = microbatch.number();
  return defect;
}

void checkDataCycles(const Join& join, const std::vector<std::pair<std::int32_t, std::int32_t>>& nodes, std::vector<Defect>& defects) {
  if (!nodes.empty()) Instances(join, nodes).report(defects);
}

}  // namespace shardproof
