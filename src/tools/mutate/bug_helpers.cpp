// SPDX-License-Identifier: Apache-2.0
#include "mutate/bug_helpers.h"

#include <algorithm>
#include <cmath>

namespace shardproof::mutate {

std::vector<NodeRef> liveLines(const PlanGraph& graph, const std::function<bool(NodeRef)>& wanted) {
  return graph.all(
      [&](NodeRef ref) { return wanted(ref) && graph.isLive(ref) && graph.isFirstCopy(ref); });
}

std::string operand(const Json& node, std::size_t i) {
  const Json& in = node.at("in");
  return i < in.size() && in[i].is_string() ? in[i].get<std::string>() : std::string();
}
std::string result(const Json& node, std::size_t i) {
  const Json& out = node.at("out");
  return i < out.size() && out[i].is_string() ? out[i].get<std::string>() : std::string();
}
bool isAnyOf(const std::string& op, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return op == name; });
}

bool mattersToMembers(const PlanGraph& graph, NodeRef ref) {
  if (graph.groupSize(ref) < 2) return false;
  const std::set<std::string> varies = graph.variesOver(ref.program, operand(graph.node(ref), 0));
  const std::vector<std::string> group = graph.groupAxes(ref);
  return std::any_of(group.begin(), group.end(), [&](const std::string& axis) {
    // Ranks of other programs (of other stages) hold what they hold.
    return varies.contains(axis) || graph.at(ref.program, axis);
  });
}

bool hasMembersAlong(const PlanGraph& graph, NodeRef ref, const std::string& axis) {
  const std::vector<NodeRef> copies = graph.copies(ref);
  return std::all_of(copies.begin(), copies.end(), [&](NodeRef c) {
    if (!graph.at(c.program, axis)) return true;
    std::set<std::int64_t> seen;
    for (const NodeRef other : copies) {
      bool beside = graph.at(other.program, axis).has_value();
      for (const auto& [a, size] : graph.axes())
        beside = beside && (a == axis || graph.at(other.program, a) == graph.at(c.program, a));
      if (beside) seen.insert(*graph.at(other.program, axis));
    }
    return static_cast<std::int64_t>(seen.size()) == graph.axisSize(axis);
  });
}

void rewire(Editor& editor, const std::vector<Editor::Handle>& readers, const std::string& from,
            const std::string& to) {
  const std::string own(stem(from));
  for (const Editor::Handle h : readers) {
    for (Json& in : editor.touch(h)["in"]) {
      if (!in.is_string()) continue;
      const std::string name = in.get<std::string>();
      if (stem(name) != own) continue;
      // What the reader says about the microbatch stays, unless the new tensor's is given.
      in = to.find('#') == std::string::npos ? to + name.substr(own.size()) : to;
    }
  }
}

Json makeNode(const std::string& op, const std::vector<std::string>& in,
              const std::vector<std::string>& out, Json attributes) {
  Json node = Json::object();
  node["op"] = op;
  node["in"] = in;
  node["out"] = out;
  if (!attributes.is_null()) node["attrs"] = std::move(attributes);
  return node;
}

bool isNormaliser(const PlanGraph& g, NodeRef r, bool backward) {
  const Json& n = g.node(r);
  if (opOf(n) != (backward ? "div_backward" : "div") || !isNumber(attributeOf(n, "scalar")) ||
      !n.contains("mb"))
    return false;
  if (!backward && g.afterBackward(r)) return false;
  std::int64_t elements = 1;
  for (const std::int64_t size : g.shape(r.program, result(n, 0))) elements *= size;
  return elements == 1 && std::abs(numberOf(attributeOf(n, "scalar"))) != 1;
}

void scaleScalar(const PlanGraph& graph, NodeRef site, Editor& editor, std::int64_t factor,
                 std::int64_t divisor) {
  for (const NodeRef ref : graph.copies(site)) {
    Json& value = editor.touch(editor.hold(ref))["attrs"]["scalar"];
    value = scaled(value, factor, divisor);
  }
}

namespace {

// The normaliser's counterpart in the backward pass.
std::optional<NodeRef> backwardOf(const PlanGraph& graph, NodeRef ref) {
  for (const NodeRef r : graph.readers(ref.program, operand(graph.node(ref), 0)))
    if (isNormaliser(graph, r, true) && graph.node(r).at("mb") == graph.node(ref).at("mb"))
      return r;
  return std::nullopt;
}

}  // namespace

void scaleBothPasses(const PlanGraph& graph, NodeRef site, Editor& editor, std::int64_t divisor) {
  scaleScalar(graph, site, editor, 1, divisor);
  if (const auto r = backwardOf(graph, site)) scaleScalar(graph, *r, editor, 1, divisor);
}

}  // namespace shardproof::mutate
