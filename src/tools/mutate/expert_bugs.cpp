// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: whose experts a rank applies, and over which ranks the gradients of experts,
// of the router and of the tokens are added up.
#include <algorithm>

#include "mutate/bug_helpers.h"

namespace shardproof::mutate {
namespace {

bool appliesExperts(const Json& node) {
  return isAnyOf(opOf(node), {"moe_experts", "moe_experts_backward"});
}

// The tensor is one of these results of a wanted `op`, or a sum of such, through collectives.
bool comesFrom(
    const PlanGraph& graph, int program, const std::string& tensor, const char* op,
    std::initializer_list<std::size_t> results,
    const std::function<bool(const Json&)>& wanted = [](const Json&) { return true; },
    int depth = 0) {
  for (const NodeRef p : graph.producers(program, tensor)) {
    const Json& n = graph.node(p);
    if (opOf(n) == op)
      return wanted(n) && std::any_of(results.begin(), results.end(),
                                      [&](std::size_t i) { return result(n, i) == stem(tensor); });
    const bool passes = opOf(n) == "add" || isIdentity(opOf(n)) || isCollective(n);
    if (!passes || depth > 64) return false;
    for (std::size_t i = 0; i < n.at("in").size(); ++i)
      if (comesFrom(graph, program, operand(n, i), op, results, wanted, depth + 1)) return true;
  }
  return false;
}

bool isExpertGradient(const PlanGraph& graph, int program, const std::string& tensor) {
  return comesFrom(graph, program, tensor, "moe_experts_backward", {3, 4, 5});
}
// Of the weights that the router gives to the chosen experts.
bool isChoiceGradient(const PlanGraph& graph, int program, const std::string& tensor) {
  return comesFrom(graph, program, tensor, "moe_experts_backward", {2});
}
// Of the router's weights, which the choice reads, too.
bool isRouterGradient(const PlanGraph& graph, int program, const std::string& tensor) {
  if (comesFrom(graph, program, tensor, "moe_gate_backward", {1})) return true;
  std::set<std::string> routers;
  for (int n = 0; n < graph.nodes(program); ++n)
    if (const Json& node = graph.node({program, n}); opOf(node) == "moe_gate")
      routers.insert(operand(node, 1));
  return comesFrom(graph, program, tensor, "linear_backward", {1},
                   [&](const Json& n) { return routers.contains(operand(n, 2)); });
}

// Axes along which the ranks of a program's stage hold different experts.
std::set<std::string> expertAxes(const PlanGraph& graph, int program) {
  std::set<std::string> axes;
  for (int n = 0; n < graph.nodes(program); ++n) {
    const NodeRef ref{program, n};
    const Json& node = graph.node(ref);
    if (!appliesExperts(node)) continue;
    for (const std::string& axis : stepAxes(node)) axes.insert(axis);
    for (const NodeRef other : graph.copies(ref))
      if (attributeOf(graph.node(other), "local_expert_start") !=
          attributeOf(node, "local_expert_start"))
        for (const auto& [axis, size] : graph.axes())
          if (graph.at(other.program, axis) != graph.at(program, axis)) axes.insert(axis);
  }
  return axes;
}

// ---- experts of another rank ----

std::int64_t window(const Json& node) {
  return attributeOf(node, "local_expert_end").get<std::int64_t>() -
         attributeOf(node, "local_expert_start").get<std::int64_t>();
}

bool hasOtherExperts(const Json& node) {
  return appliesExperts(node) &&
         window(node) < attributeOf(node, "n_routed_experts").get<std::int64_t>();
}

// The last rank along the axes of the window, or the ranks of the program, if these are named.
void takeNeighboursExperts(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor) {
  std::vector<std::string> axes;
  for (const std::string& axis : stepAxes(graph.node(site)))
    if (!graph.at(site.program, axis)) axes.push_back(axis);
  const int program = splitOffLast(plan, site.program, axes);
  const bool shifted = !axes.empty();  // away from the last window, whatever the number in the file
  for (const NodeRef ref : graph.copies(site)) {
    if (ref.program != site.program) continue;
    Json& attrs = editor.touch(editor.hold({program, ref.node}))["attrs"];
    const std::int64_t start = attrs["local_expert_start"].get<std::int64_t>(),
                       width = window(graph.node(ref));
    const std::int64_t by = shifted || start >= width ? -width : width;
    for (const char* end : {"local_expert_start", "local_expert_end"})
      attrs[end] = attrs[end].get<std::int64_t>() + by;
  }
}

// ---- groups ----

// An axis along which ranks hold other experts, which the reduction of an expert's gradient leaves
// out.
std::string foreignAxis(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (opOf(n) != "all_reduce" || !isSum(n) || !n.contains("group") || !graph.afterBackward(ref) ||
      !isExpertGradient(graph, ref.program, operand(n, 0)))
    return {};
  const std::vector<std::string> group = graph.groupAxes(ref);
  for (const std::string& axis : expertAxes(graph, ref.program))
    if (std::find(group.begin(), group.end(), axis) == group.end() && graph.axisSize(axis) > 1 &&
        hasMembersAlong(graph, ref, axis))
      return axis;
  return {};
}

// The group without the axes along which ranks hold other experts; the router's gradient needs
// them.
std::optional<Json> groupOfEqualExperts(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (opOf(n) != "all_reduce" || !isSum(n) || !n.contains("group") || !graph.afterBackward(ref) ||
      !mattersToMembers(graph, ref))
    return std::nullopt;
  if (isChoiceGradient(graph, ref.program, operand(n, 0))) return Json::array();
  if (!isRouterGradient(graph, ref.program, operand(n, 0))) return std::nullopt;
  const std::set<std::string> foreign = expertAxes(graph, ref.program);
  Json group = Json::array();
  for (const std::string& axis : graph.groupAxes(ref))
    if (!foreign.contains(axis)) group.push_back(axis);
  if (group.size() == graph.groupAxes(ref).size()) return std::nullopt;
  return group;
}

void reduceOverEqualExperts(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  const Json group = *groupOfEqualExperts(graph, site);
  for (const auto h : editor.hold(graph.copies(site))) {
    if (group.empty()) editor.becomes(h, "identity");
    else editor.touch(h)["group"] = group;
  }
}

// ---- tokens that were gathered ----

bool isDispatchGradient(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  return opOf(n) == "reduce_scatter" && isSum(n) && !n.contains("sizes") &&
         g.groupAxes(r).size() == 1 && mattersToMembers(g, r) &&
         comesFrom(g, r.program, operand(n, 0), "moe_experts_backward", {0, 2});
}

void takeOwnSlice(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  const std::string axis = graph.groupAxes(site).at(0);
  for (const auto h : editor.hold(graph.copies(site))) {
    const auto fixed = graph.at(editor.where(h).program, axis);
    const Json dim = attributeOf(editor.node(h), "dim");
    Json& node = editor.becomes(h, "chunk");
    node["attrs"] =
        Json{{"dim", dim}, {"parts", graph.axisSize(axis)}, {"index", fixed.value_or(0)}};
    if (!fixed) node["step"] = Json{{axis, {{"index", 1}}}};
  }
}

// ---- balance ----

// A loss of how often experts were chosen: it comes from the one-hot form of the choice through
// sums, means and products.
bool countsChoices(const PlanGraph& graph, int program, const std::string& tensor, int depth = 0) {
  for (const NodeRef p : graph.producers(program, tensor)) {
    const Json& n = graph.node(p);
    if (depth > 64) return false;
    if (opOf(n) == "moe_gate") return result(n, 1) == stem(tensor);
    if (!isAnyOf(opOf(n), {"one_hot", "view", "reshape", "sum", "mean", "mul", "div"})) continue;
    for (std::size_t i = 0; i < n.at("in").size(); ++i)
      if (countsChoices(graph, program, operand(n, i), depth + 1)) return true;
  }
  return false;
}

bool isBalanceLoss(const PlanGraph& g, NodeRef r) {
  return isNormaliser(g, r, false) && countsChoices(g, r.program, operand(g.node(r), 0));
}

}  // namespace

std::vector<Bug> expertBugs() {
  return {
      {"experts_of_another_rank",
       "a rank takes its experts for those of the rank before it along the expert axis",
       "DeepSpeed 6589",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return hasOtherExperts(g.node(r)); });
       },
       takeNeighboursExperts},
      {"expert_gradient_group",
       "the gradient of an expert is added up with those of the other experts of its group",
       "Megatron-LM 5916",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return !foreignAxis(g, r).empty(); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         const std::string axis = foreignAxis(g, site);
         for (const auto h : editor.hold(g.copies(site))) editor.touch(h)["group"].push_back(axis);
       }},
      {"router_gradient_not_reduced",
       "the router's gradient lacks the parts of ranks that hold other experts, or other parts of "
       "them",
       "torchtitan 2387",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return groupOfEqualExperts(g, r).has_value(); });
       },
       reduceOverEqualExperts},
      {"dispatch_gradient_sliced",
       "the gradient of what was gathered for the experts is cut into pieces, and not added up",
       "NeMo-Automodel 1260",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isDispatchGradient(g, r); });
       },
       takeOwnSlice},
      {"balance_loss_not_divided",
       "the loss that balances experts is not divided by the number of its parts",
       "Megatron-LM 5047",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isBalanceLoss(g, r); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         scaleBothPasses(g, site, editor, attributeOf(g.node(site), "scalar").get<std::int64_t>());
       }},
  };
}

}  // namespace shardproof::mutate
