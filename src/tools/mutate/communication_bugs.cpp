// SPDX-License-Identifier: Apache-2.0
// A collective that is missing, not used, of the wrong kind, over the wrong ranks, or in the wrong
// place.
#include <algorithm>

#include "mutate/bug_helpers.h"
#include "ops/registry.h"

namespace shardproof::mutate {
namespace {

// With equal pieces: sizes say what no other primitive has.
bool isOp(const PlanGraph& graph, NodeRef ref, const char* op) {
  const Json& node = graph.node(ref);
  return opOf(node) == op && !node.contains("sizes") && mattersToMembers(graph, ref);
}

// The dimension along which a tensor is cut into as many pieces as the group has members; -1 if
// there is none.
int divisibleDimension(const PlanGraph& graph, NodeRef ref, const std::string& tensor) {
  const auto shape = graph.shape(ref.program, tensor);
  const std::int64_t n = graph.groupSize(ref);
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] % n == 0) return static_cast<int>(d);
  return -1;
}

// ---- missing ----

bool isForwardAllReduce(const PlanGraph& g, NodeRef r) {
  return isOp(g, r, "all_reduce") && !g.afterBackward(r);
}
bool isBackwardAllReduce(const PlanGraph& g, NodeRef r) {
  return isOp(g, r, "all_reduce") && g.afterBackward(r);
}

void becomeIdentity(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) editor.becomes(h, "identity");
}

// A gradient of a norm's weight that reaches this collective through sums only.
bool isNormWeightGradient(const PlanGraph& graph, int program, const std::string& tensor,
                          int depth = 0) {
  for (const NodeRef p : graph.producers(program, tensor)) {
    const Json& n = graph.node(p);
    const std::string& op = opOf(n);
    if (op == "rms_norm_backward" || op == "layer_norm_backward")
      return result(n, 0) != stem(tensor);
    const bool passes = op == "add" || isIdentity(op) || isCollective(n);
    if (!passes || depth > 64) return false;
    return isNormWeightGradient(graph, program, operand(n, 0), depth + 1);
  }
  return false;
}

// ---- dangling ----

void dangle(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const NodeRef ref : graph.copies(site)) {
    const auto own = editor.hold(ref);
    const auto readers = editor.hold(graph.readers(ref.program, result(graph.node(ref), 0)));
    editor.touch(own);
    rewire(editor, readers, result(graph.node(ref), 0), operand(graph.node(ref), 0));
  }
}

// ---- wrong primitive. The shapes are made to fit, as a framework does that derives them from the
// primitive: nothing crashes. ----

void gatherInsteadOfReduce(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) {
    const NodeRef ref = editor.where(h);
    Json& node = editor.touch(h);
    const std::string whole = result(node, 0);
    auto shape = graph.shape(ref.program, whole);
    const std::int64_t n = graph.groupSize(site);
    shape.at(0) *= n;
    const std::string gathered = editor.fresh(h, whole, "gathered", &shape);
    node["op"] = "all_gather";
    node["attrs"] = Json{{"dim", 0}};
    node["out"] = Json::array({gathered});
    editor.insertAfter(
        h, makeNode("chunk", {gathered}, {whole}, Json{{"dim", 0}, {"parts", n}, {"index", 0}}));
  }
}

void reduceInsteadOfGather(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) {
    Json& node = editor.touch(h);
    const std::string whole = result(node, 0), piece = operand(node, 0);
    const auto shape = graph.shape(editor.where(h).program, piece);
    const std::string reduced = editor.fresh(h, whole, "reduced", &shape);
    const Json dim = attributeOf(node, "dim");
    node["op"] = "all_reduce";
    node.erase("attrs");
    node["out"] = Json::array({reduced});
    editor.insertAfter(h, makeNode("cat",
                                   std::vector<std::string>(
                                       static_cast<std::size_t>(graph.groupSize(site)), reduced),
                                   {whole}, Json{{"dim", dim}}));
  }
}

