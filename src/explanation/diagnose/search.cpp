// SPDX-License-Identifier: Apache-2.0
#include "diagnose/search.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "ops/registry.h"
#include "shardproof/error.h"

namespace shardproof::diagnose {

namespace {

constexpr std::size_t kMostLines = 24;  // that are tried
constexpr std::size_t kMostBefore = 12;
constexpr std::size_t kMostTrials = 1500;
constexpr std::size_t kMostAfterSecond = 60;

// What was something of the model is that, or a multiple of it, behind such a node.
bool movesOrScales(const Node& node) {
  if (node.communication >= 0) return false;
  const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
  return op.traits.rearranges || (node.inCount == 1 && (op.name == "mul" || op.name == "div"));
}

}  // namespace

const Program& Search::program(NodeRef ref) const { return plan().plan.programs[ref.program]; }
const Node& Search::node(NodeRef ref) const { return program(ref).graph.nodes[ref.node]; }

std::optional<Search::Failing> Search::look(EntryId entry) {
  Failing f;
  try {
    f.slice = cutter_.cut(plan(), entry, kMostSliceNodes, true);
    f.numbers = std::make_unique<Numbers>(f.slice, model_, end_, Look::kRealsAndField);
  } catch (const Unsupported&) {
    return std::nullopt;
  } catch (const InputError&) {
    return std::nullopt;
  } catch (const std::runtime_error&) {  // of the executor: cannot run, out of time, too large
    return std::nullopt;
  }
  for (std::size_t c = 0; c < f.numbers->claims(); ++c)
    if (!f.numbers->holds(c)) f.claims.push_back(c);
  if (f.claims.empty()) return std::nullopt;
  f.one = {f.claims.front()};
  // Backward from what does not hold.
  const executor::Programs& programs = f.numbers->setup().programs;
  std::set<std::pair<std::int32_t, std::int32_t>> seen;
  std::vector<std::pair<std::int32_t, std::int32_t>> level;
  for (const std::size_t c : f.claims)
    for (const auto& part : f.numbers->claim(c).parts) {
      const std::pair tensor{programs.programOf(part.rank),
                             programs.layout(part.rank).tensorOfSlot[part.slot]};
      if (seen.insert(tensor).second) level.push_back(tensor);
    }
  std::set<NodeRef> listed;
  const auto& all = f.slice.problem->plan.programs;
  for (std::size_t distance = 0; !level.empty(); ++distance) {
    std::vector<std::pair<std::int32_t, std::int32_t>> next;
    const auto reach = [&](ProgramId p, NodeId n) {
      if (!listed.insert({p, n}).second) return false;
      f.nodes.push_back(f.slice.origin({p, n}));
      f.here.push_back({p, n});
      f.distance.push_back(distance);
      const Graph& g = all[p].graph;
      for (const Operand& o : g.in(g.nodes[n]))
        if (o.present() && seen.insert({p, o.tensor}).second) next.push_back({p, o.tensor});
      return true;
    };
    for (const auto& [p, t] : level) {
      const Graph& g = all[p].graph;
      for (std::size_t n = 0; n < g.nodes.size(); ++n) {
        const auto out = g.out(g.nodes[n]);
        if (std::find(out.begin(), out.end(), t) == out.end()) continue;
        if (!reach(ProgramId(p), NodeId(n)) || g.nodes[n].communication < 0) continue;
        const NameId comm = all[p].communications[g.nodes[n].communication].comm;
        for (std::size_t q = 0; q < all.size(); ++q)
          for (std::size_t m = 0; m < all[q].graph.nodes.size(); ++m) {
            const std::int32_t c = all[q].graph.nodes[m].communication;
            if (c >= 0 && all[q].communications[c].comm == comm) reach(ProgramId(q), NodeId(m));
          }
      }
    }
    level = std::move(next);
  }
  return f;
}

Search::Holds Search::holdsWith(EntryId entry, const Edit& edit) {
  ++trials_;
  std::map<std::int32_t, Program> before;
  for (const NodeRef ref : edit.nodes)
    before.try_emplace(ref.program, work_->plan.programs[ref.program]);
  Holds holds = Holds::kNot;
  try {
    std::vector<NodeRef> touched;
    if (apply(*work_, correspondence_, edit, &touched)) {
      const Slice slice = cutter_.cut(*work_, entry, kMostSliceNodes, false, touched);
      if (Numbers(slice, model_, end_, Look::kReals).allHold())
        holds = Numbers(slice, model_, end_, Look::kField).allHoldInField() ? Holds::kInBoth
                                                                            : Holds::kInReals;
    }
  } catch (const Unsupported&) {
  } catch (const InputError&) {
  } catch (const std::runtime_error&) {
  } catch (const std::logic_error&) {  // an attribute that the operator does not take
  }
  for (auto& [p, program] : before) work_->plan.programs[p] = std::move(program);
  return holds;
}

std::vector<Search::Site> Search::sites(const Failing& failing) const {
  std::vector<Site> sites;
  std::set<NodeRef> taken;
  const std::set<NodeRef> reaching(failing.nodes.begin(), failing.nodes.end());
  // Where it may go wrong, then the nearest.
  std::set<NodeRef> turning(failing.turning.begin(), failing.turning.end());
  std::set<std::pair<ProgramId, TensorId>> made;
  for (const NodeRef ref : failing.turning)
    for (const TensorId t : program(ref).graph.out(node(ref))) made.emplace(ref.program, t);
  for (const NodeRef ref : failing.nodes)
    for (const Operand& o : program(ref).graph.in(node(ref)))
      if (o.present() && made.contains({ref.program, o.tensor})) turning.insert(ref);
  const std::vector<NodeRef> earlier = before(failing);
  std::copy_if(earlier.begin(), earlier.end(), std::inserter(turning, turning.end()),
               [&](NodeRef ref) { return reaching.contains(ref); });
  std::vector<std::pair<NodeRef, std::size_t>> tried;
  for (std::size_t i = 0; i < failing.nodes.size(); ++i)
    tried.emplace_back(failing.nodes[i], failing.distance[i]);
  std::stable_partition(tried.begin(), tried.end(),
                        [&](const auto& t) { return turning.contains(t.first); });
  // What lineage speaks of is wrong less often than what nobody speaks of.
  for (const NodeRef ref : earlier)
    if (!reaching.contains(ref)) tried.emplace_back(ref, 0);
  for (const auto& [ref, distance] : tried) {
    if (taken.contains(ref) || image_.isAdded(ref)) continue;
    if (sites.size() >= kMostLines && reaching.contains(ref) && !turning.contains(ref)) continue;
    Site site{siteOf(plan(), correspondence_, ref), distance, {}, turning.contains(ref)};
    // All members of a collective are of its line.
    if (node(site.nodes.front()).communication >= 0) {
      const Program& own = program(site.nodes.front());
      const CommunicationSpec& spec = own.communications[node(site.nodes.front()).communication];
      for (const NodeRef other : messagesOf(spec.comm))
        if (program(other).communications[node(other).communication].kind == spec.kind &&
            std::find(site.nodes.begin(), site.nodes.end(), other) == site.nodes.end())
          site.nodes.push_back(other);
    }
    taken.insert(site.nodes.begin(), site.nodes.end());
    std::copy_if(site.nodes.begin(), site.nodes.end(), std::back_inserter(site.failing),
                 [&](NodeRef n) { return reaching.contains(n); });
    sites.push_back(std::move(site));
  }
  return sites;
}

Search::Producers Search::producers() const {
  Producers producers;
  for (const ProgramId p : firstIds<ProgramId>(plan().plan.programs.size())) {
    const Graph& g = plan().plan.programs[p].graph;
    for (const NodeId n : firstIds<NodeId>(g.nodes.size()))
      for (const TensorId t : g.out(g.nodes[n]))
        if (t.valid()) producers.emplace(std::pair(p, t), NodeRef{p, n});
  }
  return producers;
}

std::vector<NodeRef> Search::upstream(const Failing& failing) const {
  const Producers producers = this->producers();
  std::vector<NodeRef> found = failing.nodes;
  std::set<NodeRef> seen(found.begin(), found.end());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const NodeRef ref = found[i];
    const auto reach = [&](NodeRef other) {
      if (seen.insert(other).second) found.push_back(other);
    };
    for (const Operand& o : program(ref).graph.in(node(ref))) {
      const auto it = producers.find({ref.program, o.present() ? o.tensor : TensorId()});
      if (it != producers.end()) reach(it->second);
    }
    if (node(ref).communication < 0) continue;
    for (const NodeRef other :
         messagesOf(program(ref).communications[node(ref).communication].comm))
      reach(other);
  }
  return found;
}

