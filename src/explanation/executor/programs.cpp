// SPDX-License-Identifier: Apache-2.0
// Order. Within one microbatch nodes are listed in the order in which they run, nodes that run once
// are part of every microbatch's list. Computation may run as soon as what it reads is there:
// reading what the same list produces only later is found before. Communications of a list are
// issued one after the other, each when the one before is done. In a program in issue order there
// is one list, of everything.
#include "executor/programs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "executor/value.h"
#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::executor {

Mesh::Mesh(const Plan& plan) : sizes_(plan.mesh.size()), strides_(plan.mesh.size()) {
  for (std::size_t a = plan.mesh.size(); a-- > 0;) {
    sizes_[a] = plan.mesh[a].size;
    strides_[a] = ranks_;
    ranks_ *= sizes_[a];
  }
}

Rank Mesh::moved(Rank rank, const Coordinates& to) const {
  for (const auto& [axis, c] : to) rank = Rank(moved(rank, static_cast<std::size_t>(axis), c));
  return rank;
}

bool Mesh::at(Rank rank, const Coordinates& where) const {
  return std::all_of(where.begin(), where.end(), [&](const auto& c) {
    return coordinate(rank, static_cast<std::size_t>(c.first)) == c.second;
  });
}

const char* nameOf(Communication kind) {
  switch (kind) {
    case Communication::kAllReduce:
      return "all_reduce";
    case Communication::kAllGather:
      return "all_gather";
    case Communication::kReduceScatter:
      return "reduce_scatter";
    case Communication::kAllToAll:
      return "all_to_all";
    case Communication::kBroadcast:
      return "broadcast";
    case Communication::kSend:
      return "send";
    case Communication::kReceive:
      return "recv";
    case Communication::kReduce:
      return "reduce";
    case Communication::kGather:
      return "gather";
    case Communication::kScatter:
      return "scatter";
    case Communication::kBarrier:
      return "barrier";
    case Communication::kPermute:
      return "collective_permute";
    case Communication::kPart:
    case Communication::kNone:
      break;
  }
  return "none";
}

Programs::Programs(const Problem& problem) : problem_(problem), mesh_(problem.plan) {
  const Plan& plan = problem.plan;
  if (plan.attributesMove() || plan.hasStretches())
    throw std::logic_error(
        "a plan is executed whose attributes move with coordinates, or that names stretches");
  programOf_.assign(at(mesh_.ranks()), ProgramId());
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    for (const Rank r : firstIds<Rank>(mesh_.ranks()))
      if (mesh_.at(r, plan.programs[p].at)) programOf_[r] = ProgramId(p);
  }
  for (const Rank r : firstIds<Rank>(mesh_.ranks()))
    if (programOf_[r] < 0) throw CannotRun(rankText(r) + " has no program");
  layouts_.resize(plan.programs.size());
  for (std::size_t p = 0; p < plan.programs.size(); ++p) layOut(ProgramId(p));
  firstSlotOfRank_ = firstInstance_ = {0};
  for (const Rank r : firstIds<Rank>(mesh_.ranks())) {
    firstSlotOfRank_.push_back(firstSlotOfRank_.back() + layout(r).slots());
    firstInstance_.push_back(firstInstance_.back() +
                             static_cast<std::int64_t>(layout(r).instances.size()));
  }
  meet();
}

const Node& Programs::node(Rank rank, std::int32_t instance) const {
  return program(rank).graph.nodes[layout(rank).instances[instance].node];
}

const CommunicationSpec* Programs::communication(Rank rank, std::int32_t instance) const {
  const Node& n = node(rank, instance);
  return n.communication < 0 ? nullptr : &program(rank).communications[n.communication];
}

std::int32_t Programs::operandSlot(Rank rank, std::int32_t instance, std::size_t operand) const {
  const Graph& graph = program(rank).graph;
  const Instance& i = layout(rank).instances[instance];
  const Operand& o = graph.in(graph.nodes[i.node])[operand];
  return o.present() ? slotOf(layout(rank), graph, o.tensor,
                              o.microbatch.isOne() ? o.microbatch.number() : i.microbatch)
                     : -1;
}

