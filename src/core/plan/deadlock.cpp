// SPDX-License-Identifier: Apache-2.0
// No rank waits for ever. What waits for what is said in docs/format.md, "When a plan runs":
//
//   * data: every node waits for the nodes that make its operands;
//   * rendezvous: a communication takes place when all its members have reached it;
//   * order: on a rank, a communication waits for those before it in a list. A program in issue
//     order has one list, its nodes as they stand. Any other has one for each microbatch: the
//     communications that run for that microbatch, for each, or once. Its other nodes wait for data
//     only. An asynchronous communication (one with a handle) holds up what stands behind a wait
//     for it and, if it is a collective, later collectives of its process group.
//
// All three are edges of one graph over instances (rank, node, microbatch), in which the members of
// a rendezvous are one vertex: a cycle may need all of them. Without a cycle everything runs, in
// any topological order; what is on one, or behind it, never does.
//
// In a program in issue order data adds nothing: single assignment and production before use have
// been checked in the order of its one list, and that what a communication brings is read behind
// the wait for it (async.cpp). So what an instance reads is done when it is reached, and of the
// list only the communications matter. For the same reason nothing waits for the beginning of an
// asynchronous communication: what stands behind it waits for all that this does.
//
// The graph has too many vertices, so first its image over program nodes: each with all its SPMD
// instances, united with those that it meets. Every edge has an image there, so a cycle of
// instances lies within the instances of one strong component of nodes. Right plans have hardly
// ever such a component. Where there is one, only its instances are looked at, on representative
// ranks and microbatches.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <boost/graph/strong_components.hpp>

#include "plan/checks.h"
#include "plan/plan_index.h"
#include "plan/spmd_graph.h"

namespace shardproof {

namespace {

// Of a long cycle the first steps tell where to look.
constexpr std::size_t kMostSteps = 8;

using Vertex = SpmdGraph::Vertex;
using Edges = std::vector<std::pair<Vertex, Vertex>>;

std::vector<Vertex> componentsOf(std::size_t vertices, const Edges& edges) {
  const SpmdGraph graph(vertices, edges);
  std::vector<Vertex> component(vertices, 0);
  if (vertices > 0)
    boost::strong_components(graph, boost::make_iterator_property_map(
                                        component.begin(), get(boost::vertex_index, graph)));
  return component;
}

// A rank's lists of communications, entered in node order. Tells of each entry which ones it comes
// right after, in all the lists that it is in.
class Lists {
 public:
  template <class F>
  void inOne(std::int32_t microbatch, std::uint32_t entry, F&& after) {
    const auto [it, first] = last_.emplace(microbatch, entry);
    if (!first) after(std::exchange(it->second, entry));
    else if (lastInAll_) after(*lastInAll_);
  }
  template <class F>
  void inAll(std::uint32_t entry, F&& after) {
    if (lastInAll_)
      after(*lastInAll_);  // also where each list has had another since: some microbatch may not be
                           // among them
    for (const auto& [microbatch, last] : last_) after(last);
    last_.clear();
    lastInAll_ = entry;
  }

 private:
  std::map<std::int32_t, std::uint32_t> last_;  // by microbatch, since the last one in all lists
  std::optional<std::uint32_t> lastInAll_;
};

// The one list of a program with asynchronous communications, on one rank: they come after what
// stands before them, and before what stands behind a wait for them. Collectives of one process
// group are in order besides. Nothing else waits for them.
class AsynchronousList {
 public:
  explicit AsynchronousList(const Asynchrony& asynchrony) : asynchrony_(asynchrony) {}
  // A chosen communication, in file order. `own`: its instance, `group`: the number of its process
  // group (none: a message). `point()` makes an instance that is nothing but a place in the list:
  // when what was waited for up to it is done. Without it many waits before many asynchronous
  // communications would be edges of each to each.
  template <class After, class Point>
  void enter(NodeId n, std::uint32_t own, std::optional<std::int32_t> group, After&& after,
             Point&& point) {
    const auto& [handles, waits] = std::tie(asynchrony_.handles, asynchrony_.waits);
    for (; nextWait_ < waits.size() && waits[nextWait_].first <= n; ++nextWait_) {
      const auto it = begun_.find(waits[nextWait_].second);
      if (it != begun_.end()) waited_.push_back(it->second);
    }
    while (nextHandle_ < handles.size() && handles[nextHandle_].first < n) ++nextHandle_;
    const bool begins = nextHandle_ < handles.size() && handles[nextHandle_].first == n;
    if (begins && !waited_.empty()) {
      const std::uint32_t reached = point();
      for (const std::uint32_t before : waited_) after(before, reached);
      if (reached_) after(*reached_, reached);
      waited_.clear();
      reached_ = reached;
    }
    if (blocking_) after(*blocking_, own);
    if (reached_) after(*reached_, own);
    for (const std::uint32_t before : waited_) after(before, own);
    if (group) {
      const auto [it, first] = lastOfGroup_.emplace(*group, own);
      if (!first) after(std::exchange(it->second, own), own);
    }
    if (begins) {
      begun_[handles[nextHandle_].second] = own;
      return;
    }
    blocking_ = own;  // all that follows is after it, hence after what it is after
    reached_.reset();
    waited_.clear();
  }

