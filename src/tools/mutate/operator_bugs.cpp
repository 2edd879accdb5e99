// SPDX-License-Identifier: Apache-2.0
// Operators with the wrong constant, operand, position or window.
#include <algorithm>

#include "mutate/bug_helpers.h"

namespace shardproof::mutate {
namespace {

// ---- constants that differ between ranks ----

// The constant of an operator; of none whose result does not depend on it.
const char* constantOf(const Json& node) {
  if (isAnyOf(opOf(node), {"add_backward", "sub_backward"})) return nullptr;
  for (const char* name : {"scalar", "eps", "lr", "weight_decay"})
    if (isNumber(attributeOf(node, name)) && numberOf(attributeOf(node, name)) != 0) return name;
  return nullptr;
}

bool hasSeveralRanks(const PlanGraph& graph) {
  std::int64_t ranks = 1;
  for (const auto& [axis, size] : graph.axes()) ranks *= size;
  return ranks > 1;
}

// Free axes whose last coordinates are several ranks, but not all that run this node: one axis, or
// none where the program alone is that. Nothing if there are no such ranks.
std::optional<std::vector<std::string>> someRanks(const PlanGraph& graph, NodeRef ref) {
  const auto free = graph.freeAxes(ref.program);
  std::int64_t ranks = 1;
  for (const std::string& axis : free) ranks *= graph.axisSize(axis);
  for (const std::string& axis : free)
    if (ranks / graph.axisSize(axis) > 1) return std::vector{axis};
  const auto copies = graph.copies(ref);
  const bool others = std::any_of(copies.begin(), copies.end(),
                                  [&](NodeRef c) { return c.program != ref.program; });
  return ranks > 1 && others ? std::optional(std::vector<std::string>()) : std::nullopt;
}

void changeConstantIn(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor,
                      const std::vector<std::string>& axes) {
  const int program = splitOffLast(plan, site.program, axes);
  for (const NodeRef ref : graph.copies(site)) {
    if (ref.program != site.program) continue;
    Json& node = editor.touch(editor.hold({program, ref.node}));
    Json& value = node["attrs"][constantOf(node)];
    value = scaled(value, 2);
  }
}

// ---- wrong operand ----

struct Swap {
  std::size_t operand = 0;
  std::string by;
};

// An operand, and the nearest earlier tensor that could be taken for it.
std::optional<Swap> mistakable(const PlanGraph& graph, NodeRef ref) {
  const Json& n = graph.node(ref);
  if (isCommunication(n) || isBackward(n) || graph.afterBackward(ref) || isIdentity(opOf(n)) ||
      opOf(n) == "multiref" || !n.contains("mb"))
    return std::nullopt;
  for (std::size_t i = 0; i < n.at("in").size(); ++i) {
    const std::string own = operand(n, i);
    if (own.empty() || own.find('#') != std::string::npos || !valueMatters(n, i)) continue;
    for (int k = ref.node; k-- > 0;) {
      const Json& earlier = graph.node({ref.program, k});
      if (earlier.value("mb", Json()) != n.at("mb")) continue;
      for (const Json& out : earlier.at("out")) {
        if (!out.is_string()) continue;
        const std::string other = out.get<std::string>();
        if (graph.alike(ref.program, own, other) &&
            graph.valueNumber(ref.program, own) != graph.valueNumber(ref.program, other))
          return Swap{i, other};
      }
    }
  }
  return std::nullopt;
}

void takeOtherOperand(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  const Swap swap = *mistakable(graph, site);
  for (const NodeRef ref : graph.copies(site)) {
    const std::string other = graph.corresponding(site.program, swap.by, ref.program);
    if (!other.empty()) editor.touch(editor.hold(ref))["in"][swap.operand] = other;
  }
}

// ---- positions ----

std::size_t angles(const Json& node) { return isBackward(node) ? 4 : 2; }

bool isRotary(const PlanGraph& g, NodeRef r, bool backward) {
  const Json& n = g.node(r);
  if (opOf(n) != (backward ? "apply_rotary_emb_backward" : "apply_rotary_emb")) return false;
  const std::string table = operand(n, angles(n));
  return !table.empty() && g.shape(r.program, table).size() == 2 &&
         g.shape(r.program, table)[0] > 1;
}

// Positions start half a sequence too late, and wrap around.
void shiftPositions(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) {
    Json& n = editor.touch(h);
    const std::size_t slot = angles(n);
    const std::string table = operand(n, slot), base(stem(table));
    auto shape = graph.shape(editor.where(h).program, table);
    const std::int64_t all = shape.at(0), half = all / 2;
    shape[0] = all - half;
    const std::string tail = editor.fresh(h, base, "late", &shape);
    shape[0] = half;
    const std::string head = editor.fresh(h, base, "early", &shape);
    const std::string shifted = editor.fresh(h, base, "shifted");
    n["in"][slot] = shifted;
    editor.insertBefore(
        h, makeNode("slice", {table}, {tail}, Json{{"dim", 0}, {"start", half}, {"stop", all}}));
    editor.insertBefore(
        h, makeNode("slice", {table}, {head}, Json{{"dim", 0}, {"start", 0}, {"stop", half}}));
    editor.insertBefore(h, makeNode("cat", {tail, head}, {shifted}, Json{{"dim", 0}}));
  }
}

// ---- padding ----

bool canPad(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  if ((opOf(n) != "all_gather" && opOf(n) != "reduce_scatter") || !mattersToMembers(g, r) ||
      !n.contains("mb") || n.contains("sizes"))
    return false;
  const Json& t = g.tensor(r.program, operand(n, 0));
  return !t.contains("dtype") ||
         t.at("dtype").get<std::string>().find("float") != std::string::npos;
}

// One position is padded in front, and cut off again at the end.
void padAndSlice(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const auto h : editor.hold(graph.copies(site))) {
    Json& n = editor.touch(h);
    const std::string own = operand(n, 0);
    auto shape = graph.shape(editor.where(h).program, own);
    const auto dim = attributeOf(n, "dim").get<std::int64_t>();
    const std::size_t d =
        static_cast<std::size_t>(dim < 0 ? dim + static_cast<std::int64_t>(shape.size()) : dim);
    const std::int64_t size = shape.at(d);
    const std::string cut = editor.fresh(h, own, "sliced");
    shape[d] += 1;
    const std::string padded = editor.fresh(h, own, "padded", &shape);
    std::vector<std::int64_t> widths(2 * (shape.size() - d), 0);
    widths[widths.size() - 2] = 1;  // pairs are listed from the last dimension on
    n["in"][0] = cut;
    editor.insertBefore(h, makeNode("pad", {own}, {padded}, Json{{"pad", widths}}));
    editor.insertBefore(
        h, makeNode("slice", {padded}, {cut}, Json{{"dim", d}, {"start", 0}, {"stop", size}}));
  }
}

