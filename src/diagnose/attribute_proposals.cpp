// Which changes of attributes may mend a plan: what the same operator has elsewhere, multiples and
// neighbours of numbers.
#include <algorithm>
#include <set>

#include "diagnose/search.h"
#include "ops/registry.h"

namespace shardproof::diagnose {

namespace {

constexpr std::size_t kMostOfModel = 4;  // other values of an attribute

// The same operator, or its gradient: what is forward has to be the same backward.
bool sameFamily(const Node& a, const Node& b) {
  const std::string &x = ops::Registry::instance().at(a.op).name,
                    &y = ops::Registry::instance().at(b.op).name;
  return a.op == b.op || x == y + "_backward" || y == x + "_backward";
}

}  // namespace

// What the same operator has in other programs, for other microbatches and in the model.
// `strange`: only values that no such operator of the model has, or only the others.
void Search::attributes(const Line& line, bool strange, std::vector<Edit>& edits) const {
  const NodeRef ref = line.nodes.front();
  const Node& n = node(ref);
  if (n.communication >= 0) return;
  const std::set<NodeRef> own(line.nodes.begin(), line.nodes.end());
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
      Edit edit = on(line, Edit::Kind::kAttribute);
      edit.attribute = key;
      edit.from = from;
      edits.push_back(edit);
    };
    // The line itself: one of it may be unlike the others.
    for (const NodeRef other : line.nodes) propose(node(other), other);
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
  for (const NodeRef r : line.nodes) programs.insert(r.program);
  if (programs.size() < 2) return;
  for (const ProgramId p : programs) {
    for (std::size_t i = 0; i < whole; ++i) {
      Edit edit = edits[i];
      if (edit.from->program == p) continue;
      std::erase_if(edit.nodes, [&](NodeRef r) { return r.program != p; });
      edit.wholeLine = false;
      edits.push_back(edit);
    }
  }
}

// Multiples and neighbours of numbers.
void Search::scalars(const Line& line, const Is& found, bool strange,
                     std::vector<Edit>& edits) const {
  const NodeRef ref = line.nodes.front();
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
  if (found.kind == Is::Kind::kMultiple) add(found.ratio.num, found.ratio.den);
  add(2, 1);
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : plan().plan.mesh) {
    add(axis.size, 1);
    ranks *= axis.size;
  }
  add(plan().plan.microbatches, 1);
  add(ranks, 1);
  std::set<ProgramId> programs;
  for (const NodeRef r : line.nodes) programs.insert(r.program);
  const auto propose = [&](const std::string& name, std::int64_t num, std::int64_t den,
                           std::int64_t plus) {
    Edit edit = on(line, Edit::Kind::kAttribute);
    edit.attribute = name;
    edit.num = num;
    edit.den = den;
    edit.plus = plus;
    edits.push_back(edit);
    if (programs.size() < 2) return;
    for (const ProgramId p : programs) {
      edit.nodes = line.nodes;
      std::erase_if(edit.nodes, [&](NodeRef r) { return r.program != p; });
      edit.wholeLine = false;
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