std::int32_t Programs::resultSlot(Rank rank, std::int32_t instance, std::size_t result) const {
  const Graph& graph = program(rank).graph;
  const Instance& i = layout(rank).instances[instance];
  const TensorId t = graph.out(graph.nodes[i.node])[result];
  return t >= 0 ? slotOf(layout(rank), graph, t, i.microbatch) : -1;
}

std::string Programs::rankText(Rank rank) const {
  std::string s = "rank " + std::to_string(rank);
  if (mesh_.axes() == 0) return s;
  for (std::size_t a = 0; a < mesh_.axes(); ++a)
    s += (a == 0 ? " (" : " ") + problem_.plan.mesh[a].name + "=" +
         std::to_string(mesh_.coordinate(rank, a));
  return s + ")";
}

std::string Programs::place(Rank rank, std::int32_t instance) const {
  const Instance& i = layout(rank).instances[instance];
  const CommunicationSpec* spec = communication(rank, instance);
  const std::string op = spec != nullptr
                             ? nameOf(spec->kind)
                             : ops::Registry::instance().at(node(rank, instance).op).name;
  return problem_.plan.nodePointer(programOf(rank), NodeId(i.node)) + " (" + op + ") on " +
         rankText(rank) + (i.microbatch >= 0 ? ", microbatch " + std::to_string(i.microbatch) : "");
}