 private:
  const Asynchrony& asynchrony_;
  std::map<NameId, std::uint32_t> begun_;              // by handle, of the chosen ones
  std::map<std::int32_t, std::uint32_t> lastOfGroup_;  // collectives, by process group
  std::vector<std::uint32_t> waited_;                  // for, since the last point or `blocking_`
  std::optional<std::uint32_t> reached_;               // the last point since `blocking_`
  std::optional<std::uint32_t> blocking_;              // the last one that is waited for at once
  std::size_t nextWait_ = 0, nextHandle_ = 0;
};

const Program& programAt(const PlanIndex& planIndex, ProgramId p) {
  return planIndex.problem().plan.programs[p];
}

// Which microbatch's instance of an operand is read; none where it exists once. `own`: the node's,
// or of one of its instances.
Microbatch wantedBy(const Graph& graph, const Operand& operand, Microbatch own) {
  return graph.tensors[operand.tensor].perMicrobatch ? operand.microbatch.orElse(own)
                                                     : Microbatch::none();
}

// The instances of some nodes.
class Instances {
 public:
  Instances(const PlanIndex& planIndex, const std::vector<std::pair<ProgramId, NodeId>>& nodes)
      : planIndex_(planIndex), plan_(planIndex.problem().plan), layouts_(plan_.programs.size()) {
    for (const auto& [p, n] : nodes) layouts_[p].nodes.push_back(n);
    chooseMicrobatches();
    for (std::size_t p = 0; p < layouts_.size(); ++p) {
      Layout& layout = layouts_[p];
      if (layout.nodes.empty()) continue;
      layout.offsets.assign(plan_.programs[p].graph.nodes.size(), -1);
      for (const NodeId n : layout.nodes) {
        layout.offsets[n] = layout.size;
        layout.size +=
            nodeOf(p, n).microbatch.isEach() ? static_cast<std::int64_t>(microbatches_.size()) : 1;
      }
    }
    for (const Rank rank : planIndex.representativeRanks()) enter(rank);
  }

  void report(std::vector<Defect>& defects) {
    std::sort(waits_.begin(), waits_.end(), [&](const Wait& a, const Wait& b) {
      return std::tuple(vertexOf_[a.before], a.after, a.before, a.issued) <
             std::tuple(vertexOf_[b.before], b.after, b.before, b.issued);
    });
    Edges edges;
    for (const Wait& wait : waits_)
      edges.emplace_back(vertexOf_[wait.before], vertexOf_[wait.after]);
    const std::vector<Vertex> component = componentsOf(vertices_, edges);
    std::vector<std::size_t> firstWait(vertices_ + 1, 0);
    for (const auto& [from, to] : edges) ++firstWait[from + 1];
    for (std::size_t v = 0; v < vertices_; ++v) firstWait[v + 1] += firstWait[v];
    std::vector<char> told(vertices_, 0);  // by component
    std::vector<std::size_t> reachedBy(vertices_, waits_.size());
    for (const auto& [start, next] : edges) {
      if (component[start] != component[next] || std::exchange(told[component[start]], 1)) continue;
      defects.push_back(cycle(shortestCycle(start, component, firstWait, reachedBy)));
      if (defects.size() >= kMostDefects) return;
    }
  }

 private:
  struct Instance {
    Rank rank;
    NodeId node;  // none: a place in a list (AsynchronousList)
    Microbatch microbatch;
  };
  struct Wait {
    std::uint32_t before, after;  // instances
    bool issued;                  // by the order of communications; else by data
  };
  struct Layout {  // of a program
    std::vector<NodeId> nodes;
    std::vector<std::int64_t> offsets;  // of all nodes; -1: not among the chosen ones
    std::int64_t size = 0;
  };
  // Of those that PlanIndex::partners takes for one: comm; kind, of a message its sender; tag or
  // microbatch, and which of them; group.
  using Key = std::tuple<std::int32_t, Communication, std::int64_t, std::int64_t, Microbatch,
                         std::int32_t>;  // with a tag: each

