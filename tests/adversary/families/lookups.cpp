// SPDX-License-Identifier: Apache-2.0
// Masks, tables, experts and dropout: what depends on positions and indices. Half of it is made by
// the builder (attention, vocabulary and experts cut in windows, dropout whose positions follow
// from lineage); half are plans that frameworks write by hand: the cross entropy of logits that are
// cut, causal attention of a rank's own rows with masks made of blocks, and functions of two masks
// of lengths that nothing relates.
#include <string>
#include <vector>

#include "adversary/case.h"
#include "adversary/families/random_graph.h"
#include "adversary/graph_writer.h"

namespace shardproof::adversary {
namespace {

Case built(Random& random) {
  BuilderOptions options = randomOptions(random);
  options.cut = random.pick({40, 70, 95});
  RandomGraph graph(random, options);
  const std::int64_t parts = random.between(1, 2);
  for (std::int64_t i = 0; i < parts; ++i) {
    switch (random.below(5)) {
      case 0:
        graph.attention();
        break;
      case 1:
        graph.experts();
        break;
      case 2:
        graph.lookup();
        break;
      case 3:
        graph.listed(
            random.pick({"create_mask", "apply_mask", "moe_gate", "moe_experts", "embedding",
                         "one_hot", "cross_entropy", "dropout", "apply_rotary_emb"}));
        break;
      default:
        graph.dropped();
    }
    if (random.chance(40)) graph.elementwise();
    if (random.chance(25)) graph.dropped();
  }
  if (graph.builder().size() == 0) graph.elementwise();
  return graph.finish();
}

// Megatron-LM's cross entropy: maximum, sum of exponentials and the label's logit over the pieces
// of the vocabulary.
Case cutVocabulary(Random& random) {
  const std::int64_t tp = random.pick({1, 2, 2, 3, 4}), rows = random.pick({2, 4, 6}),
                     piece = random.pick({1, 2, 3, 4}), v = tp * piece, dp = random.pick({1, 2});
  const std::int64_t own = rows / (rows % dp == 0 ? dp : 1);
  const bool cut = rows % dp == 0 && dp > 1, mean = random.chance(50);
  GraphWriter model("m");
  model.given("x", {rows, v});
  model.given("y", {rows}, "input", ElementKind::kInteger);
  const std::string loss =
      model.node("cross_entropy", {"x", "y"}, {{"reduction", mean ? "mean" : "none"}});
  Json programs = Json::array();
  std::string result;
  const int comm = static_cast<int>(random.below(3));
  for (std::int64_t c = 0; c < tp; ++c) {
    GraphWriter w("l");
    w.given("x", {own, piece});
    w.given("y", {own}, "input", ElementKind::kInteger);
    const auto reduced = [&](const std::string& of, const char* how, const char* name) {
      return w.communication("all_reduce", of, w.shape(of),
                             {{"comm", name}, {"group", {"tp"}}, {"attrs", {{"reduce", how}}}});
    };
    const std::string largest = comm == 2
                                    ? w.constant({own}, 0)
                                    : reduced(w.node("amax", {"x"}, {{"dim", 1}}), "max", "max");
    const std::string moved = w.node("sub", {"x", w.node("unsqueeze", {largest}, {{"dim", 1}})});
    const std::string sum =
        reduced(w.node("sum", {w.node("exp", {moved})}, {{"dim", 1}}), "sum", "sum");
    const std::string hot =
        w.node("one_hot", {"y"}, {{"start", c * piece}, {"stop", (c + 1) * piece}});
    const std::string label =
        reduced(w.node("sum", {w.node("mul", {moved, hot})}, {{"dim", 1}}), "sum", "label");
    result = w.node("sub", {w.node("log", {sum}), label});
    if (mean) {
      result = w.node("mean", {result});
      if (cut) result = reduced(result, "mean", "loss");
    }
    Json program = w.program();
    if (mean && cut) program["nodes"].back()["group"] = {"dp"};
    program["at"]["tp"] = c;
    programs.push_back(std::move(program));
  }
  Json both{{"tp", {0, piece}}}, rowsOnly;
  if (cut) {
    both["dp"] = {own, 0};
    rowsOnly["dp"] = {own};
  }
  Json lineage = Json::array({entryOf("x", "input", {0, 0}, {own, piece}, "x", both),
                              entryOf("y", "input", {0}, {own}, "y", rowsOnly)});
  lineage.push_back(mean ? entryOf(loss, "output", {}, {}, result)
                         : entryOf(loss, "output", {0}, {own}, result, rowsOnly));
  Json mesh = Json::array({Json::array({"dp", dp}), Json::array({"tp", tp})});
  return {modelOf(model, {loss}), planOf(mesh, 1, programs, lineage), {}};
}

// A scalar that depends on nothing but a causal mask and its length.
std::string ofMask(GraphWriter& g, std::int64_t length, const std::vector<int>& steps) {
  const std::string tokens = g.given("tokens" + std::to_string(length), {1, length}, "constant");
  std::string x = g.node(
      "exp", {g.node("view", {g.node("create_mask", {tokens})}, {{"size", {length, length}}})});
  for (const int step : steps) {
    switch (step) {
      case 0:
        x = g.node("transpose", {x}, {{"dim0", 0}, {"dim1", 1}});
        break;
      case 1:
        x = g.node("add", {g.node("neg", {x})}, {{"scalar", 1}});
        break;
      case 2:
        x = g.node("matmul", {x, x});
        break;
      case 3:
        x = g.node("mul", {x, g.node("transpose", {x}, {{"dim0", 0}, {"dim1", 1}})});
        break;
      case 4: {
        const std::string product = g.node("mul", {g.node("unsqueeze", {x}, {{"dim", 2}}),
                                                   g.node("unsqueeze", {x}, {{"dim", 0}})});
        x = g.node("amax", {product}, {{"dim", 1}});
        break;
      }
      case 5:
        x = g.node("softmax", {x}, {{"dim", 1}});
        break;
      default:
        x = g.node("mul", {x}, {{"scalar", 0.5}});
    }
  }
  return x;
}

Case twoLengths(Random& random) {
  const std::int64_t one = random.pick({1, 2, 3, 4, 6, 8});
  const std::int64_t two = random.pick<std::int64_t>({1, 2, 3, 4, 5, 8, one});
  std::vector<int> steps;
  for (std::int64_t i = random.below(4); i >= 0; --i)
    steps.push_back(static_cast<int>(random.below(7)));
  const char* last = random.pick({"sum", "mean", "amax", "amin"});
  GraphWriter model("m"), local("l");
  const std::string x = model.node(last, {ofMask(model, one, steps)}),
                    y = local.node(last, {ofMask(local, two, steps)});
  Case made{modelOf(model, {x}),
            planOf(Json::array({Json::array({"dp", 2})}), 1, Json::array({local.program()}),
                   Json::array({entryOf(x, "output", {}, {}, y)})),
            {}};
  for (Json* tensors : {&made.model["tensors"], &made.plan["programs"][0]["tensors"]})
    for (auto& [name, t] : tensors->items())
      if (name.starts_with("tokens")) t["value"] = 0;
  return made;
}

// Each rank has its rows of the queries, and all keys and values that they see: whole blocks before
// its own, the causal mask on its own.
Case blocks(Random& random) {
  const std::int64_t cp = random.pick({1, 2, 2, 3, 4}), piece = random.pick({1, 2, 3, 4}),
                     s = cp * piece, d = random.pick({1, 2});
  const bool skip = random.chance(
      60);  // blocks that no row sees are left out; otherwise the rows of the whole mask
  const char* how = random.pick({"softmax", "exp"});
  GraphWriter model("m");
  for (const char* name : {"q", "k", "v"}) model.given(name, {s, d});
  model.given("tokens", {1, s}, "input", ElementKind::kInteger);
  const Json swap{{"dim0", 0}, {"dim1", 1}}, dim1{{"dim", 1}};
  const Json howAttributes = how == std::string("softmax") ? dim1 : Json::object();
  const std::string mask =
      model.node("view", {model.node("create_mask", {"tokens"})}, {{"size", {s, s}}});
  const std::string scores = model.node(
      "apply_mask", {model.node("matmul", {"q", model.node("transpose", {"k"}, swap)}), mask});
  const std::string y = model.node("matmul", {model.node(how, {scores}, howAttributes), "v"});
  Json programs = Json::array(), lineage = Json::array();
  std::string result;
  for (std::int64_t c = 0; c < cp; ++c) {
    GraphWriter w("l");
    for (const char* name : {"q", "k", "v"}) w.given(name, {piece, d});
    w.given("tokens", {1, piece}, "input", ElementKind::kInteger);
    std::string keys = w.communication("all_gather", "k", {s, d},
                                       {{"comm", "k"}, {"group", {"cp"}}, {"attrs", {{"dim", 0}}}});
    std::string values = w.communication(
        "all_gather", "v", {s, d}, {{"comm", "v"}, {"group", {"cp"}}, {"attrs", {{"dim", 0}}}});
    std::string own;
    if (skip) {
      own = w.node("view", {w.node("create_mask", {"tokens"})}, {{"size", {piece, piece}}});
      if (c > 0) own = w.node("cat", {w.constant({piece, c * piece}, 0), own}, dim1);
      keys = w.node("slice", {keys}, {{"dim", 0}, {"start", 0}, {"stop", (c + 1) * piece}});
      values = w.node("slice", {values}, {{"dim", 0}, {"start", 0}, {"stop", (c + 1) * piece}});
    } else {
      const std::string all =
          w.communication("all_gather", "tokens", {1, s},
                          {{"comm", "t"}, {"group", {"cp"}}, {"attrs", {{"dim", 1}}}});
      own = w.node("slice", {w.node("view", {w.node("create_mask", {all})}, {{"size", {s, s}}})},
                   {{"dim", 0}, {"start", c * piece}, {"stop", (c + 1) * piece}});
    }
    const std::string seen =
        w.node("apply_mask", {w.node("matmul", {"q", w.node("transpose", {keys}, swap)}), own});
    result = w.node("matmul", {w.node(how, {seen}, howAttributes), values});
    result = w.node("identity", {result});
    Json program = w.program();
    program["tensors"]["y"] = program["tensors"][result];
    program["nodes"].push_back({{"op", "identity"}, {"in", {result}}, {"out", {"y"}}});
    program["at"]["cp"] = c;
    programs.push_back(std::move(program));
  }
  for (const char* name : {"q", "k", "v"})
    lineage.push_back(entryOf(name, "input", {0, 0}, {piece, d}, name, {{"cp", {piece, 0}}}));
  lineage.push_back(entryOf("tokens", "input", {0, 0}, {1, piece}, "tokens", {{"cp", {0, piece}}}));
  lineage.push_back(entryOf(y, "output", {0, 0}, {piece, d}, "y", {{"cp", {piece, 0}}}));
  return {modelOf(model, {y}),
          planOf(Json::array({Json::array({"cp", cp})}), 1, programs, lineage),
          {}};
}

}  // namespace

Case lookups(Random& random) {
  if (random.chance(55)) return built(random);
  switch (random.below(3)) {
    case 0:
      return cutVocabulary(random);
    case 1:
      return twoLengths(random);
    default:
      return blocks(random);
  }
}

}  // namespace shardproof::adversary
