// SPDX-License-Identifier: Apache-2.0
#include "diagnose/slice.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "plan/mesh.h"
#include "shardproof/error.h"
#include "util/index.h"

namespace shardproof::diagnose {

namespace {

using ProgramTensor = std::pair<ProgramId, TensorId>;  // program and tensor
using EntryShard = std::pair<EntryId, std::int32_t>;   // entry and shard
using Instance = std::pair<Rank, std::int32_t>;        // rank and microbatch

class Cut {
 public:
  // `inside`: only lineage that comes before the entry; otherwise other lineage as well, but for
  // what speaks of these local tensors.
  // `changed`: nodes; lineage of what is computed from their results counts for nothing.
  Cut(const Image& image, const Problem& plan, EntryId entry, std::size_t mostNodes,
      const std::set<ProgramTensor>* inside, const std::set<EntryId>& ignored,
      const std::vector<NodeRef>& changed)
      : from_(plan),
        mesh_(plan.plan.mesh),
        entry_(entry),
        mostNodes_(mostNodes),
        inside_(inside),
        late_(plan.plan.lineage.size(), 0) {
    for (const Program& program : plan.plan.programs) {
      byName_.emplace_back();
      producers_.emplace_back(program.graph.tensors.size());
      for (const TensorId t : firstIds<TensorId>(program.graph.tensors.size()))
        byName_.back().emplace(program.graph.tensors[t].name, t);
      for (const NodeId n : firstIds<NodeId>(program.graph.nodes.size())) {
        const Node& node = program.graph.nodes[n];
        for (const TensorId t : program.graph.out(node))
          if (t >= 0) producers_.back()[t].push_back(n);
        if (node.communication >= 0)
          byComm_[program.communications[node.communication].comm].push_back(
              {ProgramId(byName_.size() - 1), n});
      }
    }
    programOf_.assign(at(mesh_.ranks()), ProgramId(0));
    for (const ProgramId p : firstIds<ProgramId>(plan.plan.programs.size()))
      for (const Rank r : firstIds<Rank>(mesh_.ranks()))
        if (agrees(r, plan.plan.programs[p].at)) programOf_[r] = p;
    const auto& lineage = plan.plan.lineage;
    for (const EntryId e : firstIds<EntryId>(lineage.size())) {
      if (e == entry || ignored.contains(e)) continue;
      late_[e] = !isGiven(lineage[e].role) && !image.before(e, entry);
      if (late_[e] && (!inside || lineage[e].tensor == lineage[entry].tensor)) continue;
      for (std::size_t s = 0; s < lineage[e].shards.size(); ++s)
        for (const Part& part : lineage[e].shards[s].parts)
          mentions_[part.local].push_back({e, static_cast<std::int32_t>(s)});
    }
    if (!changed.empty()) follow(changed);
  }

  Slice run() {
    while (!walk()) {
    }
    return build();
  }

  // What nodes of the slice compute. To be called after run().
  std::set<ProgramTensor> computed() const {
    std::set<ProgramTensor> result;
    for (const ProgramTensor& f : needed_) {
      const auto it = given_.find(f);
      if (it == given_.end() || it->second.size() < instances(f)) result.insert(f);
    }
    return result;
  }

 private:
  bool agrees(Rank rank, const Coordinates& where) const {
    return std::all_of(where.begin(), where.end(),
                       [&](const auto& c) { return mesh_.coordinate(rank, c.first) == c.second; });
  }
  const Graph& graph(ProgramId p) const { return from_.plan.programs[p].graph; }

  // What depends on these nodes.
  void follow(const std::vector<NodeRef>& changed) {
    std::map<ProgramTensor, std::vector<NodeRef>> readers;
    for (const ProgramId p : firstIds<ProgramId>(from_.plan.programs.size()))
      for (const NodeId n : firstIds<NodeId>(graph(p).nodes.size()))
        for (const Operand& o : graph(p).in(graph(p).nodes[n]))
          if (o.present()) readers[{p, o.tensor}].push_back({p, n});
    std::vector<NodeRef> todo = changed;
    std::set<NodeRef> seen(todo.begin(), todo.end());
    const auto reach = [&](NodeRef ref) {
      if (seen.insert(ref).second) todo.push_back(ref);
    };
    while (!todo.empty()) {
      const NodeRef ref = todo.back();
      todo.pop_back();
      const Node& node = graph(ref.program).nodes[ref.node];
      if (node.communication >= 0) {
        const Program& program = from_.plan.programs[ref.program];
        for (const NodeRef other : byComm_[program.communications[node.communication].comm])
          reach(other);
      }
      for (const TensorId t : graph(ref.program).out(node)) {
        if (!t.valid() || !changed_.insert({ref.program, t}).second) continue;
        for (const NodeRef reader : readers[{ref.program, t}]) reach(reader);
      }
    }
  }