void reduceInsteadOfReduceScatter(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) {
    Json& node = editor.touch(h);
    const std::string piece = result(node, 0);
    const auto shape = graph.shape(editor.where(h).program, operand(node, 0));
    const std::string reduced = editor.fresh(h, piece, "reduced", &shape);
    const Json dim = attributeOf(node, "dim");
    node["op"] = "all_reduce";
    node["attrs"].erase("dim");
    node["out"] = Json::array({reduced});
    editor.insertAfter(
        h, makeNode("chunk", {reduced}, {piece},
                    Json{{"dim", dim}, {"parts", graph.groupSize(site)}, {"index", 0}}));
  }
}

bool canScatter(const PlanGraph& g, NodeRef r) {
  return isOp(g, r, "all_reduce") && isSum(g.node(r)) &&
         divisibleDimension(g, r, operand(g.node(r), 0)) >= 0;
}

void reduceScatterInsteadOfReduce(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  // One for all members: their operands have one shape, though other names in other programs.
  const int dim = divisibleDimension(graph, site, operand(graph.node(site), 0));
  for (const auto h : editor.hold(graph.copies(site))) {
    const NodeRef ref = editor.where(h);
    Json& node = editor.touch(h);
    const std::string whole = result(node, 0);
    const std::int64_t n = graph.groupSize(site);
    auto shape = graph.shape(ref.program, whole);
    shape.at(static_cast<std::size_t>(dim)) /= n;
    const std::string piece = editor.fresh(h, whole, "piece", &shape);
    node["op"] = "reduce_scatter";
    node["attrs"]["dim"] = dim;
    node["out"] = Json::array({piece});
    editor.insertAfter(
        h, makeNode("cat", std::vector<std::string>(static_cast<std::size_t>(n), piece), {whole},
                    Json{{"dim", dim}}));
  }
}

// ---- wrong group ----

// Another axis over which the same collective can run: of the same size unless that does not
// matter, and with a member at each place.
std::string otherAxis(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (!n.contains("group") || n.at("group").size() != 1) return {};
  const std::string own = graph.groupAxes(ref).at(0);
  const bool anySize = opOf(n) == "all_reduce";
  std::string found;
  for (const auto& [axis, size] : graph.axes()) {
    if (axis == own || size == 1 || (!anySize && size != graph.axisSize(own))) continue;
    if (hasMembersAlong(graph, ref, axis)) found = axis;
  }
  return found;
}

void takeOtherGroup(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  const std::string axis = otherAxis(graph, site);
  for (const auto h : editor.hold(graph.copies(site)))
    editor.touch(h)["group"] = Json::array({axis});
}

// ---- wrong place: y = f(sum of x) becomes y = sum of f(x) ----

bool isNonlinear(const std::string& op) {
  const ops::Registry& registry = ops::Registry::instance();
  const OperatorId found = registry.find(op);
  if (!found.valid()) return false;
  const ops::OperatorInfo& info = registry.at(found);
  return (info.traits.elementwise || info.traits.picks) && !info.traits.affine &&
         info.maxOperands == 1 && info.maxResults == 1;
}

std::optional<NodeRef> nonlinearReader(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  const std::string sum = result(n, 0);
  for (const NodeRef r : graph.readers(ref.program, sum)) {
    const Json& reader = graph.node(r);
    if (isNonlinear(opOf(reader)) && graph.isLive(r) && reader.value("mb", Json()) == n.value("mb", Json()))
      return r;
  }
  return std::nullopt;
}