void Programs::layOut(ProgramId p) {
  const Program& program = problem_.plan.programs[p];
  const Graph& graph = program.graph;
  const std::int32_t microbatches = problem_.plan.microbatches;
  ProgramLayout& layout = layouts_[p];
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    layout.firstSlot.push_back(layout.slots());
    layout.tensorOfSlot.insert(layout.tensorOfSlot.end(),
                               graph.tensors[t].perMicrobatch ? at(microbatches) : 1, TensorId(t));
    layout.tensorByName.emplace(graph.tensors[t].name, static_cast<std::int32_t>(t));
  }
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
    const Microbatch mb = graph.nodes[n].microbatch;
    for (std::int32_t m = 0; m < (mb.isEach() ? microbatches : 1); ++m)
      layout.instances.push_back({n, mb.isEach() ? m : mb.isOne() ? mb.number() : -1});
  }
  // One microbatch after the other needs the least memory; what runs once goes as soon as it can.
  if (!program.issueOrder)
    std::stable_sort(
        layout.instances.begin(), layout.instances.end(),
        [](const Instance& a, const Instance& b) { return a.microbatch < b.microbatch; });

  std::vector<std::int32_t> producers(layout.tensorOfSlot.size(), -1);
  std::vector<std::vector<std::int32_t>> instancesOf(graph.nodes.size());
  for (std::size_t i = 0; i < layout.instances.size(); ++i) {
    const Instance& instance = layout.instances[i];
    instancesOf[instance.node].push_back(static_cast<std::int32_t>(i));
    for (const TensorId t : graph.out(graph.nodes[instance.node])) {
      if (t < 0) continue;
      const Tensor& tensor = graph.tensors[t];
      std::int32_t& producer = producers[slotOf(layout, graph, t, instance.microbatch)];
      const std::string what = problem_.plan.nodePointer(p, NodeId(instance.node)) +
                               ": local tensor '" + problem_.names.text(tensor.name) + "' ";
      if (tensor.kind != TensorKind::kProduced)
        throw CannotRun(what + "is produced, although it is an input, a parameter or a constant");
      if (producer >= 0)
        throw CannotRun(what + "is produced twice" +
                        (instance.microbatch >= 0
                             ? ", also for microbatch " + std::to_string(instance.microbatch)
                             : ""));
      producer = static_cast<std::int32_t>(i);
    }
  }
  checkReads(p, producers, instancesOf);
  for (const std::int32_t producer : producers) layout.produced.push_back(producer >= 0);

  // Communications with a handle hold up nothing but what reads them, what waits for them, and (see
  // meet()) collectives of the same group.
  std::map<NameId, std::int32_t> begun;
  std::vector<char> begins(layout.instances.size(), 0);
  for (const auto& [n, handle] : program.asynchrony.handles) {
    begun[handle] = instancesOf[n].front();
    begins[at(instancesOf[n].front())] = 1;
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;
  layout.reads.assign(layout.tensorOfSlot.size(), 0);
  for (std::size_t i = 0; i < layout.instances.size(); ++i) {
    const Instance& instance = layout.instances[i];
    for (const Operand& o : graph.in(graph.nodes[instance.node])) {
      if (!o.present()) continue;
      const std::int32_t slot =
          slotOf(layout, graph, o.tensor,
                 o.microbatch.isOne() ? o.microbatch.number() : instance.microbatch);
      ++layout.reads[slot];
      if (producers[slot] >= 0 && (!program.issueOrder || begins[at(producers[slot])] != 0))
        edges.emplace_back(producers[slot], static_cast<std::int32_t>(i));
    }
  }
  if (!begun.empty()) {
    orderAround(program, instancesOf, begun, begins, edges);
  } else if (program.issueOrder) {
    for (std::size_t i = 1; i < layout.instances.size(); ++i)
      edges.emplace_back(static_cast<std::int32_t>(i) - 1, static_cast<std::int32_t>(i));
  } else {
    std::vector<std::pair<std::int32_t, std::int32_t>> issued;
    for (std::int32_t m = 0; m < microbatches; ++m) {
      std::int32_t before = -1;
      for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
        if (graph.nodes[n].communication < 0) continue;
        for (const std::int32_t i : instancesOf[n]) {
          const std::int32_t own = layout.instances[i].microbatch;
          if (own >= 0 && own != m) continue;
          if (before >= 0) issued.emplace_back(before, i);
          before = i;
        }
      }
    }
    std::sort(issued.begin(), issued.end());
    issued.erase(std::unique(issued.begin(), issued.end()), issued.end());
    edges.insert(edges.end(), issued.begin(), issued.end());
  }
  layout.waitsFor.assign(layout.instances.size(), 0);
  layout.firstNext.assign(layout.instances.size() + 1, 0);
  for (const auto& [from, to] : edges) {
    ++layout.waitsFor[to];
    ++layout.firstNext[at(from) + 1];
  }
  std::partial_sum(layout.firstNext.begin(), layout.firstNext.end(), layout.firstNext.begin());
  layout.next.resize(edges.size());
  std::vector<std::uint32_t> position(layout.firstNext.begin(), layout.firstNext.end() - 1);
  for (const auto& [from, to] : edges) layout.next[position[from]++] = to;
}

// The order of a program whose nodes run as they stand (or, without issue order, whose
// communications do), where some communications are begun only.
void Programs::orderAround(const Program& program,
                           const std::vector<std::vector<std::int32_t>>& instancesOf,
                           const std::map<NameId, std::int32_t>& begun,
                           const std::vector<char>& begins,
                           std::vector<std::pair<std::int32_t, std::int32_t>>& edges) {
  std::int32_t before = -1;
  std::vector<std::int32_t> ended;  // what was waited for since `before`
  const auto& waits = program.asynchrony.waits;
  std::size_t nextWait = 0;
  for (std::size_t n = 0; n < program.graph.nodes.size(); ++n) {
    for (; nextWait < waits.size() && waits[nextWait].first.index() == n; ++nextWait)
      if (const auto it = begun.find(waits[nextWait].second); it != begun.end())
        ended.push_back(it->second);
    if (!program.issueOrder && program.graph.nodes[n].communication < 0) continue;
    for (const std::int32_t i : instancesOf[n]) {
      if (before >= 0) edges.emplace_back(before, i);
      for (const std::int32_t e : ended) edges.emplace_back(e, i);
      if (begins[at(i)] != 0) continue;
      before = i;
      ended.clear();
    }
  }
}