  // Instances of the local tensors that a shard speaks of, by program and tensor.
  std::map<ProgramTensor, std::set<Instance>> covers(EntryShard place) const {
    std::map<ProgramTensor, std::set<Instance>> found;
    for (const Part& part : from_.plan.lineage[place.first].shards[place.second].parts) {
      for (const Rank r : firstIds<Rank>(mesh_.ranks())) {
        if (!agrees(r, part.at)) continue;
        const ProgramId p = programOf_[r];
        const auto it = byName_[p].find(part.local);
        if (it == byName_[p].end()) continue;
        auto& of = found[{p, it->second}];
        if (!graph(p).tensors[it->second].perMicrobatch) of.insert({r, -1});
        else if (part.microbatch.isOne()) of.insert({r, part.microbatch.number()});
        else
          for (std::int32_t m = 0; m < from_.plan.microbatches; ++m) of.insert({r, m});
      }
    }
    return found;
  }

  std::size_t instances(ProgramTensor f) const {
    std::size_t ranks = 0;
    for (const ProgramId p : programOf_) ranks += p == f.first;
    return ranks *
           (graph(f.first).tensors[f.second].perMicrobatch ? at(from_.plan.microbatches) : 1);
  }

  // Whether lineage gives all instances of the tensor their values; takes what is needed for that.
  bool bounded(ProgramTensor f) {
    if (given_[f].size() == instances(f)) return true;
    const auto it = mentions_.find(graph(f.first).tensors[f.second].name);
    if (it == mentions_.end()) return false;
    const auto before = given_;
    const auto chosenBefore = chosen_;
    for (const bool sums : {false, true}) {
      for (const EntryShard& place : it->second) {
        const Shard& shard = from_.plan.lineage[place.first].shards[place.second];
        const bool isSum = shard.parts.size() > 1 || !shard.sum.empty();
        if (isSum != sums || chosen_.contains(place) || banned_.contains(place)) continue;
        const auto more = covers(place);
        if (!more.contains(f)) continue;
        if (!changed_.empty() && std::any_of(more.begin(), more.end(), [&](const auto& of) {
              return changed_.contains(of.first);
            }))
          continue;
        if (late_[place.first] && std::any_of(more.begin(), more.end(), [&](const auto& of) {
              return inside_->contains(of.first);
            }))
          continue;
        bool overlaps = false;
        for (const auto& [tensor, set] : more)
          for (const Instance& i : set) overlaps = overlaps || given_[tensor].contains(i);
        if (overlaps) continue;
        for (const auto& [tensor, set] : more) given_[tensor].insert(set.begin(), set.end());
        chosen_.insert(place);
        if (given_[f].size() == instances(f)) return true;
      }
    }
    given_ = before;
    chosen_ = chosenBefore;
    return false;
  }

