// SPDX-License-Identifier: Apache-2.0
// Which changes may fix a plan, by kinds: operators and communication that are missing, too many
// or of another kind. Of attributes and operands: attribute_proposals.cpp, operand_proposals.cpp.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "diagnose/search.h"
#include "ops/registry.h"

namespace shardproof::diagnose {

namespace {

constexpr std::size_t kMostHops = 3;  // upstream, for what a result may be made of instead

bool isCollective(const Program& program, const Node& node) {
  if (node.communication < 0) return false;
  const CommunicationSpec& spec = program.communications[node.communication];
  if (spec.tellsMembersApart()) return false;  // another group or dimension has no sizes
  const Communication kind = spec.kind;
  return kind == Communication::kAllReduce || kind == Communication::kAllGather ||
         kind == Communication::kReduceScatter;
}

bool copies(const Node& node) {
  if (node.communication >= 0) return false;
  const std::string& name = ops::Registry::instance().at(node.op).name;
  return name == "identity" || name == "contiguous" || name == "to";
}

// Whether `a` may stand for `b`: what exists once serves all microbatches.
bool serves(const Tensor& a, const Tensor& b) {
  return a.shape == b.shape && a.element == b.element && (!a.perMicrobatch || b.perMicrobatch);
}

}  // namespace

Edit Search::on(const Site& site, Edit::Kind kind) const {
  Edit edit;
  edit.kind = kind;
  edit.nodes = site.nodes;
  edit.wholeSite = true;
  return edit;
}

// Axes of several ranks: those that a partial sum was found over first.
std::vector<std::vector<std::int32_t>> Search::axisSets(const Match& found) const {
  std::vector<std::int32_t> axes;
  for (std::size_t a = 0; a < plan().plan.mesh.size(); ++a)
    if (plan().plan.mesh[a].size > 1) axes.push_back(static_cast<std::int32_t>(a));
  std::vector<std::vector<std::int32_t>> sets;
  for (std::size_t bits = 1; bits < (std::size_t{1} << std::min<std::size_t>(axes.size(), 4));
       ++bits) {
    sets.emplace_back();
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (bits >> i & 1) sets.back().push_back(axes[i]);
  }
  std::stable_sort(sets.begin(), sets.end(), [&](const auto& a, const auto& b) {
    return std::pair(a != found.axes, a.size()) < std::pair(b != found.axes, b.size());
  });
  return sets;
}

// Copies that do nothing, and what stands next to a collective: in place of a chain of operators,
// a result may be meant to be a collective of what the chain begins with.
void Search::suspicious(const Site& site, const Match& found, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  const Graph& g = program(ref).graph;
  if (n.outCount == 0 || g.out(n)[0] < 0 || isCollective(program(ref), n)) return;
  bool ofCollective = false;
  std::vector<TensorId> sources;
  std::vector<TensorId> level{g.out(n)[0]};
  for (std::size_t hop = 0; hop < kMostHops; ++hop) {
    std::vector<TensorId> next;
    for (std::size_t i = 0; i < level.size(); ++i) {
      const TensorId t = level[i];
      for (const Node& m : g.nodes) {
        const auto out = g.out(m);
        if (std::find(out.begin(), out.end(), t) == out.end()) continue;
        ofCollective = ofCollective || isCollective(program(ref), m);
        for (const Operand& o : g.in(m)) {
          if (!o.present() || std::find(sources.begin(), sources.end(), o.tensor) != sources.end())
            continue;
          // What no file has is no way: parts that lineage speaks of are taken out and put back.
          if (m.added >= 0) {
            if (std::find(level.begin(), level.end(), o.tensor) == level.end())
              level.push_back(o.tensor);
            continue;
          }
          sources.push_back(o.tensor);
          next.push_back(o.tensor);
        }
        break;
      }
    }
    level = std::move(next);
    if (hop == 0 && sources.size() > 2) break;
  }
  if (!ofCollective && !copies(n)) return;
  const Tensor& result = g.tensors[g.out(n)[0]];
  const auto propose = [&](TensorId source, Communication kind,
                           const std::vector<std::int32_t>& axes, std::int32_t dim) {
    Edit edit = on(site, Edit::Kind::kRedefine);
    edit.make = Edit::Make::kCollective;
    edit.tensor = source;
    edit.communication = kind;
    edit.axes = axes;
    edit.dim = dim;
    edits.push_back(edit);
  };
  // Where a collective is in the chain its beginning first: what stands between may all be there in
  // its place. In place of a mere copy what is copied: sums over microbatches that the image lacks
  // are copies there, and what they begin with is another tensor in the full plan.
  if (ofCollective) std::reverse(sources.begin(), sources.end());
  for (const TensorId source : sources) {
    const Tensor& t = g.tensors[source];
    if (t.element != result.element || (t.perMicrobatch && !result.perMicrobatch) ||
        t.shape.size() != result.shape.size())
      continue;
    for (const auto& axes : axisSets(found)) {
      std::int64_t members = 1;
      for (const std::int32_t a : axes) members *= plan().plan.mesh[a].size;
      if (t.shape == result.shape) {
        propose(source, Communication::kAllReduce, axes, 0);
        continue;
      }
      for (std::size_t d = 0; d < t.shape.size(); ++d) {
        Shape gathered = t.shape, scattered = t.shape;
        gathered[d] *= members;
        scattered[d] = scattered[d] % members == 0 ? scattered[d] / members : -1;
        if (gathered == result.shape)
          propose(source, Communication::kAllGather, axes, static_cast<std::int32_t>(d));
        if (scattered == result.shape)
          propose(source, Communication::kReduceScatter, axes, static_cast<std::int32_t>(d));
      }
    }
  }
}

// Another group, another reduction, another collective; none at all.
void Search::collectives(const Site& site, const Match& found, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  if (!isCollective(program(ref), n)) return;
  const CommunicationSpec& spec = program(ref).communications[n.communication];
  const auto propose = [&](Communication kind, const std::vector<std::int32_t>& axes,
                           Reduction reduction, std::int32_t dim) {
    if (spec.groupAt.empty() && kind == spec.kind && axes == spec.groupAxes &&
        reduction == spec.reduction && dim == spec.dim)
      return;
    Edit edit = on(site, Edit::Kind::kSpec);
    edit.communication = kind;
    edit.axes = axes;
    edit.reduction = reduction;
    edit.dim = dim;
    edits.push_back(edit);
  };
  const Graph& g = program(ref).graph;
  if (g.tensors[g.in(n)[0].tensor].shape == g.tensors[g.out(n)[0]].shape) {
    Edit edit = on(site, Edit::Kind::kRedefine);
    edit.make = Edit::Make::kIdentity;
    edit.tensor = g.in(n)[0].tensor;
    edits.push_back(edit);
  }
  if (spec.groupAt.empty()) {
    for (const Reduction r : {Reduction::kSum, Reduction::kMean})
      if (spec.kind != Communication::kAllGather) propose(spec.kind, spec.groupAxes, r, spec.dim);
    const Shape& shape = program(ref).graph.tensors[program(ref).graph.in(n)[0].tensor].shape;
    if (spec.kind != Communication::kAllReduce)
      for (std::size_t d = 0; d < shape.size(); ++d)
        propose(spec.kind, spec.groupAxes, spec.reduction, static_cast<std::int32_t>(d));
  }
  for (const auto& axes : axisSets(found)) propose(spec.kind, axes, spec.reduction, spec.dim);
}

// The rank that a message goes to or comes from: what both ends exchanged.
void Search::messages(const Site& site, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  if (n.communication < 0) return;
  const CommunicationSpec& spec = program(ref).communications[n.communication];
  if (spec.kind != Communication::kSend && spec.kind != Communication::kReceive) return;
  Edit edit = on(site, Edit::Kind::kPeer);
  edit.nodes = messagesOf(spec.comm);
  edit.wholeSite = false;
  // What no other message names: a rank that is like the sender but for its stage.
  std::set<std::int32_t> named;
  for (const NodeRef other : edit.nodes)
    for (const auto& [axis, c] : program(other).communications[node(other).communication].peer)
      named.insert(axis);
  for (const std::int32_t axis : named) {
    if (named.size() < 2) break;
    edit.axes = {axis};
    edits.push_back(edit);
  }
  if (!spec.tag) return;
  edit.kind = Edit::Kind::kTag;
  edits.push_back(edit);
}

std::vector<NodeRef> Search::messagesOf(NameId comm) const {
  std::vector<NodeRef> found;
  for (const ProgramId p : firstIds<ProgramId>(plan().plan.programs.size())) {
    const Program& own = plan().plan.programs[p];
    for (const NodeId m : firstIds<NodeId>(own.graph.nodes.size())) {
      const std::int32_t c = own.graph.nodes[m].communication;
      if (c >= 0 && own.communications[c].comm == comm) found.push_back({p, m});
    }
  }
  return found;
}

// Factors that the model does not have: one too many.
void Search::strangers(const Site& site, const Match& found, std::vector<Edit>& edits) const {
  const Node& n = node(site.nodes.front());
  if (n.communication >= 0) return;
  const std::string& op = ops::Registry::instance().at(n.op).name;
  const auto& model = plan().model.graph.nodes;
  if (op != "mul" && op != "div" && op != "pad" && op != "slice" && op != "cat") return;
  if (std::none_of(model.begin(), model.end(),
                   [&](const Node& m) { return m.op == n.op && m.attributes == n.attributes; }))
    skipped(site, found, edits);
}

// A term that was left out at a copy: one that nobody reads.
void Search::terms(const Site& site, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  const Graph& g = program(ref).graph;
  if (!copies(n) || n.outCount != 1 || g.out(n)[0] < 0) return;
  for (const TensorId t : unread(ref.program)) {
    if (!serves(g.tensors[t], g.tensors[g.out(n)[0]])) continue;
    Edit edit = on(site, Edit::Kind::kRedefine);
    edit.make = Edit::Make::kAdd;
    edit.tensor = t;
    edits.push_back(edit);
  }
}

// Results that no node reads, and that are no outputs.
std::vector<TensorId> Search::unread(ProgramId p) const {
  const Graph& g = plan().plan.programs[p].graph;
  std::vector<char> used(g.tensors.size(), 0);
  std::set<NameId> mentioned;
  for (const LineageEntry& entry : plan().plan.lineage)
    for (const Shard& shard : entry.shards)
      for (const Part& part : shard.parts)
        if (entry.role == Role::kOutput) mentioned.insert(part.local);
  for (const Node& n : g.nodes)
    for (const Operand& o : g.in(n))
      if (o.present()) used[o.tensor] = 1;
  std::vector<TensorId> found;
  for (const Node& n : g.nodes)
    for (const TensorId t : g.out(n))
      if (t >= 0 && !used[t] && !mentioned.contains(g.tensors[t].name)) found.push_back(t);
  return found;
}

// A collective that comes too late: before the operator that makes its operand.
void Search::late(const Site& site, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  if (isCollective(program(ref), n)) edits.push_back(on(site, Edit::Kind::kSwap));
}

// A line that need not be there: its result is what it is made of, or what that is made of.
void Search::skipped(const Site& site, const Match&, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  const Graph& g = program(ref).graph;
  for (std::size_t r = 0; r < n.outCount; ++r) {
    const TensorId t = g.out(n)[r];
    if (t < 0) continue;
    std::vector<TensorId> sources;
    for (const Operand& o : g.in(n)) {
      if (!o.present()) continue;
      sources.push_back(o.tensor);
      for (const Node& m : g.nodes) {
        const auto out = g.out(m);
        if (std::find(out.begin(), out.end(), o.tensor) == out.end()) continue;
        for (const Operand& up : g.in(m))
          if (up.present()) sources.push_back(up.tensor);
        break;
      }
    }
    for (const TensorId source : sources) {
      if (source == t || !serves(g.tensors[source], g.tensors[t])) continue;
      Edit edit = on(site, Edit::Kind::kRedefine);
      edit.index = r;
      edit.make = Edit::Make::kIdentity;
      edit.tensor = source;
      edits.push_back(edit);
    }
  }
}

// A factor that is missing where an operator does nothing.
void Search::factors(const Site& site, const Match& found, std::vector<Edit>& edits) const {
  const Node& n = node(site.nodes.front());
  if (found.kind != Match::Kind::kMultiple || found.ratio.num <= 0 || n.outCount == 0 ||
      n.communication >= 0 || program(site.nodes.front()).graph.out(n)[0] < 0)
    return;
  if (!copies(n) && ops::Registry::instance().at(n.op).name != "identity_backward") return;
  Edit edit = on(site, Edit::Kind::kRedefine);
  edit.make = Edit::Make::kScale;
  edit.num = found.ratio.den;
  edit.den = found.ratio.num;
  edits.push_back(edit);
}

// A factor that is missing behind a line.
void Search::insertedFactors(const Site& site, const Match& found, std::vector<Edit>& edits) const {
  if (found.kind != Match::Kind::kMultiple || found.ratio.num == 0) return;
  const NodeRef ref = site.nodes.front();
  const Graph& g = program(ref).graph;
  const auto out = g.out(node(ref));
  for (std::size_t r = 0; r < out.size(); ++r) {
    if (out[r] < 0 || g.tensors[out[r]].element != ElementKind::kReal) continue;
    Edit edit = on(site, Edit::Kind::kRedefine);
    edit.index = r;
    edit.make = Edit::Make::kScale;
    edit.num = found.ratio.num < 0 ? -found.ratio.den : found.ratio.den;
    edit.den = std::abs(found.ratio.num);
    edits.push_back(edit);
  }
}

// A reduction that is missing behind a line.
void Search::inserted(const Site& site, const Match& found, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  const Graph& g = program(ref).graph;
  for (std::size_t r = 0; r < n.outCount; ++r) {
    const TensorId t = g.out(n)[r];
    if (t < 0 || g.tensors[t].element != ElementKind::kReal) continue;
    Edit edit = on(site, Edit::Kind::kRedefine);
    edit.index = r;
    edit.make = Edit::Make::kCollective;
    edit.communication = Communication::kAllReduce;
    // What is the largest of a part becomes the largest of all.
    if (n.communication < 0 && ops::Registry::instance().at(n.op).name == "amax")
      edit.reduction = Reduction::kMax;
    for (const auto& axes : axisSets(found)) {
      edit.axes = axes;
      edits.push_back(edit);
    }
  }
}

}  // namespace shardproof::diagnose
