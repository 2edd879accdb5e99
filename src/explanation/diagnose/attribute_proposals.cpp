// SPDX-License-Identifier: Apache-2.0
// Which changes of attributes may fix a plan: what the same operator has elsewhere, multiples and
// neighbours of numbers.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "diagnose/search.h"
#include "ops/registry.h"

namespace shardproof::diagnose {

namespace {

constexpr std::size_t kMostOfModel = 4;  // other values of an attribute
constexpr std::size_t kMostOdd = 24;

// The same operator, or its gradient: what is forward has to be the same backward.
bool sameFamily(const Node& a, const Node& b) {
  const std::string &x = ops::Registry::instance().at(a.op).name,
                    &y = ops::Registry::instance().at(b.op).name;
  return a.op == b.op || x == y + "_backward" || y == x + "_backward";
}

}  // namespace

// What the same operator has in other programs, for other microbatches and in the model.
// `strange`: only values that no such operator of the model has, or only the others.
void Search::attributes(const Site& site, bool strange, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  if (n.communication >= 0) return;
  const std::set<NodeRef> own(site.nodes.begin(), site.nodes.end());
  for (const auto& [name, value] : plan().attributes.at(n.attributes)) {
    const bool known = std::any_of(plan().model.graph.nodes.begin(), plan().model.graph.nodes.end(),
                                   [&, &key = name, &mine = value](const Node& m) {
                                     if (m.op != n.op) return false;
                                     const Attributes& theirs = plan().attributes.at(m.attributes);
                                     const auto it = theirs.find(key);
                                     return it != theirs.end() && it->second == mine;
                                   });
    if (known == strange) continue;
    std::vector<AttributeValue> seen{value};
    const auto propose = [&, &key = name](const Node& other, NodeRef from) {
      if (other.communication >= 0 || !sameFamily(n, other) || other.attributes == n.attributes)
        return;
      const Attributes& theirs = plan().attributes.at(other.attributes);
      const auto it = theirs.find(key);
      if (it == theirs.end() || std::find(seen.begin(), seen.end(), it->second) != seen.end() ||
          seen.size() > 2 * kMostOfModel)
        return;
      seen.push_back(it->second);
      Edit edit = on(site, Edit::Kind::kAttribute);
      edit.attribute = key;
      edit.from = from;
      edits.push_back(edit);
    };
    // The line itself: one of it may be unlike the others.
    for (const NodeRef other : site.nodes) propose(node(other), other);
    const auto& model = plan().model.graph.nodes;
    for (const NodeId m : firstIds<NodeId>(model.size())) propose(model[m], {ProgramId(), m});
    for (const ProgramId p : firstIds<ProgramId>(plan().plan.programs.size())) {
      const auto& nodes = plan().plan.programs[p].graph.nodes;
      for (const NodeId m : firstIds<NodeId>(nodes.size())) propose(nodes[m], {p, m});
    }
  }
  // On each program of the line alone as well: ranks may be meant to differ.
  const std::size_t whole = edits.size();
  std::set<ProgramId> programs;
  for (const NodeRef r : site.nodes) programs.insert(r.program);
  if (programs.size() < 2) return;
  for (const ProgramId p : programs) {
    for (std::size_t i = 0; i < whole; ++i) {
      Edit edit = edits[i];
      if (edit.from->program == p) continue;
      std::erase_if(edit.nodes, [&](NodeRef r) { return r.program != p; });
      edit.wholeSite = false;
      edits.push_back(edit);
    }
  }
}

// What nodes of the same kind and shapes have that are twice as many: a number, a group, a
// reduction. Programs repeat themselves, by layers, parameters, ranks and microbatches, and a
// mistake is often made once.
std::vector<Edit> Search::odd(const Failing& failing) const {
  // Of a node what its peers have in common, and what they differ in: all attributes, or the group
  // and the reduction.
  using Kind = std::tuple<OperatorId, Communication, std::int32_t, std::vector<Shape>,
                          std::vector<std::string>>;
  using Value = std::pair<AttributesId, std::pair<std::vector<std::int32_t>, Reduction>>;
  const auto kindOf = [&](NodeRef ref) {
    const Node& n = node(ref);
    const Graph& g = program(ref).graph;
    Kind kind{n.op, Communication::kNone, 0, {}, {}};
    auto& [op, communication, dim, shapes, names] = kind;
    if (n.communication >= 0) {
      const CommunicationSpec& spec = program(ref).communications[n.communication];
      communication = spec.kind;
      dim = spec.dim;
    } else {
      for (const auto& [name, value] : plan().attributes.at(n.attributes)) names.push_back(name);
    }
    for (const Operand& o : g.in(n))
      shapes.push_back(o.present() ? g.tensors[o.tensor].shape : Shape{-1});
    for (const TensorId t : g.out(n)) shapes.push_back(t.valid() ? g.tensors[t].shape : Shape{-1});
    return kind;
  };
  const auto valueOf = [&](NodeRef ref) {
    const Node& n = node(ref);
    if (n.communication < 0) return Value{n.attributes, {}};
    const CommunicationSpec& spec = program(ref).communications[n.communication];
    return Value{AttributesId(), {spec.groupAxes, spec.reduction}};
  };
  const auto concerned = [&](NodeRef ref) {
    const Node& n = node(ref);
    if (n.added >= 0) return false;
    if (n.communication < 0) return !plan().attributes.at(n.attributes).empty();
    const CommunicationSpec& spec = program(ref).communications[n.communication];
    return !spec.groupAxes.empty() && spec.groupAt.empty() && !spec.tellsMembersApart();
  };
  std::map<Kind, std::map<Value, std::vector<NodeRef>>> peers;
  for (const ProgramId p : firstIds<ProgramId>(plan().plan.programs.size()))
    for (const NodeId n : firstIds<NodeId>(plan().plan.programs[p].graph.nodes.size()))
      if (concerned({p, n})) peers[kindOf({p, n})][valueOf({p, n})].push_back({p, n});
  std::vector<Edit> edits;
  std::set<NodeRef> taken;
  for (const NodeRef ref : upstream(failing)) {
    if (edits.size() >= kMostOdd) break;
    if (!concerned(ref) || taken.contains(ref)) continue;
    const auto& values = peers.at(kindOf(ref));
    const Value own = valueOf(ref);
    const auto usual = std::max_element(values.begin(), values.end(), [](auto& a, auto& b) {
      return a.second.size() < b.second.size();
    });
    if (usual->second.size() < 2 * values.at(own).size()) continue;
    Edit edit;
    const std::vector<NodeRef> site = siteOf(plan(), correspondence_, ref);
    std::copy_if(site.begin(), site.end(), std::back_inserter(edit.nodes),
                 [&](NodeRef other) { return valueOf(other) == own; });
    edit.wholeSite = edit.nodes.size() == site.size();
    taken.insert(edit.nodes.begin(), edit.nodes.end());
    const NodeRef from = usual->second.front();
    if (node(ref).communication >= 0) {
      const CommunicationSpec& spec = program(from).communications[node(from).communication];
      edit.kind = Edit::Kind::kSpec;
      edit.communication = spec.kind;
      edit.axes = spec.groupAxes;
      edit.reduction = spec.reduction;
      edit.dim = spec.dim;
      edits.push_back(std::move(edit));
      continue;
    }
    edit.kind = Edit::Kind::kAttribute;
    edit.from = from;
    const Attributes &mine = plan().attributes.at(node(ref).attributes),
                     &theirs = plan().attributes.at(node(from).attributes);
    for (const auto& [name, value] : mine) {
      if (theirs.at(name) == value) continue;
      edit.attribute = name;
      edits.push_back(edit);
    }
  }
  return edits;
}

// Multiples and neighbours of numbers.
void Search::scalars(const Site& site, const Match& found, bool strange,
                     std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  if (n.communication >= 0) return;
  const auto& model = plan().model.graph.nodes;
  const bool ofModel = std::any_of(model.begin(), model.end(), [&](const Node& m) {
    return m.op == n.op && m.attributes == n.attributes;
  });
  if (ofModel == strange) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> ratios;
  const auto add = [&](std::int64_t num, std::int64_t den) {
    if (num == den || num == 0 || den == 0) return;
    for (const auto& known : {std::pair(num, den), std::pair(den, num)})
      if (std::find(ratios.begin(), ratios.end(), known) == ratios.end()) ratios.push_back(known);
  };
  if (found.kind == Match::Kind::kMultiple) add(found.ratio.num, found.ratio.den);
  add(2, 1);
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : plan().plan.mesh) {
    add(axis.size, 1);
    ranks *= axis.size;
  }
  add(plan().plan.microbatches, 1);
  add(ranks, 1);
  std::set<ProgramId> programs;
  for (const NodeRef r : site.nodes) programs.insert(r.program);
  const auto propose = [&](const std::string& name, std::int64_t num, std::int64_t den,
                           std::int64_t plus) {
    Edit edit = on(site, Edit::Kind::kAttribute);
    edit.attribute = name;
    edit.num = num;
    edit.den = den;
    edit.plus = plus;
    edits.push_back(edit);
    if (programs.size() < 2) return;
    for (const ProgramId p : programs) {
      edit.nodes = site.nodes;
      std::erase_if(edit.nodes, [&](NodeRef r) { return r.program != p; });
      edit.wholeSite = false;
      edits.push_back(edit);
    }
  };
  // A window moves as a whole.
  const Attributes& own = plan().attributes.at(n.attributes);
  if (own.contains("start") && own.contains("stop")) {
    const std::size_t from = edits.size();
    for (const std::int64_t plus : {1, -1}) propose("start", 1, 1, plus);
    for (std::size_t i = from; i < edits.size(); ++i) edits[i].andAttribute = "stop";
  }
  for (const auto& [name, value] : own) {
    const auto* number = std::get_if<Rational>(&value);
    const auto* list = std::get_if<std::vector<std::int64_t>>(&value);
    if (!number && !(list && list->size() == 1)) continue;
    if (!number || number->isInteger())
      for (const std::int64_t plus : {1, -1}) propose(name, 1, 1, plus);
    if (number && !number->isZero())
      for (const auto& [num, den] : ratios) propose(name, num, den, 0);
  }
}

}  // namespace shardproof::diagnose
