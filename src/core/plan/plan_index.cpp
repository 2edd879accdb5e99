// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_index.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <boost/graph/strong_components.hpp>

#include "ir/coordinates.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "plan/async.h"
#include "plan/checks.h"
#include "shardproof/error.h"
#include "util/union_find.h"

namespace shardproof {

PlanIndex::PlanIndex(const Problem& problem) : problem_(problem), mesh_(problem.plan.mesh) {
  indexModel();
  indexPrograms();
  symmetry_ = SymmetryClasses(problem.plan, mesh_, programOfRank_);
  findNamedAxes();
  indexMentions();
  checkPlanShapes(*this, defects_);
  checkAssignments(*this, defects_);
  if (defects_.empty()) checkAsync(*this, defects_);
  if (defects_.empty()) checkCommunication(*this, defects_);
  if (defects_.empty()) checkDeadlock(*this, orderSpmdNodes(), defects_);
}

void PlanIndex::indexModel() {
  const Graph& graph = problem_.model.graph;
  modelProducers_.assign(graph.tensors.size(), NodeId());
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
    for (const TensorId t : graph.out(graph.nodes[n])) {
      if (t >= 0) modelProducers_[t] = n;
    }
  }
}

void PlanIndex::indexPrograms() {
  const Plan& plan = problem_.plan;
  programOfRank_.assign(static_cast<std::size_t>(mesh_.ranks()), ProgramId());
  programs_.resize(plan.programs.size());
  std::uint32_t vertex = 0;
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    const Program& program = plan.programs[p];
    const Graph& graph = program.graph;
    ProgramIndex& index = programs_[p];
    index.firstVertex = vertex;
    vertex += static_cast<std::uint32_t>(graph.nodes.size());
    forEachRank(p, [&](Rank rank) { programOfRank_[rank] = p; });
    index.tensorByName.reserve(graph.tensors.size());
    for (const TensorId t : firstIds<TensorId>(graph.tensors.size()))
      index.tensorByName.emplace(graph.tensors[t].name, static_cast<std::int32_t>(t));
    index.producerOffsets.assign(graph.tensors.size() + 1, 0);
    for (const Node& node : graph.nodes) {
      for (const TensorId t : graph.out(node)) {
        if (t >= 0) ++index.producerOffsets[static_cast<std::size_t>(t) + 1];
      }
    }
    std::partial_sum(index.producerOffsets.begin(), index.producerOffsets.end(),
                     index.producerOffsets.begin());
    index.producers.resize(index.producerOffsets.back());
    std::vector<std::uint32_t> next(index.producerOffsets.begin(), index.producerOffsets.end() - 1);
    for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
      const Node& node = graph.nodes[n];
      const auto out = graph.out(node);
      for (std::size_t r = 0; r < out.size(); ++r) {
        if (out[r] < 0) continue;
        index.producers[next[out[r]]++] = {n, static_cast<std::int32_t>(r), node.microbatch};
      }
      if (node.communication >= 0) {
        index.nodesByComm[program.communications[node.communication].comm].push_back(n);
      }
    }
  }
}

void PlanIndex::findNamedAxes() {
  const auto axes = static_cast<std::size_t>(mesh_.axes());
  const std::vector<Program>& programs = problem_.plan.programs;
  programNames_.assign(programs.size() * axes, 0);
  for (const ProgramId p : firstIds<ProgramId>(programs.size())) {
    const auto name = [&](const Coordinates& at) {
      for (const auto& [axis, c] : at) programNames_[p * axes + axis] = 1;
    };
    name(programs[p].at);
    for (const Stretch& s : programs[p].within) programNames_[p * axes + s.axis] = 1;
    for (const CommunicationSpec& spec : programs[p].communications) {
      for (const Coordinates& at : spec.groupAt) name(at);
      name(spec.peer);
      if (!spec.tellsMembersApart()) continue;
      for (const std::int32_t axis : spec.groupAxes) programNames_[p * axes + axis] = 1;
    }
  }
}