void reduceAfterNonlinear(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  std::vector<std::pair<Editor::Handle, Editor::Handle>> pairs;
  for (const NodeRef ref : graph.copies(site))
    if (const auto reader = nonlinearReader(graph, ref))
      pairs.emplace_back(editor.hold(ref), editor.hold(*reader));
  for (const auto& [reduce, reader] : pairs) {
    // A second reduction, behind the reader; the first one keeps its other readers.
    Json& after = editor.touch(reader);
    const std::string final = result(after, 0), early = editor.fresh(reader, final, "early");
    after["in"][0] = operand(editor.node(reduce), 0);
    after["out"][0] = early;
    Json moved =
        makeNode("all_reduce", {early}, {final}, editor.node(reduce).value("attrs", Json()));
    moved["comm"] = editor.node(reduce).at("comm").get<std::string>() + ".late";
    for (const char* field : {"group", "group_at"})
      if (editor.node(reduce).contains(field)) moved[field] = editor.node(reduce).at(field);
    editor.insertAfter(reader, std::move(moved));
  }
}

}  // namespace

std::vector<Bug> communicationBugs() {
  return {
      {"missing_all_reduce",
       "an all-reduce of the forward pass is left out: each rank goes on with its own partial sum",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isForwardAllReduce(g, r); });
       },
       becomeIdentity},
      {"missing_all_reduce_backward", "an all-reduce of gradients is left out", "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isBackwardAllReduce(g, r); });
       },
       becomeIdentity},
      {"dangling_all_reduce",
       "an all-reduce is there, but what follows reads its operand instead of its result",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           const std::string reduced = result(g.node(r), 0);
           const auto readers = g.readers(r.program, reduced);
           return isOp(g, r, "all_reduce") &&
                  std::any_of(readers.begin(), readers.end(), [&](NodeRef reader) {
                    if (!g.isLive(reader)) return false;
                    const Json& n = g.node(reader);
                    for (std::size_t i = 0; i < n.at("in").size(); ++i)
                      if (stem(operand(n, i)) == reduced && valueMatters(n, i)) return true;
                    return false;
                  });
         });
       },
       dangle},
      {"all_gather_for_all_reduce",
       "an all-gather where an all-reduce belongs; every rank goes on with the first member's part",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isOp(g, r, "all_reduce") && isSum(g.node(r)) &&
                  !g.shape(r.program, result(g.node(r), 0)).empty();
         });
       },
       gatherInsteadOfReduce},
      {"all_reduce_for_all_gather",
       "an all-reduce where an all-gather belongs: the pieces are added up instead of put together",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isOp(g, r, "all_gather"); });
       },
       reduceInsteadOfGather},
      {"all_reduce_for_reduce_scatter",
       "an all-reduce where a reduce-scatter belongs; every rank goes on with the first piece",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(
             g, [&](NodeRef r) { return isOp(g, r, "reduce_scatter") && isSum(g.node(r)); });
       },
       reduceInsteadOfReduceScatter},
      {"reduce_scatter_for_all_reduce",
       "a reduce-scatter where an all-reduce belongs; each rank repeats its own piece",
       "TrainVerify",
       [](const PlanGraph& g) { return liveLines(g, [&](NodeRef r) { return canScatter(g, r); }); },
       reduceScatterInsteadOfReduce},
      {"wrong_group", "a collective runs over another axis of the mesh", "TTrace",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isCollective(g.node(r)) && mattersToMembers(g, r) && !otherAxis(g, r).empty();
         });
       },
       takeOtherGroup},
      {"norm_weight_not_reduced", "the gradient of a norm's weight is left out of its all-reduce",
       "GraphGuard",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isBackwardAllReduce(g, r) &&
                  isNormWeightGradient(g, r.program, operand(g.node(r), 0));
         });
       },
       becomeIdentity},
      {"nonlinear_of_partial_sum",
       "a maximum, a root, ... is taken of each rank's partial sum, and the reduction comes after "
       "it",
       "PyTorch 165962",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isOp(g, r, "all_reduce") && isSum(g.node(r)) && nonlinearReader(g, r).has_value();
         });
       },
       reduceAfterNonlinear},
  };
}

}  // namespace shardproof::mutate