std::vector<NodeRef> Search::before(const Failing& failing) const {
  // Also of what lineage gives: it may say of what was moved wrongly what it is.
  std::vector<NodeRef> ends = failing.turning;
  const Producers producers = this->producers();
  std::set<std::pair<ProgramId, TensorId>> made;
  for (const NodeRef ref : failing.nodes)
    for (const TensorId t : program(ref).graph.out(node(ref))) made.emplace(ref.program, t);
  for (const NodeRef ref : failing.nodes)
    for (const Operand& o : program(ref).graph.in(node(ref)))
      if (o.present() && !made.contains({ref.program, o.tensor})) {
        ends.push_back(ref);
        break;
      }
  std::set<NodeRef> seen;
  std::vector<NodeRef> found;
  for (std::size_t i = 0; i < ends.size() && found.size() < kMostBefore; ++i) {
    const NodeRef ref = ends[i];
    for (const Operand& o : program(ref).graph.in(node(ref))) {
      if (!o.present()) continue;
      const auto it = producers.find({ref.program, o.tensor});
      if (it == producers.end() || !seen.insert(it->second).second) continue;
      const Node& producer = node(it->second);
      if (producer.added < 0) found.push_back(it->second);
      if (producer.added >= 0 || movesOrScales(producer)) ends.push_back(it->second);
    }
  }
  return found;
}