  const Node& nodeOf(std::size_t p, NodeId n) const { return plan_.programs[p].graph.nodes[n]; }

  // Microbatches that no chosen node names form one class: put the first of them in the place of
  // each, and every edge becomes an edge, hence every cycle a cycle (or a walk that holds one). Not
  // so where "*" runs in issue order: there one microbatch waits for the other.
  //
  // Representative ranks are enough for the same reason: let each coordinate become the first of
  // its class (SymmetryClasses). Programs become programs of equal content, so data and lists
  // stay; members of a rendezvous become members of one, as a group names no coordinate that is
  // like another.
  void chooseMicrobatches() {
    std::vector<char> chosen(static_cast<std::size_t>(plan_.microbatches), 0);
    bool oneByOne = false;
    const auto name = [&](Microbatch m) {
      if (m.isOne()) chosen[m.number()] = 1;
    };
    for (std::size_t p = 0; p < layouts_.size(); ++p) {
      for (const NodeId n : layouts_[p].nodes) {
        const Node& node = nodeOf(p, n);
        name(node.microbatch);
        for (const Operand& operand : plan_.programs[p].graph.in(node)) name(operand.microbatch);
        oneByOne = oneByOne || (plan_.programs[p].issueOrder && node.microbatch.isEach());
      }
    }
    bool represented = false;
    for (std::int32_t m = 0; m < plan_.microbatches; ++m) {
      if (oneByOne || chosen[m] || !std::exchange(represented, true)) microbatches_.push_back(m);
    }
  }

  std::vector<Microbatch> microbatchesOf(const Node& node) const {
    if (!node.microbatch.isEach()) return {node.microbatch};
    std::vector<Microbatch> all;
    for (const std::int32_t m : microbatches_) all.push_back(Microbatch::of(m));
    return all;
  }

  // A chosen node's instance on the rank whose instances begin at `first`; -1: not chosen.
  std::int64_t find(std::int64_t first, const Layout& layout, NodeId n, const Node& node,
                    Microbatch microbatch) const {
    if (n < 0 || layout.offsets[n] < 0) return -1;
    const std::int64_t id = first + layout.offsets[n];
    if (!node.microbatch.isEach()) return id;
    const auto it =
        std::lower_bound(microbatches_.begin(), microbatches_.end(), microbatch.number());
    return it != microbatches_.end() && *it == microbatch.number()
               ? id + (it - microbatches_.begin())
               : -1;
  }

  void enter(Rank rank) {
    const auto p = static_cast<std::size_t>(planIndex_.programOf(rank));
    const Program& program = plan_.programs[p];
    const Layout& layout = layouts_[p];
    if (layout.nodes.empty()) return;
    const auto first = static_cast<std::int64_t>(instances_.size());
    for (const NodeId n : layout.nodes) {
      const Node& node = nodeOf(p, n);
      const CommunicationSpec* spec =
          node.communication < 0 ? nullptr : &program.communications[node.communication];
      const std::int32_t group = spec == nullptr
                                     ? -1
                                     : groups_
                                           .emplace(planIndex_.groupOf(*spec, rank),
                                                    static_cast<std::int32_t>(groups_.size()))
                                           .first->second;
      for (const Microbatch m : microbatchesOf(node)) {
        instances_.push_back({rank, n, m});
        vertexOf_.push_back(spec == nullptr ? vertices_++ : rendezvous(rank, *spec, group, m));
      }
    }
    Lists lists;
    const bool listed = program.asynchrony.handles.empty();
    AsynchronousList asynchronous(program.asynchrony);
    const auto after = [&](std::uint32_t before, std::uint32_t own) {
      waits_.push_back({before, own, true});
    };
    const auto point = [&] {
      instances_.push_back({rank, NodeId(), Microbatch::none()});
      vertexOf_.push_back(vertices_++);
      return static_cast<std::uint32_t>(instances_.size() - 1);
    };
    for (const NodeId n : layout.nodes) {
      const Node& node = nodeOf(p, n);
      for (const Microbatch m : microbatchesOf(node)) {
        const auto own = static_cast<std::uint32_t>(find(first, layout, n, node, m));
        if (node.communication >= 0) {
          const auto afterOwn = [&](std::uint32_t before) { after(before, own); };
          if (!listed)
            asynchronous.enter(n, own,
                               processGroup(program.communications[node.communication], rank),
                               after, point);
          else if (program.issueOrder || !m.isOne()) lists.inAll(own, afterOwn);
          else lists.inOne(m.number(), own, afterOwn);
        }
        if (program.issueOrder) continue;
        for (const Operand& operand : program.graph.in(node)) {
          if (!operand.present()) continue;
          const Microbatch wanted = wantedBy(program.graph, operand, m);
          const Producer producer =
              planIndex_.producerOf({ProgramId(p), operand.tensor, rank, wanted});
          if (producer.node < 0) continue;
          const std::int64_t before = find(first, layout, producer.node, nodeOf(p, producer.node),
                                           producer.microbatch.at(wanted));
          if (before >= 0) waits_.push_back({static_cast<std::uint32_t>(before), own, false});
        }
      }
    }
  }

