// SPDX-License-Identifier: Apache-2.0
// The end of the step: norm and clipping of gradients, the optimizer, sharded states.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "mutate/bug_helpers.h"

namespace shardproof::mutate {
namespace {

// ---- the norm over all gradients ----

// The `grad_norm` nodes of the program that a tensor is made from, through squares, sums and
// reductions. The plan may be any document: each node is visited once, also where it reads its own
// result.
std::vector<NodeRef> normsIn(const PlanGraph& graph, int program, const std::string& tensor) {
  std::vector<NodeRef> found;
  std::set<std::string> visited;
  std::vector<std::string> todo{tensor};
  while (!todo.empty()) {
    const std::string next = todo.back();
    todo.pop_back();
    if (!visited.insert(next).second) continue;
    for (const NodeRef r : graph.producers(program, next)) {
      const Json& n = graph.node(r);
      if (opOf(n) == "grad_norm") found.push_back(r);
      if (opOf(n) != "square" && opOf(n) != "add" && opOf(n) != "all_reduce" &&
          !isIdentity(opOf(n)))
        continue;
      for (std::size_t i = n.at("in").size(); i-- > 0;) todo.push_back(operand(n, i));
    }
  }
  return found;
}

bool isSharded(const PlanGraph& graph, NodeRef norm) {
  const auto varies = graph.variesOver(norm.program, operand(graph.node(norm), 0));
  // Stages hold different parameters; that is no shard.
  return std::any_of(varies.begin(), varies.end(),
                     [&](const std::string& axis) {
                       return axis != "mb" && !graph.at(norm.program, axis).has_value();
                     }) ||
         std::any_of(varies.begin(), varies.end(), [&](const std::string& axis) {
           const auto copies = graph.copies(norm);
           return std::any_of(copies.begin(), copies.end(), [&](NodeRef c) {
             return graph.at(c.program, axis) != graph.at(norm.program, axis);
           });
         });
}

// A sum of squares in which sharded parameters are a term: the term.
std::optional<std::size_t> shardedTerm(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (opOf(n) != "add" || n.at("in").size() != 2 || !graph.oncePerStep(ref)) return std::nullopt;
  for (std::size_t i = 2; i-- > 0;) {
    const auto norms = normsIn(graph, ref.program, operand(n, i));
    if (!norms.empty() &&
        std::all_of(norms.begin(), norms.end(), [&](NodeRef r) { return isSharded(graph, r); }))
      return i;
  }
  return std::nullopt;
}

bool isReduced(const PlanGraph& graph, int program, const std::string& tensor) {
  const auto maker = graph.producer(program, tensor);
  return maker && opOf(graph.node(*maker)) == "all_reduce";
}

// Where all that is sharded is added to the rest of the norm; in a plan where everything is
// sharded, where the last of it is added.
std::vector<NodeRef> shardsJoin(const PlanGraph& graph) {
  const auto whole = liveLines(graph, [&](NodeRef r) {
    const auto term = shardedTerm(graph, r);
    return term && isReduced(graph, r.program, operand(graph.node(r), *term));
  });
  if (!whole.empty()) return whole;
  return liveLines(graph, [&](NodeRef r) {
    if (!shardedTerm(graph, r)) return false;
    const auto readers = graph.readers(r.program, result(graph.node(r), 0));
    return std::any_of(readers.begin(), readers.end(),
                       [&](NodeRef reader) { return opOf(graph.node(reader)) == "all_reduce"; });
  });
}

void leaveOutShards(const PlanGraph& graph, NodeRef, Json&, Editor& editor) {
  // One place in a script makes the norm of every stage.
  std::set<NodeRef> places;
  for (const NodeRef site : shardsJoin(graph)) {
    const auto copies = graph.copies(site);
    places.insert(copies.begin(), copies.end());
  }
  for (const auto h : editor.hold(std::vector<NodeRef>(places.begin(), places.end()))) {
    const std::size_t term = *shardedTerm(graph, editor.where(h));
    Json& n = editor.becomes(h, "identity");
    n["in"] = Json::array({n.at("in").at(1 - term)});
  }
}

// An axis over which a gradient whose square this is has replicas.
std::string replicaAxis(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (opOf(n) != "square") return {};
  const auto norms = normsIn(graph, ref.program, operand(n, 0));
  if (norms.size() != 1) return {};
  const auto varies = graph.variesOver(ref.program, operand(graph.node(norms[0]), 0));
  for (const auto& [axis, size] : graph.axes())
    if (size > 1 && !varies.contains(axis) && hasMembersAlong(graph, ref, axis)) return axis;
  return {};
}

void countReplicas(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  const std::string axis = replicaAxis(graph, site);
  // Whoever counts one counts them all.
  for (const auto h :
       editor.hold(graph.all([&](NodeRef r) { return replicaAxis(graph, r) == axis; }))) {
    Json& n = editor.touch(h);
    const std::string square = result(n, 0), own = editor.fresh(h, square, "own");
    n["out"][0] = own;
    Json reduce = makeNode("all_reduce", {own}, {square});
    reduce["comm"] =
        "replicas." +
        std::to_string(
            editor.where(h).node);  // as the same line has it in the other programs of the stage
    reduce["group"] = Json::array({axis});
    editor.insertAfter(h, std::move(reduce));
  }
}

// ---- a parameter that two stages hold ----

// The sum of its two gradients: once a step, between stages.
bool isTiedReduction(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (opOf(n) != "all_reduce" || !isSum(n) || !graph.oncePerStep(ref) || !graph.afterBackward(ref))
    return false;
  if (graph.shape(ref.program, operand(n, 0)).empty()) return false;  // a norm
  const auto copies = graph.copies(ref);
  const auto group = graph.groupAxes(ref);
  return std::any_of(group.begin(), group.end(), [&](const std::string& axis) {
    return std::any_of(copies.begin(), copies.end(), [&](NodeRef c) {
      return !graph.sameStage(c.program, ref.program) &&
             graph.at(c.program, axis) != graph.at(ref.program, axis);
    });
  });
}

// The reduce-scatter that what it adds up comes from.
std::optional<NodeRef> shardedBefore(const PlanGraph& graph, NodeRef ref) {
  auto maker = graph.producer(ref.program, operand(graph.node(ref), 0));
  if (!maker || opOf(graph.node(*maker)) != "reduce_scatter" || !graph.oncePerStep(*maker) ||
      graph.groupAxes(*maker).size() != 1)
    return std::nullopt;
  const auto free = graph.freeAxes(ref.program);
  return std::find(free.begin(), free.end(), graph.groupAxes(*maker).at(0)) == free.end()
             ? std::nullopt
             : maker;
}

// What follows goes on with the stage's own gradient.
void ownGradientGoesOn(Editor& editor, Editor::Handle h, const std::string& reduced) {
  Json& n = editor.touch(h);
  const std::string own = operand(n, 0), sum = result(n, 0);
  n["out"][0] = reduced;
  editor.insertAfter(h, makeNode("identity", {own}, {sum}));
}

void driftApart(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  // On one of the stages: the ranks that run the same line there.
  for (const auto h : editor.hold(graph.copies(site))) {
    const NodeRef ref = editor.where(h);
    if (graph.sameStage(ref.program, site.program))
      ownGradientGoesOn(editor, h, editor.fresh(h, result(editor.node(h), 0), "unused"));
  }
}

// The two copies lie in different places of their stages' gradient buffers. A reduce-scatter of the
// buffers, made first, leaves a rank with the reduced gradient of one copy, but for the other with
// what it had before: the sum adds up the two.
void scatterBeforeTied(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor) {
  std::vector<NodeRef> others;
  for (const NodeRef ref : graph.copies(site))
    if (!graph.sameStage(ref.program, site.program) && shardedBefore(graph, ref))
      others.push_back(ref);
  std::sort(others.begin(), others.end());
  const std::string axis = graph.groupAxes(*shardedBefore(graph, site)).at(0);
  const auto ranks = static_cast<int>(graph.axisSize(axis));
  int added = 0;
  std::vector<int> first;
  for (const NodeRef ref : others) {
    first.push_back(splitAxis(plan, ref.program + added, axis));
    added += ranks - 1;
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    const Json& scatter = graph.node(*shardedBefore(graph, others[i]));
    for (int c = 0; c < ranks; ++c) {
      const auto h = editor.hold({first[i] + c, others[i].node});
      const std::string own = editor.fresh(h, operand(graph.node(others[i]), 0), "local");
      editor.touch(h)["in"][0] = own;
      Json attributes{{"dim", attributeOf(scatter, "dim")}, {"parts", ranks}, {"index", c}};
      editor.insertBefore(h,
                          makeNode("chunk", {operand(scatter, 0)}, {own}, std::move(attributes)));
    }
  }
}

// ---- updates ----

void keepParameter(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) {
    Json& n = editor.touch(h);
    const std::string updated = result(n, 0);
    n["out"][0] = editor.fresh(h, updated, "unused");
    editor.insertAfter(h, makeNode("identity", {operand(n, 0)}, {updated}));
  }
}

bool isOptimizer(const PlanGraph& g, NodeRef r) {
  return isAnyOf(opOf(g.node(r)), {"sgd", "adamw"});
}

}  // namespace