  // False: a shard was taken that gives values to a part of a tensor that is computed otherwise;
  // once more without it.
  bool walk() {
    needed_.clear();
    nodes_.clear();
    given_.clear();
    chosen_.clear();
    std::vector<ProgramTensor> todo;
    const auto need = [&](ProgramTensor f) {
      if (needed_.insert(f).second) todo.push_back(f);
    };
    for (std::size_t s = 0; s < from_.plan.lineage[entry_].shards.size(); ++s)
      for (const auto& [tensor, set] : covers(EntryShard(entry_, s))) need(tensor);
    const auto take = [&](NodeRef ref) {
      if (!nodes_.insert(ref).second) return;
      if (nodes_.size() > mostNodes_) throw Unsupported("the stage has too many operators");
      const Graph& g = graph(ref.program);
      for (const Operand& o : g.in(g.nodes[ref.node]))
        if (o.present()) need({ref.program, o.tensor});
    };
    while (!todo.empty()) {
      const ProgramTensor f = todo.back();
      todo.pop_back();
      const Tensor& tensor = graph(f.first).tensors[f.second];
      if (tensor.kind == TensorKind::kConstant) continue;
      if (bounded(f) || tensor.kind != TensorKind::kProduced) continue;
      for (const NodeId n : producers_[f.first][f.second]) {
        take({f.first, n});
        const Node& node = graph(f.first).nodes[n];
        if (node.communication < 0) continue;
        const Program& program = from_.plan.programs[f.first];
        for (const NodeRef other : byComm_[program.communications[node.communication].comm])
          take(other);
      }
    }
    std::erase_if(given_, [](const auto& entry) { return entry.second.empty(); });
    for (const auto& [tensor, set] : given_) {
      if (!needed_.contains(tensor) || set.size() == instances(tensor) ||
          graph(tensor.first).tensors[tensor.second].kind != TensorKind::kProduced)
        continue;
      for (const EntryShard& place : chosen_)
        if (covers(place).contains(tensor)) banned_.insert(place);
      return false;
    }
    // Results of the nodes that were taken, also those that nobody here reads.
    for (const NodeRef ref : nodes_)
      for (const TensorId t : graph(ref.program).out(graph(ref.program).nodes[ref.node]))
        if (t >= 0) needed_.insert({ref.program, t});
    return true;
  }

  Slice build() {
    Slice slice;
    slice.problem = std::make_unique<Problem>();
    Problem& to = *slice.problem;
    spareNames_ = &to.names;
    to.attributes = from_.attributes;
    to.model = from_.model;
    const auto name = [&](NameId id) {
      return id.valid() ? to.names.intern(from_.names.text(id)) : id;
    };
    for (Tensor& t : to.model.graph.tensors) {
      t.name = name(t.name);
      t.gradientOf = name(t.gradientOf);
    }
    for (Node& n : to.model.graph.nodes) n.location = NameId();
    to.plan.file = from_.plan.file;
    to.plan.mesh = from_.plan.mesh;
    to.plan.microbatches = from_.plan.microbatches;
    std::set<ProgramTensor> bound;
    for (const auto& [tensor, set] : given_) bound.insert(tensor);
    for (std::size_t p = 0; p < from_.plan.programs.size(); ++p) {
      to.plan.programs.emplace_back();
      slice.nodeOf.emplace_back();
      build(ProgramId(p), bound, name, to.plan.programs.back(), slice.nodeOf.back());
    }
    const auto add = [&](std::int32_t e, Role role, const std::vector<std::int32_t>& shards) {
      const LineageEntry& entry = from_.plan.lineage[e];
      LineageEntry made{entry.tensor, role, {}};
      for (const std::int32_t s : shards) {
        made.shards.push_back(entry.shards[s]);
        for (Part& part : made.shards.back().parts) part.local = name(part.local);
      }
      to.plan.lineage.push_back(std::move(made));
      slice.entryOf.push_back(EntryId(e));
    };
    std::vector<std::int32_t> all;
    for (std::size_t s = 0; s < from_.plan.lineage[entry_].shards.size(); ++s)
      all.push_back(static_cast<std::int32_t>(s));
    add(entry_, Role::kCutPoint, all);
    std::map<EntryId, std::vector<std::int32_t>> byEntry;
    for (const EntryShard& place : chosen_) byEntry[place.first].push_back(place.second);
    for (const auto& [e, shards] : byEntry) add(e, Role::kInput, shards);
    return slice;
  }