void PlanIndex::indexMentions() {
  const Plan& plan = problem_.plan;
  // Parts usually fix every axis that programs name; then the program follows from one rank.
  // Otherwise all programs with the name are tried.
  std::vector<char> programNamed(static_cast<std::size_t>(mesh_.axes()), 0);
  for (const Program& program : plan.programs) {
    for (const auto& [axis, c] : program.at) programNamed[axis] = 1;
    for (const Stretch& s : program.within) programNamed[s.axis] = 1;
  }
  const auto namedCount = std::count(programNamed.begin(), programNamed.end(), 1);
  std::unordered_map<NameId, std::vector<std::pair<ProgramId, TensorId>>> byName;
  for (std::size_t p = 0; p < programs_.size(); ++p) {
    for (const auto& [tensorName, t] : programs_[p].tensorByName)
      byName[tensorName].emplace_back(static_cast<std::int32_t>(p), t);
  }
  for (auto& [tensorName, list] : byName) std::sort(list.begin(), list.end());
  std::vector<std::vector<std::pair<TensorId, Mention>>> perProgram(programs_.size());
  for (const EntryId e : firstIds<EntryId>(plan.lineage.size())) {
    const LineageEntry& entry = plan.lineage[e];
    for (std::size_t s = 0; s < entry.shards.size(); ++s) {
      for (std::size_t k = 0; k < entry.shards[s].parts.size(); ++k) {
        const Part& part = entry.shards[s].parts[k];
        const Mention mention{e, static_cast<std::int32_t>(s), static_cast<std::int32_t>(k)};
        const auto fixed = std::count_if(part.at.begin(), part.at.end(),
                                         [&](const auto& c) { return programNamed[c.first] != 0; });
        if (fixed == namedCount) {
          const ProgramId p = programOf(mesh_.with(Rank(0), part.at));
          const TensorId t = findTensor(p, part.local);
          if (t >= 0) perProgram[p].emplace_back(t, mention);
        } else {
          for (const auto& [p, t] : byName[part.local]) {
            if (ir::mayMeet(plan.programs[p], part)) perProgram[p].emplace_back(t, mention);
          }
        }
      }
    }
  }
  for (std::size_t p = 0; p < programs_.size(); ++p) {
    auto& list = perProgram[p];
    std::stable_sort(list.begin(), list.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    ProgramIndex& index = programs_[p];
    index.mentionOffsets.assign(plan.programs[p].graph.tensors.size() + 1, 0);
    index.mentions.reserve(list.size());
    for (const auto& [t, mention] : list) {
      ++index.mentionOffsets[static_cast<std::size_t>(t) + 1];
      index.mentions.push_back(mention);
    }
    std::partial_sum(index.mentionOffsets.begin(), index.mentionOffsets.end(),
                     index.mentionOffsets.begin());
  }
}

TensorId PlanIndex::findTensor(ProgramId program, NameId name) const {
  const auto& map = programs_[program].tensorByName;
  const auto it = map.find(name);
  return it == map.end() ? TensorId() : it->second;
}

std::span<const Producer> PlanIndex::producers(ProgramId program, TensorId tensor) const {
  const ProgramIndex& index = programs_[program];
  const auto t = static_cast<std::size_t>(tensor);
  return {index.producers.data() + index.producerOffsets[t],
          index.producerOffsets[t + 1] - index.producerOffsets[t]};
}

Producer PlanIndex::producerOf(const LocalInstance& instance) const {
  for (const Producer& producer : producers(instance.program, instance.tensor)) {
    if (instance.microbatch.isNone() || producer.microbatch.isEach() ||
        producer.microbatch == instance.microbatch)
      return producer;
  }
  return {};
}

std::span<const Mention> PlanIndex::mentions(ProgramId program, TensorId tensor) const {
  const ProgramIndex& index = programs_[program];
  const auto t = static_cast<std::size_t>(tensor);
  return {index.mentions.data() + index.mentionOffsets[t],
          index.mentionOffsets[t + 1] - index.mentionOffsets[t]};
}

std::vector<Rank> PlanIndex::groupOf(const CommunicationSpec& spec, Rank rank) const {
  if (spec.kind == Communication::kSend || spec.kind == Communication::kReceive) {
    const Rank peer = mesh_.with(rank, spec.peer);
    return {std::min(rank, peer), std::max(rank, peer)};
  }
  std::vector<Rank> group;
  if (!spec.groupAt.empty()) {
    for (const Coordinates& at : spec.groupAt) group.push_back(mesh_.with(rank, at));
    return group;
  }
  group.push_back(rank);
  for (const std::int32_t axis : spec.groupAxes) {
    std::vector<Rank> wider;
    for (const Rank member : group) {
      for (std::int32_t c = 0; c < mesh_.size(axis); ++c)
        wider.push_back(mesh_.with(member, axis, c));
    }
    group = std::move(wider);
  }
  std::sort(group.begin(), group.end());
  return group;
}

// Is `other` in the group of `rank`? Without listing it: a group of n members asks this n times.
bool PlanIndex::inGroup(const CommunicationSpec& spec, Rank rank, Rank other) const {
  if (!spec.groupAt.empty())
    return std::any_of(spec.groupAt.begin(), spec.groupAt.end(),
                       [&](const Coordinates& at) { return mesh_.with(rank, at) == other; });
  for (std::int32_t a = 0; a < mesh_.axes(); ++a) {
    const bool free =
        std::find(spec.groupAxes.begin(), spec.groupAxes.end(), a) != spec.groupAxes.end();
    if (!free && mesh_.coordinate(rank, a) != mesh_.coordinate(other, a)) return false;
  }
  return true;
}

NodeId PlanIndex::inPlaceOf(const CommunicationSpec& spec, Rank member, Rank requester) const {
  const ProgramId p = programOf(member);
  const Program& program = problem_.plan.programs[p];
  const auto it = programs_[p].nodesByComm.find(spec.comm);
  if (it == programs_[p].nodesByComm.end()) return NodeId::none();
  for (const NodeId n : it->second) {
    const CommunicationSpec& other = program.communications[program.graph.nodes[n].communication];
    if (other.kind != spec.kind && !ops::collectiveOf(other.kind).message() &&
        inGroup(other, member, requester))
      return n;
  }
  return NodeId::none();
}

std::vector<NodeId> PlanIndex::partners(Rank member, const CommunicationSpec& spec,
                                        Microbatch microbatch, Rank requester) const {
  const ProgramId p = programOf(member);
  const Program& program = problem_.plan.programs[p];
  const auto& byComm = programs_[p].nodesByComm;
  const auto it = byComm.find(spec.comm);
  std::vector<NodeId> found;
  if (it == byComm.end()) return found;
  const Communication wanted = spec.kind == Communication::kSend      ? Communication::kReceive
                               : spec.kind == Communication::kReceive ? Communication::kSend
                                                                      : spec.kind;
  for (const NodeId n : it->second) {
    const Node& node = program.graph.nodes[n];
    const CommunicationSpec& other = program.communications[node.communication];
    if (other.kind != wanted || other.tag != spec.tag) continue;
    if (!spec.tag && node.microbatch != microbatch &&
        !(microbatch.isOne() && node.microbatch.isEach()))
      continue;
    if (wanted == Communication::kSend || wanted == Communication::kReceive) {
      if (mesh_.with(member, other.peer) != requester) continue;
    } else {
      if (!inGroup(other, member, requester)) continue;
    }
    found.push_back(n);
  }
  // Several groups that have both ranks may share a comm id: they are instances apart, told by
  // their members.
  if (found.size() > 1 && wanted == spec.kind) {
    const auto members = [&](const CommunicationSpec& s, Rank rank) {
      std::vector<Rank> group = groupOf(s, rank);
      std::sort(group.begin(), group.end());
      return group;
    };
    const std::vector<Rank> group = members(spec, requester);
    const auto meets = [&](NodeId n) {
      return members(program.communications[program.graph.nodes[n].communication], member) == group;
    };
    if (std::any_of(found.begin(), found.end(), meets))
      std::erase_if(found, [&](NodeId n) { return !meets(n); });
  }
  return found;
}

std::vector<Rank> PlanIndex::representativeRanks() const {
  std::vector<Rank> ranks;
  for (const Rank r : firstIds<Rank>(mesh_.ranks())) {
    if (representative(r)) ranks.push_back(r);
  }
  return ranks;
}

bool PlanIndex::representative(Rank rank) const {
  for (std::int32_t a = 0; a < mesh_.axes(); ++a) {
    if (!symmetry_.isRepresentative(a, mesh_.coordinate(rank, a))) return false;
  }
  return true;
}

// Unites communication nodes that meet in one vertex, then orders the strong components. Components
// rather than vertices: nodes may form cycles that their instances do not (then no member of the
// cycle may assume another, which is safe). Returns the nodes (program, node) that may wait for
// themselves.
std::vector<std::pair<ProgramId, NodeId>> PlanIndex::orderSpmdNodes() {
  const Plan& plan = problem_.plan;
  std::size_t vertices = 0;
  for (const Program& program : plan.programs) vertices += program.graph.nodes.size();
  UnionFind<std::uint32_t> joined(vertices);
  for (const Rank rank : representativeRanks()) {
    const ProgramId p = programOf(rank);
    const Program& program = plan.programs[p];
    for (const NodeId n : firstIds<NodeId>(program.graph.nodes.size())) {
      const Node& node = program.graph.nodes[n];
      if (node.communication < 0) continue;
      const CommunicationSpec& spec = program.communications[node.communication];
      const Microbatch mb = node.microbatch.at(Microbatch::of(0));
      for (const Rank member : groupOf(spec, rank)) {
        if (member == rank) continue;
        for (const NodeId other : partners(member, spec, mb, rank)) {
          joined.unite(
              programs_[p].firstVertex + static_cast<std::uint32_t>(n),
              programs_[programOf(member)].firstVertex + static_cast<std::uint32_t>(other));
        }
      }
    }
  }
  // Only representative ranks were looked at: the programs of ranks like them are ordered with
  // theirs.
  std::set<std::pair<ProgramId, ProgramId>> symmetric;
  for (const Rank rank : firstIds<Rank>(mesh_.ranks())) {
    Rank first = rank;
    for (std::int32_t a = 0; a < mesh_.axes(); ++a)
      first = mesh_.with(first, a, symmetry_.representativeOf(a, mesh_.coordinate(rank, a)));
    if (programOf(first) != programOf(rank)) symmetric.emplace(programOf(first), programOf(rank));
  }
  for (const auto& [p, q] : symmetric) {
    const auto n = static_cast<std::uint32_t>(
        plan.programs[p].graph.nodes.size());  // both have the same nodes
    for (std::uint32_t i = 0; i < n; ++i)
      joined.unite(programs_[p].firstVertex + i, programs_[q].firstVertex + i);
  }
  std::vector<std::pair<SpmdGraph::Vertex, SpmdGraph::Vertex>> edges;
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    const Graph& graph = plan.programs[p].graph;
    for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
      const std::uint32_t to =
          joined.find(programs_[p].firstVertex + static_cast<std::uint32_t>(n));
      for (const Operand& operand : graph.in(graph.nodes[n])) {
        if (!operand.present()) continue;
        for (const Producer& producer : producers(p, operand.tensor)) {
          const std::uint32_t from =
              joined.find(programs_[p].firstVertex + static_cast<std::uint32_t>(producer.node));
          if (from != to) edges.emplace_back(from, to);
        }
      }
    }
  }
  spmdGraph_ = SpmdGraph(vertices, edges);
  std::vector<std::uint32_t> component(vertices, 0);
  const std::size_t components =
      vertices == 0
          ? 0
          : static_cast<std::size_t>(boost::strong_components(
                spmdGraph_, boost::make_iterator_property_map(
                                component.begin(), get(boost::vertex_index, spmdGraph_))));
  // Tarjan numbers a component after everything it reaches, so the reverse number is a topological
  // position.
  vertexOrder_.resize(vertices);
  for (std::size_t v = 0; v < vertices; ++v) {
    vertexOrder_[v] =
        static_cast<std::int64_t>(components) - 1 -
        static_cast<std::int64_t>(component[joined.find(static_cast<std::uint32_t>(v))]);
  }
  entryKeys_.assign(plan.lineage.size(), -1);
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    for (std::size_t t = 0; t < plan.programs[p].graph.tensors.size(); ++t) {
      for (const Mention& mention : mentions(p, TensorId(t))) {
        for (const Producer& producer : producers(p, TensorId(t))) {
          std::int64_t& key = entryKeys_[mention.entry];
          key = std::max(
              key,
              vertexOrder_[programs_[p].firstVertex + static_cast<std::uint32_t>(producer.node)]);
        }
      }
    }
  }
  return nodesThatMayWait(*this, joined);
}

double PlanIndex::operatorInstances() const {
  double total = 0;
  for (const Program& program : problem_.plan.programs) {
    double ranks = 1;
    for (std::int32_t a = 0; a < mesh_.axes(); ++a) {
      const bool fixed = std::any_of(program.at.begin(), program.at.end(),
                                     [&](const auto& c) { return c.first == a; });
      if (!fixed) ranks *= ir::rangeOf(problem_.plan, program.within, a).size();
    }
    for (const Node& node : program.graph.nodes)
      total += ranks * (node.microbatch.isEach() ? problem_.plan.microbatches : 1);
  }
  return total;
}

std::string PlanIndex::opName(ProgramId program, const Node& node) const {
  if (node.communication < 0) return ops::Registry::instance().at(node.op).name;
  return ops::communicationName(
      problem_.plan.programs[program].communications[node.communication].kind);
}

NodePlace PlanIndex::place(ProgramId program, NodeId node) const {
  const Node& n = problem_.plan.programs[program].graph.nodes[node];
  NodePlace place;
  place.pointer = problem_.plan.nodePointer(program, node);
  place.op = opName(program, n);
  if (n.location) place.location = problem_.names.text(n.location);
  return place;
}

}  // namespace shardproof