std::vector<Bug> optimizerBugs() {
  return {
      {"parameter_not_updated",
       "the optimizer's result is dropped for one parameter, which keeps its old value", "TTrace",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isOptimizer(g, r) && g.isLive(r.program, result(g.node(r), 0));
         });
       },
       keepParameter},
      {"tied_gradient_on_one_stage",
       "one of two stages that hold a tied embedding goes on with its own gradient; the copies "
       "drift apart",
       "TTrace, Megatron-LM 656",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isTiedReduction(g, r); });
       },
       driftApart},
      {"scattered_before_tied",
       "a tied embedding's gradients are reduce-scattered before they are added up between stages, "
       "so that a reduced piece meets one that is not",
       "Megatron-LM 844",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isTiedReduction(g, r) && shardedBefore(g, r).has_value();
         });
       },
       scatterBeforeTied},
      {"clip_counts_replicas", "the norm for clipping counts every replica of a gradient",
       "NeMo-RL 3788",
       [](const PlanGraph& g) {
         std::set<std::string> seen;
         return liveLines(g, [&](NodeRef r) {
           return !replicaAxis(g, r).empty() && seen.insert(replicaAxis(g, r)).second;
         });
       },
       countReplicas},
      {"clip_leaves_out_shards", "the norm for clipping leaves out sharded parameters",
       "Megatron-LM 5916",
       [](const PlanGraph& g) {
         auto sites = shardsJoin(g);
         if (sites.size() > 1) sites.resize(1);
         return sites;
       },
       leaveOutShards},
  };
}

}  // namespace shardproof::mutate