std::optional<Edit> Search::fix(EntryId entry, const Failing& failing, const Match& found,
                                ProcessorClock::time_point until) {
  const std::vector<Site> all = sites(failing);
  std::size_t most = trials_ + kMostTrials;
  std::optional<Edit> second;  // holds in the reals only: what is tried next may be better
  const auto tryAll = [&](const std::vector<Edit>& edits) -> std::optional<Edit> {
    for (const Edit& edit : edits) {
      if (ProcessorClock::now() > until || trials_ >= most) return std::nullopt;
      const Holds holds = holdsWith(entry, edit);
      if (holds == Holds::kInBoth) return edit;
      if (holds == Holds::kNot || second) continue;
      second = edit;
      most = std::min(most, trials_ + kMostAfterSecond);
    }
    return std::nullopt;
  };
  if (auto edit = tryAll(odd(failing))) return edit;
  // A few of a kind at each line, then the next kind: what is likely and near comes first.
  using Proposer = std::function<void(const Site&, std::vector<Edit>&)>;
  const Proposer proposers[] = {
      [&](const Site& l, std::vector<Edit>& e) { suspicious(l, found, e); },
      [&](const Site& l, std::vector<Edit>& e) { messages(l, e); },
      [&](const Site& l, std::vector<Edit>& e) { microbatches(l, e); },
      [&](const Site& l, std::vector<Edit>& e) { strangers(l, found, e); },
      [&](const Site& l, std::vector<Edit>& e) { exchanges(l, e); },
      [&](const Site& l, std::vector<Edit>& e) { attributes(l, true, e); },
      [&](const Site& l, std::vector<Edit>& e) { terms(l, e); },
      [&](const Site& l, std::vector<Edit>& e) { late(l, e); },
      [&](const Site& l, std::vector<Edit>& e) { collectives(l, found, e); },
      [&](const Site& l, std::vector<Edit>& e) { factors(l, found, e); },
      [&](const Site& l, std::vector<Edit>& e) { scalars(l, found, true, e); },
      [&](const Site& l, std::vector<Edit>& e) { attributes(l, false, e); },
      [&](const Site& l, std::vector<Edit>& e) { skipped(l, found, e); },
      [&](const Site& l, std::vector<Edit>& e) { operands(l, Operands::kUnread, e); },
      [&](const Site& l, std::vector<Edit>& e) { operands(l, Operands::kNear, e); },
      [&](const Site& l, std::vector<Edit>& e) { scalars(l, found, false, e); },
      [&](const Site& l, std::vector<Edit>& e) { inserted(l, found, e); },
      [&](const Site& l, std::vector<Edit>& e) { operands(l, Operands::kAll, e); },
  };
  // All kinds where it may go wrong before any elsewhere, and before any where lineage speaks of
  // what is made.
  std::vector<Site> turning, others, given;
  for (const Site& site : all)
    (site.failing.empty() ? given : site.turning ? turning : others).push_back(site);
  const auto over = [&](const Proposer& propose,
                        const std::vector<Site>& some) -> std::optional<Edit> {
    for (const Site& site : some) {
      std::vector<Edit> edits;
      propose(site, edits);
      if (auto edit = tryAll(edits)) return edit;
      if (ProcessorClock::now() > until || trials_ >= most) break;
    }
    return std::nullopt;
  };
  for (const auto* some : {&turning, &others})
    for (const Proposer& propose : proposers)
      if (auto edit = over(propose, *some)) return edit;
  // A factor makes up for much that is wrong elsewhere.
  for (const auto* some : {&turning, &others})
    if (auto edit =
            over([&](const Site& l, std::vector<Edit>& e) { insertedFactors(l, found, e); }, *some))
      return edit;
  for (const Proposer& propose : proposers)
    if (auto edit = over(propose, given)) return edit;
  return second;
}

}  // namespace shardproof::diagnose