void Programs::checkReads(ProgramId p, const std::vector<std::int32_t>& producers,
                          const std::vector<std::vector<std::int32_t>>& instancesOf) const {
  const Program& program = problem_.plan.programs[p];
  const Graph& graph = program.graph;
  const ProgramLayout& layout = layouts_[p];
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const std::int32_t i : instancesOf[n]) {
      const Instance& reader = layout.instances[i];
      for (const Operand& o : graph.in(graph.nodes[n])) {
        if (!o.present() || graph.tensors[o.tensor].kind != TensorKind::kProduced) continue;
        const std::int32_t producer =
            producers[slotOf(layout, graph, o.tensor,
                             o.microbatch.isOne() ? o.microbatch.number() : reader.microbatch)];
        const auto fail = [&](const std::string& why) {
          throw CannotRun(
              problem_.plan.nodePointer(p, NodeId(n)) + ": reads local tensor '" +
              problem_.names.text(graph.tensors[o.tensor].name) + "'" +
              (o.microbatch.isOne()     ? " of microbatch " + std::to_string(o.microbatch.number())
               : reader.microbatch >= 0 ? " of microbatch " + std::to_string(reader.microbatch)
                                        : "") +
              ", which " + why);
        };
        if (producer < 0) fail("no node produces");
        const Instance& made = layout.instances[producer];
        const bool oneList = program.issueOrder || made.microbatch < 0 || reader.microbatch < 0 ||
                             made.microbatch == reader.microbatch;
        if (oneList && made.node >= static_cast<std::int32_t>(n))
          fail("is produced only later, by " + problem_.plan.nodePointer(p, NodeId(made.node)));
      }
    }
  }
}

std::vector<Rank> Programs::groupOf(Rank rank, const CommunicationSpec& spec) const {
  std::vector<Rank> group;
  if (!spec.groupAt.empty()) {
    for (const Coordinates& where : spec.groupAt) group.push_back(Rank(mesh_.moved(rank, where)));
    return group;
  }
  group = {rank};
  for (const std::int32_t axis : spec.groupAxes) {
    std::vector<Rank> wider;
    for (const Rank r : group)
      for (std::int64_t c = 0; c < mesh_.size(at(axis)); ++c)
        wider.push_back(Rank(mesh_.moved(r, at(axis), c)));
    group = std::move(wider);
  }
  std::sort(group.begin(), group.end());
  return group;
}

void Programs::meet() {
  // What makes communications one: comm, kind, tag or microbatch, and the group; of messages sender
  // and receiver.
  using Key = std::tuple<std::int32_t, Communication, bool, std::int64_t, std::vector<Rank>>;
  std::map<Key, std::int32_t> keys;
  rendezvousOf_.assign(at(firstInstance_.back()), -1);
  for (const Rank rank : firstIds<Rank>(mesh_.ranks())) {
    const ProgramLayout& own = layout(rank);
    // A program with handles: its collectives, by who takes part. Its instances are in file order.
    const bool begins = !program(rank).asynchrony.handles.empty();
    std::map<std::vector<Rank>, std::int32_t> lastOfGroup;
    for (std::size_t i = 0; i < own.instances.size(); ++i) {
      const auto instance = static_cast<std::int32_t>(i);
      const CommunicationSpec* spec = communication(rank, instance);
      if (spec == nullptr) continue;
      const bool sends = spec->kind == Communication::kSend,
                 message = sends || spec->kind == Communication::kReceive;
      std::vector<Rank> group;
      if (message) {
        const Rank peer = mesh_.moved(rank, spec->peer);
        if (peer == rank)
          throw CannotRun(place(rank, instance) + ": communicates with its own rank");
        group = sends ? std::vector{rank, peer} : std::vector{peer, rank};
      } else {
        group = groupOf(rank, *spec);
        if (std::find(group.begin(), group.end(), rank) == group.end())
          throw CannotRun(place(rank, instance) + ": the rank is not in the group that it lists");
      }
      std::vector<Rank> members = group;
      if (!message) std::sort(members.begin(), members.end());
      if (begins && !message) {
        const auto [last, first] = lastOfGroup.emplace(members, instance);
        if (!first) groupOrder_[rank].emplace_back(std::exchange(last->second, instance), instance);
      }
      const Communication kind = message ? Communication::kSend : spec->kind;
      const Key key{spec->comm.value, kind, spec->tag.has_value(),
                    spec->tag ? *spec->tag : own.instances[i].microbatch, members};
      const auto [it, added] = keys.emplace(key, static_cast<std::int32_t>(rendezvous_.size()));
      if (added) {
        rendezvous_.emplace_back();
        for (const Rank r : group) rendezvous_.back().members.push_back({r, -1});
      }
      Rendezvous& rendezvous = rendezvous_[it->second];
      for (std::size_t g = 0; g < group.size(); ++g) {
        if (rendezvous.members[g].rank != group[g])
          throw CannotRun(place(rank, instance) +
                          ": lists the group in another order than another member");
        if (group[g] != rank) continue;
        if (rendezvous.members[g].instance >= 0)
          throw CannotRun(
              place(rank, instance) + ": joins communication '" + problem_.names.text(spec->comm) +
              "' twice, also by " +
              problem_.plan.nodePointer(
                  programOf(rank), NodeId(own.instances[rendezvous.members[g].instance].node)));
        rendezvous.members[g].instance = instance;
      }
      rendezvousOf_[firstInstance_[rank] + instance] = it->second;
    }
  }
  for (auto& [rank, pairs] : groupOrder_) std::sort(pairs.begin(), pairs.end());
  for (const Rendezvous& rendezvous : rendezvous_) checkRendezvous(rendezvous);
}