  template <class Name>
  void build(ProgramId p, const std::set<ProgramTensor>& bound, const Name& name, Program& to,
             std::vector<NodeId>& nodeOf) {
    const Program& from = from_.plan.programs[p];
    to.at = from.at;
    to.issueOrder = from.issueOrder;
    to.communications = from.communications;
    for (CommunicationSpec& spec : to.communications) spec.comm = name(spec.comm);
    to.graph.constants = from.graph.constants;
    std::map<TensorId, TensorId> tensors;
    const auto tensor = [&](TensorId t) {
      const auto [it, added] =
          tensors.emplace(t, static_cast<std::int32_t>(to.graph.tensors.size()));
      if (!added) return it->second;
      Tensor made = from.graph.tensors[t];
      made.name = name(made.name);
      if (bound.contains({p, t}) && made.kind == TensorKind::kProduced)
        made.kind = TensorKind::kInput;
      to.graph.tensors.push_back(made);
      return it->second;
    };
    for (const ProgramTensor& f : needed_)
      if (f.first == p) tensor(f.second);
    for (const ProgramTensor& f : bound)
      if (f.first == p) tensor(f.second);
    for (const NodeRef ref : nodes_) {
      if (ref.program != p) continue;
      Node node = from.graph.nodes[ref.node];
      const auto out = from.graph.out(node);
      const auto in = from.graph.in(node);
      node.location = NameId();
      node.firstIn = static_cast<std::uint32_t>(to.graph.operands.size());
      for (Operand o : in) {
        if (o.present()) o.tensor = TensorId(tensor(o.tensor));
        to.graph.operands.push_back(o);
      }
      node.firstOut = static_cast<std::uint32_t>(to.graph.results.size());
      for (const TensorId t : out) {
        // What lineage gives is not computed as well.
        const bool wanted = t >= 0 && !(bound.contains({p, t}) &&
                                        from.graph.tensors[t].kind == TensorKind::kProduced);
        if (!wanted && t >= 0 && node.communication >= 0) {
          Tensor spare = from.graph.tensors[t];  // a member's result that nobody here needs
          spare.name = spareName(spare.name, ref);
          to.graph.results.push_back(TensorId(to.graph.tensors.size()));
          to.graph.tensors.push_back(spare);
        } else {
          to.graph.results.push_back(TensorId(wanted ? tensor(t) : -1));
        }
      }
      nodeOf.push_back(ref.node);
      to.graph.nodes.push_back(node);
    }
    for (const DrawnMask& mask : from.graph.drawnMasks) {
      const auto it = std::find(nodeOf.begin(), nodeOf.end(), mask.node);
      if (it == nodeOf.end()) continue;
      to.graph.drawnMasks.push_back({NodeId(it - nodeOf.begin()), mask.attributes});
    }
  }

  NameId spareName(NameId original, NodeRef ref) {
    return spareNames_->intern(from_.names.text(original) + " of node " + std::to_string(ref.node));
  }

  const Problem& from_;
  const MeshView mesh_;
  const std::int32_t entry_;
  const std::size_t mostNodes_;
  const std::set<ProgramTensor>* inside_;
  std::vector<char> late_;  // by entry: it comes after the claim
  std::vector<std::map<NameId, TensorId>> byName_;
  std::vector<std::vector<std::vector<NodeId>>> producers_;
  std::map<NameId, std::vector<NodeRef>> byComm_;
  std::vector<ProgramId> programOf_;
  std::map<NameId, std::vector<EntryShard>> mentions_;
  std::set<ProgramTensor> changed_;  // what depends on changed nodes
  std::set<ProgramTensor> needed_;
  std::set<NodeRef> nodes_;
  std::map<ProgramTensor, std::set<Instance>> given_;
  std::set<EntryShard> chosen_, banned_;
  Names* spareNames_ = nullptr;
};

}  // namespace

std::size_t Slice::nodes() const {
  std::size_t n = 0;
  for (const auto& of : nodeOf) n += of.size();
  return n;
}

Slice SliceCutter::cut(const Problem& plan, EntryId entry, std::size_t mostNodes, bool ordered,
                       const std::vector<NodeRef>& changed) const {
  if (ordered) {
    Cut cut(image_, plan, entry, mostNodes, nullptr, ignored_, changed);
    Slice slice = cut.run();
    if (&plan == &image_.problem()) computed_.try_emplace(entry, cut.computed());
    return slice;
  }
  if (!computed_.contains(entry)) this->cut(image_.problem(), entry, mostNodes, true);
  return Cut(image_, plan, entry, mostNodes, &computed_.at(entry), ignored_, changed).run();
}

}  // namespace shardproof::diagnose