// ---- recomputation ----

// What a recomputation starts from: made in the forward pass or given, for each microbatch.
std::string keptOperand(const PlanGraph& g, NodeRef r) {
  const Json& n = g.node(r);
  if (g.microbatches() < 2 || !g.isRepeated(r) || isCommunication(n) || g.afterBackward(r) ||
      !n.contains("mb"))
    return {};
  for (std::size_t i = 0; i < n.at("in").size(); ++i) {
    const std::string t = operand(n, i);
    if (t.empty() || t.find('#') != std::string::npos || !valueMatters(n, i) ||
        !g.tensor(r.program, t).value("per_mb", false))
      continue;
    if (!g.variesOver(r.program, t).contains("mb")) continue;
    const auto maker = g.producer(r.program, t);
    if (!maker || !g.isRepeated(*maker)) return t;
  }
  return {};
}

bool isFirstOfRecomputation(const PlanGraph& g, NodeRef r) {
  const std::string kept = keptOperand(g, r);
  if (kept.empty()) return false;
  for (const NodeRef reader : g.readers(r.program, kept))
    if (reader < r && keptOperand(g, reader) == kept &&
        g.node(reader).value("mb", Json()) == g.node(r).value("mb", Json()))
      return false;
  return true;
}

// It finds the previous microbatch's values.
void readStaleInput(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor) {
  const std::string kept = keptOperand(graph, site);
  std::set<NodeRef> readers;
  for (const NodeRef reader : graph.readers(site.program, kept))
    if (keptOperand(graph, reader) == kept) {
      const auto copies = graph.copies(reader);
      readers.insert(copies.begin(), copies.end());
    }
  for (const auto h : editor.hold(std::vector<NodeRef>(readers.begin(), readers.end()))) {
    const std::string own = graph.corresponding(site.program, kept, editor.where(h).program);
    for (const auto each : splitMicrobatches(plan, editor, h)) {
      Json& n = editor.touch(each);
      const auto k = n.at("mb").get<std::int64_t>();
      if (k == 0) continue;
      for (Json& in : n["in"])
        if (in == own) in = own + "#" + std::to_string(k - 1);
    }
  }
}

}  // namespace

