// SPDX-License-Identifier: Apache-2.0
// Gradients: how losses and gradients are scaled, accumulated over microbatches and handed on.
#include <algorithm>

#include "mutate/bug_helpers.h"

namespace shardproof::mutate {
namespace {

// ---- scaling ----

std::int64_t dataRanks(const PlanGraph& g) {
  std::int64_t ranks = 1;
  for (const std::string& axis : g.dataAxes()) ranks *= g.axisSize(axis);
  return ranks;
}

bool divides(const PlanGraph& g, NodeRef r, std::int64_t factor) {
  const Json& scalar = attributeOf(g.node(r), "scalar");
  return factor > 1 && scalar.is_number_integer() && scalar.get<std::int64_t>() % factor == 0;
}

// A reduction of gradients over the axes that the batch is cut over.
bool isDataReduction(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  if ((opOf(n) != "all_reduce" && opOf(n) != "reduce_scatter") || !isSum(n) ||
      !g.afterBackward(r) || !mattersToMembers(g, r))
    return false;
  if (g.shape(r.program, operand(n, 0)).empty()) return false;  // norms
  const auto axes = g.dataAxes();
  const auto group = g.groupAxes(r);
  return !axes.empty() && std::all_of(group.begin(), group.end(),
                                      [&](const std::string& axis) { return axes.contains(axis); });
}

// ---- order and accumulation ----

// The gradient is the operand at this place of an optimizer's node; -1: it is none.
int gradientOperand(const std::string& op) {
  return op == "sgd" || op == "adamw" ? 1 : op == "clip_grad" ? 0 : -1;
}

// The next parameter that could be given this one's gradient.
std::optional<NodeRef> nextParameter(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  const int slot = gradientOperand(opOf(n));
  if (slot < 0) return std::nullopt;
  const std::string own = operand(n, static_cast<std::size_t>(slot));
  for (int k = ref.node + 1; k < graph.nodes(ref.program); ++k) {
    const Json& other = graph.node({ref.program, k});
    if (opOf(other) == opOf(n) &&
        graph.alike(ref.program, own, operand(other, static_cast<std::size_t>(slot))))
      return NodeRef{ref.program, k};
  }
  return std::nullopt;
}

bool hasAlikeGradients(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  if (!isAnyOf(opOf(n), {"mul_backward", "matmul_backward", "div_backward",
                         "apply_rotary_emb_backward", "linear_backward"}))
    return false;
  const std::string a = result(n, 0), b = result(n, 1);
  return !a.empty() && !b.empty() && g.alike(r.program, a, b) &&
         (g.isLive(r.program, a) || g.isLive(r.program, b));
}

void reverseGradients(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  const auto next = nextParameter(graph, site);
  for (const NodeRef ref : graph.copies(site)) {
    const auto h = editor.hold(ref);
    Json& n = editor.touch(h);
    if (!next) {
      std::swap(n["out"][0], n["out"][1]);
      continue;
    }
    const std::size_t slot = static_cast<std::size_t>(gradientOperand(opOf(n)));
    Json& other = editor.touch(editor.hold({ref.program, next->node}));
    std::swap(n["in"][slot], other["in"][slot]);
  }
}

// Adds a microbatch's gradient to those before it.
bool isAccumulation(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  if (opOf(n) != "add" || n.at("in").size() != 2 || !g.afterBackward(r) ||
      g.tensor(r.program, result(n, 0)).value("per_mb", false))
    return false;
  const std::string last = operand(n, 1);
  if (g.tensor(r.program, last).value("per_mb", false)) return true;
  const auto maker = g.producer(r.program, last);
  return maker && g.node(*maker).contains("mb");
}

// The gradient before the last microbatch's is added, for a reduction that comes after it.
std::string beforeLast(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  const auto maker = g.producer(r.program, operand(n, 0));
  return maker && g.oncePerStep(r) && isAccumulation(g, *maker) ? operand(g.node(*maker), 0)
                                                                : std::string();
}

std::string otherMicrobatch(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  const std::string last = operand(n, 1), base(stem(last));
  if (!g.tensor(r.program, last).value("per_mb", false)) return operand(n, 0);
  const std::int64_t k =
      last != base ? std::stoll(last.substr(base.size() + 1)) : n.at("mb").get<std::int64_t>();
  return k == 0 ? base + "#1" : base + "#" + std::to_string(k - 1);
}

}  // namespace

std::vector<Bug> gradientBugs() {
  return {
      {"loss_scaled_wrongly", "the loss is divided by twice the number of its parts", "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isNormaliser(g, r, false); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         scaleScalar(g, site, editor, 2, 1);
       }},
      {"gradient_scaled_wrongly",
       "a gradient is scaled once more before it is reduced over the data-parallel ranks",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isDataReduction(g, r); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const auto h : editor.hold(g.copies(site))) {
           const std::string own = operand(editor.node(h), 0),
                             twice = editor.fresh(h, own, "scaled");
           editor.touch(h)["in"][0] = twice;
           editor.insertBefore(h, makeNode("mul", {own}, {twice}, Json{{"scalar", 2}}));
         }
       }},
      {"reduced_before_last_microbatch",
       "a gradient is reduced before the last microbatch's part is added, which is lost",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isAnyOf(opOf(g.node(r)), {"all_reduce", "reduce_scatter"}) &&
                  mattersToMembers(g, r) && !beforeLast(g, r).empty();
         });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const NodeRef ref : g.copies(site))
           editor.touch(editor.hold(ref))["in"][0] = beforeLast(g, ref);
       }},
      {"gradients_reversed", "two gradients of the same shape are taken in the reverse order",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return nextParameter(g, r).has_value() || hasAlikeGradients(g, r);
         });
       },
       reverseGradients},
      {"accumulation_without_average",
       "gradients of the microbatches are added up, and the division by their number is forgotten",
       "GraphGuard",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isNormaliser(g, r, false) && divides(g, r, g.microbatches());
         });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         scaleBothPasses(g, site, editor, g.microbatches());
       }},
      {"data_parallel_loss_scale",
       "the gradient of the loss is not divided by the number of data-parallel ranks", "TTrace",
       [](const PlanGraph& g) {
         return liveLines(
             g, [&](NodeRef r) { return isNormaliser(g, r, true) && divides(g, r, dataRanks(g)); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         scaleScalar(g, site, editor, 1, dataRanks(g));
       }},
      {"wrong_microbatch_gradient",
       "another microbatch's gradient is accumulated, whose buffer was overwritten too early or "
       "too late",
       "TTrace",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isAccumulation(g, r); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const NodeRef ref : g.copies(site))
           editor.touch(editor.hold(ref))["in"][1] = otherMicrobatch(g, ref);
       }},
      {"local_token_count",
       "the loss is normalised by each rank's number of tokens instead of that of all ranks",
       "Megatron-LM 7452",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return isNormaliser(g, r, false) && divides(g, r, dataRanks(g));
         });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         scaleBothPasses(g, site, editor, dataRanks(g));
       }},
      {"divided_by_world_size_twice",
       "gradients that are divided already are averaged over the ranks instead of added up",
       "PyTorch 155903",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isDataReduction(g, r); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const NodeRef ref : g.copies(site))
           editor.touch(editor.hold(ref))["attrs"]["reduce"] = "mean";
       }},
      {"never_divided", "gradients are added up over ranks and microbatches and never divided",
       "PyTorch 155903",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isNormaliser(g, r, true); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const auto h : editor.hold(g.copies(site))) editor.becomes(h, "identity_backward");
       }},
  };
}

}  // namespace shardproof::mutate