  // The number of the ranks among which a collective takes place, in whichever order it lists them;
  // none: a message.
  std::optional<std::int32_t> processGroup(const CommunicationSpec& spec, Rank rank) {
    if (spec.kind == Communication::kSend || spec.kind == Communication::kReceive)
      return std::nullopt;
    std::vector<Rank> ranks = planIndex_.groupOf(spec, rank);
    std::sort(ranks.begin(), ranks.end());
    const auto next = static_cast<std::int32_t>(processGroups_.size());
    return processGroups_.emplace(std::move(ranks), next).first->second;
  }

  Vertex rendezvous(Rank rank, const CommunicationSpec& spec, std::int32_t group,
                    Microbatch microbatch) {
    const bool receives = spec.kind == Communication::kReceive;
    const std::int64_t sender = receives ? planIndex_.mesh().with(rank, spec.peer)
                                : spec.kind == Communication::kSend ? rank
                                                                    : -1;
    const Key key{spec.comm.value,      receives ? Communication::kSend : spec.kind, sender,
                  spec.tag.value_or(0), spec.tag ? Microbatch::each() : microbatch,  group};
    const auto [it, added] = rendezvous_.emplace(key, vertices_);
    if (added) ++vertices_;
    return it->second;
  }

  // Waits from `start` to itself, none longer than it must be. `reachedBy`: for each vertex no
  // wait, and again after this.
  std::vector<Wait> shortestCycle(Vertex start, const std::vector<Vertex>& component,
                                  const std::vector<std::size_t>& firstWait,
                                  std::vector<std::size_t>& reachedBy) const {
    std::vector<Vertex> reached{start};
    for (std::size_t i = 0; reachedBy[start] == waits_.size(); ++i) {
      const Vertex v = reached[i];
      for (std::size_t w = firstWait[v]; w < firstWait[v + 1]; ++w) {
        const Vertex to = vertexOf_[waits_[w].after];
        if (component[to] != component[start] || reachedBy[to] != waits_.size()) continue;
        reachedBy[to] = w;
        if (to != start) reached.push_back(to);
      }
    }
    std::vector<Wait> steps;
    Vertex v = start;
    do {
      steps.push_back(waits_[reachedBy[v]]);
      v = vertexOf_[steps.back().before];
    } while (v != start);
    for (const Vertex r : reached) reachedBy[r] = waits_.size();
    return betweenNodes(std::move(steps));
  }

  // The same steps without the places in lists: what comes after a place comes after what is
  // before it. Some vertex is a rendezvous, as a list by itself has no cycle.
  std::vector<Wait> betweenNodes(std::vector<Wait> steps) const {
    const auto ofNode = [&](const Wait& wait) { return instances_[wait.after].node.valid(); };
    std::rotate(steps.begin(), std::find_if(steps.begin(), steps.end(), ofNode), steps.end());
    std::vector<Wait> result;
    for (const Wait& step : steps) {
      if (ofNode(step)) result.push_back(step);
      else result.back().before = step.before;
    }
    return result;
  }

  std::string text(const Instance& instance) const {
    const ProgramId p = planIndex_.programOf(instance.rank);
    const Program& program = programAt(planIndex_, p);
    const Node& node = program.graph.nodes[instance.node];
    std::string text = plan_.nodePointer(p, instance.node) + " (" + planIndex_.opName(p, node);
    if (node.communication >= 0)
      text += " '" +
              planIndex_.problem().names.text(program.communications[node.communication].comm) +
              "'";
    if (instance.microbatch.isOne())
      text += ", microbatch " + std::to_string(instance.microbatch.number());
    return text + ")";
  }