std::vector<Bug> operatorBugs() {
  return {
      {"constant_on_one_rank", "a constant of an operator is another one on a single rank",
       "TrainVerify",
       [](const PlanGraph& g) {
         if (!hasSeveralRanks(g)) return std::vector<NodeRef>();
         return liveLines(g, [&](NodeRef r) { return constantOf(g.node(r)) != nullptr; });
       },
       [](const PlanGraph& g, NodeRef site, Json& plan, Editor& editor) {
         changeConstantIn(g, site, plan, editor, g.freeAxes(site.program));
       }},
      {"constant_on_several_ranks",
       "a constant of an operator is another one on several ranks, but not on all", "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return constantOf(g.node(r)) != nullptr && someRanks(g, r).has_value();
         });
       },
       [](const PlanGraph& g, NodeRef site, Json& plan, Editor& editor) {
         changeConstantIn(g, site, plan, editor, *someRanks(g, site));
       }},
      {"constant_on_all_ranks", "a constant of an operator is another one on all ranks",
       "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return constantOf(g.node(r)) != nullptr; });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const NodeRef ref : g.copies(site)) {
           Json& node = editor.touch(editor.hold(ref));
           Json& value = node["attrs"][constantOf(node)];
           value = scaled(value, 2);
         }
       }},
      {"wrong_operand", "an operator reads another tensor of the same shape", "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return mistakable(g, r).has_value(); });
       },
       takeOtherOperand},
      {"rope_offset", "rotary embeddings count positions from the wrong offset", "GraphGuard",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isRotary(g, r, false); });
       },
       shiftPositions},
      {"rope_offset_backward",
       "the gradient of rotary embeddings counts positions from the wrong offset", "GraphGuard",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isRotary(g, r, true); });
       },
       shiftPositions},
      {"pad_slice_mismatch",
       "a tensor is padded in front for a collective, and the padding is cut off at the end",
       "GraphGuard",
       [](const PlanGraph& g) { return liveLines(g, [&](NodeRef r) { return canPad(g, r); }); },
       padAndSlice},
      {"vocabulary_window", "a rank's window of the vocabulary is off by one", "TTrace",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) {
           return g.node(r).contains("attrs") &&
                  attributeOf(g.node(r), "start").is_number_integer() &&
                  isAnyOf(opOf(g.node(r)), {"embedding", "embedding_backward", "one_hot"});
         });
       },
       [](const PlanGraph& g, NodeRef site, Json& plan, Editor& editor) {
         std::vector<std::string> axes;
         for (const std::string& axis : stepAxes(g.node(site)))
           if (!g.at(site.program, axis)) axes.push_back(axis);
         const int program = splitOffLast(plan, site.program, axes);
         for (const NodeRef ref : g.copies(site)) {
           if (ref.program != site.program) continue;
           Json& attrs = editor.touch(editor.hold({program, ref.node}))["attrs"];
           for (const char* end : {"start", "stop"})
             attrs[end] = attrs[end].get<std::int64_t>() + 1;
         }
       }},
      {"stale_recompute_input", "a recomputation starts from the previous microbatch's activation",
       "TTrace",
       [](const PlanGraph& g) {
         return liveLines(g, [&](NodeRef r) { return isFirstOfRecomputation(g, r); });
       },
       readStaleInput},
  };
}

}  // namespace shardproof::mutate