void Programs::checkRendezvous(const Rendezvous& rendezvous) const {
  const auto joined = std::find_if(rendezvous.members.begin(), rendezvous.members.end(),
                                   [](const Member& m) { return m.instance >= 0; });
  const CommunicationSpec& first = *communication(joined->rank, joined->instance);
  for (const Member& m : rendezvous.members) {
    if (m.instance < 0)
      throw CannotRun(place(joined->rank, joined->instance) + ": " + rankText(m.rank) +
                      " never joins communication '" + problem_.names.text(first.comm) + "'");
    const CommunicationSpec& spec = *communication(m.rank, m.instance);
    const auto fail = [&](const std::string& why) {
      throw CannotRun(place(m.rank, m.instance) + ": " + why + " than " +
                      place(joined->rank, joined->instance));
    };
    if (spec.reduction != first.reduction) fail("reduces otherwise");
    if (spec.dim != first.dim || spec.odim != first.odim) fail("works along another dimension");
    if (spec.sizes != first.sizes) fail("gives other sizes of the pieces");
    if (spec.pairs != first.pairs) fail("names other pairs");
    const bool gives =
                   spec.kind == Communication::kBroadcast || spec.kind == Communication::kScatter,
               takes = spec.kind == Communication::kReduce || spec.kind == Communication::kGather;
    if (!gives && !takes) continue;
    const std::int64_t root = mesh_.moved(m.rank, spec.peer);
    if (root != mesh_.moved(joined->rank, first.peer)) fail("names another root");
    if (std::none_of(rendezvous.members.begin(), rendezvous.members.end(),
                     [&](const Member& o) { return o.rank == root; }))
      throw CannotRun(place(m.rank, m.instance) + ": the root is not in the group");
    const Node& n = node(m.rank, m.instance);
    const bool isRoot = m.rank == root;
    // A root gives and does not get, except for its own piece of what it scatters; or it gets what
    // all give.
    const bool operand = takes || isRoot,
               result = takes ? isRoot : !isRoot || spec.kind == Communication::kScatter;
    if ((n.inCount == 1) != operand || (n.outCount == 1) != result)
      throw CannotRun(place(m.rank, m.instance) + ": " +
                      (isRoot ? "the root of a " : "who is not the root of a ") +
                      nameOf(spec.kind) + " has " + (operand ? "one" : "no") + " operand and " +
                      (result ? "one" : "no") + " result");
  }
}

}  // namespace shardproof::executor