  // Each step waits for the one that follows, the last for the first.
  Defect cycle(const std::vector<Wait>& steps) const {
    Defect defect;
    defect.kind = DefectKind::kDeadlock;
    defect.message = "cyclic wait: ";
    std::vector<Microbatch> microbatches;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Instance& after = instances_[steps[i].after];
      const Instance& before = instances_[steps[i].before];
      for (const Microbatch m : {after.microbatch, before.microbatch}) {
        if (m.isOne()) microbatches.push_back(m);
      }
      defect.ranks.push_back(after.rank);
      if (i >= kMostSteps) continue;
      defect.nodes.push_back(planIndex_.place(planIndex_.programOf(after.rank), after.node));
      defect.message += (i > 0 ? "; " : "") + std::string("on rank ") + std::to_string(after.rank) +
                        " " + text(after) +
                        (steps[i].issued ? " is issued after " : " reads what ") + text(before) +
                        (steps[i].issued ? "" : " makes");
    }
    if (steps.size() > kMostSteps)
      defect.message += "; and so on, " + std::to_string(steps.size()) + " steps in all";
    std::sort(defect.ranks.begin(), defect.ranks.end());
    defect.ranks.erase(std::unique(defect.ranks.begin(), defect.ranks.end()), defect.ranks.end());
    const bool one = !microbatches.empty() &&
                     std::count(microbatches.begin(), microbatches.end(), microbatches.front()) ==
                         static_cast<std::ptrdiff_t>(microbatches.size());
    if (one) defect.microbatch = microbatches.front().number();
    return defect;
  }

  const PlanIndex& planIndex_;
  const Plan& plan_;
  std::vector<Layout> layouts_;                              // by program
  std::vector<std::int32_t> microbatches_;                   // that stand for all
  std::map<std::vector<Rank>, std::int32_t> groups_;         // as they are listed
  std::map<std::vector<Rank>, std::int32_t> processGroups_;  // in ascending order
  std::map<Key, Vertex> rendezvous_;
  std::vector<Instance> instances_;
  std::vector<Vertex> vertexOf_;  // of each instance
  Vertex vertices_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace

std::vector<std::pair<ProgramId, NodeId>> nodesThatMayWait(const PlanIndex& planIndex,
                                                           UnionFind<std::uint32_t>& components) {
  const Plan& plan = planIndex.problem().plan;
  Edges edges;
  std::vector<char> cyclic(components.size(), 0);
  const auto wait = [&](std::uint32_t before, std::uint32_t after) {
    const Vertex from = components.find(before), to = components.find(after);
    if (from == to) cyclic[to] = 1;
    else edges.emplace_back(from, to);
  };
  std::uint32_t first = 0;
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    const Program& program = plan.programs[p];
    const Graph& graph = program.graph;
    Lists lists;
    for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (node.communication >= 0) {
        const auto after = [&](std::uint32_t before) { wait(before, first + n); };
        if (program.issueOrder && node.microbatch.isEach())
          after(first + n);  // for one microbatch after the other
        if (program.issueOrder || !node.microbatch.isOne()) lists.inAll(first + n, after);
        else lists.inOne(node.microbatch.number(), first + n, after);
      }
      if (program.issueOrder) continue;
      for (const Operand& operand : graph.in(node)) {
        if (!operand.present()) continue;
        const Microbatch wanted = wantedBy(graph, operand, node.microbatch);
        for (const Producer& producer : planIndex.producers(p, operand.tensor)) {
          const bool other =
              wanted.isOne() && producer.microbatch.isOne() && wanted != producer.microbatch;
          if (!other) wait(first + static_cast<std::uint32_t>(producer.node), first + n);
        }
      }
    }
    first += static_cast<std::uint32_t>(graph.nodes.size());
  }
  const std::vector<Vertex> component = componentsOf(components.size(), edges);
  for (const auto& [from, to] : edges) {
    if (component[from] == component[to]) cyclic[from] = cyclic[to] = 1;
  }
  std::vector<std::pair<ProgramId, NodeId>> nodes;
  std::uint32_t vertex = 0;
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    for (std::size_t n = 0; n < plan.programs[p].graph.nodes.size(); ++n) {
      if (cyclic[components.find(vertex++)])
        nodes.emplace_back(static_cast<std::int32_t>(p), static_cast<std::int32_t>(n));
    }
  }
  return nodes;
}

void checkDeadlock(const PlanIndex& planIndex,
                   const std::vector<std::pair<ProgramId, NodeId>>& nodes,
                   std::vector<Defect>& defects) {
  if (!nodes.empty()) Instances(planIndex, nodes).report(defects);
}

Defect dataCycle(const PlanIndex& planIndex, ProgramId program, NodeId node, Rank rank,
                 Microbatch microbatch) {
  Defect defect;
  defect.kind = DefectKind::kDeadlock;
  defect.nodes.push_back(planIndex.place(program, node));
  defect.message = defect.nodes.front().pointer + " (" + defect.nodes.front().op +
                   "): waits, through other operators, for its own result";
  defect.ranks = {rank};
  if (microbatch.isOne()) defect.microbatch = microbatch.number();
  return defect;
}

}  // namespace shardproof
