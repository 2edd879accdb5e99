// SPDX-License-Identifier: Apache-2.0
#include "mutate/plan_graph.h"

#include <gtest/gtest.h>

#include "mutate/editor.h"
#include "plans.h"
#include "shardproof/error.h"

namespace shardproof::mutate {
namespace {

using Names = std::set<std::string>;

NodeRef find(const PlanGraph& graph, const std::string& op, const std::string& result,
             int program = 0) {
  for (int n = 0; n < graph.nodes(program); ++n) {
    const Json& node = graph.node({program, n});
    if (opOf(node) == op && std::find(node.at("out").begin(), node.at("out").end(), Json(result)) !=
                                node.at("out").end())
      return {program, n};
  }
  throw std::runtime_error("no " + op + " -> " + result);
}

TEST(PlanGraph, ValuesThatMatter) {
  const auto node = [](const char* text) { return Json::parse(text); };
  const Json add = node(R"({"op": "add_backward", "in": ["g", "a", "b"], "out": ["x", "y"]})");
  EXPECT_TRUE(valueMatters(add, 0));
  EXPECT_FALSE(valueMatters(add, 1));
  // The gradient of one factor is made from the other.
  const Json mul = node(R"({"op": "mul_backward", "in": ["g", "a", "b"], "out": ["x", null]})");
  EXPECT_FALSE(valueMatters(mul, 1));
  EXPECT_TRUE(valueMatters(mul, 2));
  EXPECT_FALSE(valueMatters(
      node(R"({"op": "mul_backward", "in": ["g", "a"], "out": ["x"], "attrs": {"scalar": 2}})"),
      1));
  EXPECT_TRUE(valueMatters(
      node(R"({"op": "pow_backward", "in": ["g", "a"], "out": ["x"], "attrs": {"scalar": 3}})"),
      1));
  EXPECT_TRUE(
      valueMatters(node(R"({"op": "multiref_backward", "in": ["g", "h"], "out": ["x"]})"), 1));
  EXPECT_FALSE(valueMatters(node(R"({"op": "create_mask", "in": ["t"], "out": ["m"]})"), 0));
  const Json rotary = node(
      R"({"op": "apply_rotary_emb_backward", "in": ["g", "h", "q", "k", "f"],
          "out": ["x", "y", null]})");
  EXPECT_TRUE(valueMatters(rotary, 1));
  EXPECT_FALSE(valueMatters(rotary, 2));
  EXPECT_TRUE(valueMatters(rotary, 4));
}

TEST(PlanGraph, FollowsValuesOverAxes) {
  const Written g(with(small("mlp"), [](auto& o) { o.dp = o.tp = o.pp = o.microbatches = 2; }));
  const Json plan = g.document();
  const PlanGraph graph(plan, g.plan);
  EXPECT_EQ(graph.variesOver(0, "x"), (Names{"dp", "mb"}));
  EXPECT_EQ(graph.variesOver(0, "layers.0.up.weight"), Names{"tp"});
  EXPECT_EQ(graph.variesOver(0, "layers.0.down.part"), (Names{"dp", "tp", "mb"}));
  EXPECT_EQ(graph.variesOver(0, "layers.0.down"), (Names{"dp", "mb"}));
  // Across the message between the stages.
  const NodeRef receive = find(graph, "recv", "layers.0.down", 1);
  EXPECT_EQ(graph.variesOver(1, "layers.0.down"), (Names{"dp", "mb"}));
  ASSERT_EQ(graph.partners(receive).size(), 1u);
  EXPECT_EQ(opOf(graph.node(graph.partners(receive)[0])), "send");
  EXPECT_EQ(graph.dataAxes(), Names{"dp"});
  EXPECT_EQ(graph.variesOver(0, "layers.0.up.weight.grad.dp"), Names{"tp"});
}

TEST(PlanGraph, CopiesAreTheSameLineElsewhere) {
  const Written g(with(small("llama3"), [](auto& o) {
    o.dp = o.pp = o.microbatches = 2, o.tp = 4, o.vocabularyParallel = true, o.schedule = "1f1b";
  }));
  const Json plan = g.document();
  const PlanGraph graph(plan, g.plan);
  // Two tp ranks share a key-value head: each tp rank has a program, which differs in the group.
  ASSERT_EQ(graph.programs(), 8);
  const NodeRef reduce = find(graph, "all_reduce", "tok_embeddings");
  const auto copies = graph.copies(reduce);
  EXPECT_EQ(copies.size(), 8u) << "four ranks, two microbatches";
  for (const NodeRef c : copies) EXPECT_LT(c.program, 4);
  EXPECT_TRUE(graph.isFirstCopy(reduce));
  for (std::size_t i = 1; i < copies.size(); ++i) EXPECT_FALSE(graph.isFirstCopy(copies[i]));
  // The norm's reduction over the stages is joined by all of them.
  EXPECT_EQ(graph.copies(find(graph, "all_reduce", "grad_norm.square")).size(), 8u);
}

TEST(PlanGraph, RecomputationIsRepeatedAndPartlyDead) {
  const Written g(
      with(small("mlp"), [](auto& o) { o.tp = o.microbatches = 2, o.recompute = true; }));
  const Json plan = g.document();
  const PlanGraph graph(plan, g.plan);
  const NodeRef again = find(graph, "linear", "layers.0.up.again");
  EXPECT_TRUE(graph.isRepeated(again));
  EXPECT_FALSE(graph.isRepeated(find(graph, "linear", "layers.0.up")));
  EXPECT_EQ(graph.valueNumber(0, "layers.0.up.again"), graph.valueNumber(0, "layers.0.up"));
  EXPECT_NE(graph.valueNumber(0, "layers.0.up"), graph.valueNumber(0, "layers.1.up"));
  EXPECT_TRUE(graph.isLive(again));
  // Nobody reads the layer's result a second time.
  EXPECT_FALSE(graph.isLive(find(graph, "all_reduce", "layers.0.down.again")));
}

TEST(PlanGraph, KnowsGradients) {
  const Written g(with(small("mlp"), [](auto& o) { o.dp = 2, o.pp = 2; }));
  const Json plan = g.document();
  const PlanGraph graph(plan, g.plan);
  for (int p = 0; p < graph.programs(); ++p)
    for (int n = 0; n < graph.nodes(p); ++n) {
      const NodeRef ref{p, n};
      const Json& node = graph.node(ref);
      if (isBackward(node) || opOf(node) == "sgd") {
        EXPECT_TRUE(graph.afterBackward(ref)) << pointerTo(ref);
      } else if (opOf(node) == "silu" || opOf(node) == "square") {
        EXPECT_FALSE(graph.afterBackward(ref)) << pointerTo(ref);
      } else if (opOf(node) == "recv") {
        EXPECT_EQ(graph.afterBackward(ref),
                  node.at("comm").get<std::string>().starts_with("backward"))
            << pointerTo(ref);
      }
    }
}

// Sizes that a bug could push beyond 64 bits.
TEST(PlanGraph, SizesNearTwoToThe63AreAnInputError) {
  const auto complaint = [](const char* mesh, const char* size) {
    const std::string text =
        R"({"format": "shardproof-plan", "version": 1, "mesh": )" + std::string(mesh) +
        R"(, "lineage": [], "programs": [{"at": {}, "tensors": {"a/b": {"shape": [1, )" + size +
        R"(]}}, "nodes": []}]})";
    try {
      const Json plan = Json::parse(text);
      const PlanGraph graph(plan, "p.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint("[]", "1099511627776"), "");
  EXPECT_EQ(complaint("[]", "1099511627777"),
            "p.json: /programs/0/tensors/a~1b/shape/1: found 1099511627777, expected at most 2^40 "
            "in a plan that is to be mutated");
  EXPECT_NE(complaint("[]", "18446744073709551615"), "");
  EXPECT_NE(complaint("[]", "-9223372036854775808"), "");
  EXPECT_EQ(complaint(R"([["a", 1024], ["b", 1024]])", "1"), "");
  EXPECT_NE(complaint(R"([["a", 1024], ["b", 1025]])", "1"), "");
  EXPECT_NE(complaint(R"([["a", 0]])", "1"), "");
}

// Not memory without end: a program is written once for each rank.
TEST(PlanGraph, RanksAndMicrobatchesThatCannotBeWrittenOutAreAnInputError) {
  Json plan = Json::parse(
      R"({"format": "shardproof-plan", "version": 1, "mesh": [["a", 1000000]], "lineage": [],
          "programs": [{"at": {}, "tensors": {"x": {"shape": [2, 2]}, "y": {"shape": [2]}},
                        "nodes": []}]})");
  try {
    asPlan("p.json", [&] { return splitAxis(plan, 0, "a"); });
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "p.json: not a plan that can be mutated: /programs/0 would be written 1000000 times, "
              "for the ranks along 'a'; a mutated plan has at most 8388608 JSON values");
  }
  plan["mesh"][0][1] = 1000;
  asPlan("p.json", [&] { return splitAxis(plan, 0, "a"); });
  EXPECT_EQ(plan["programs"].size(), 1000U);

  const auto complaint = [&](std::int64_t microbatches) {
    plan["microbatches"] = microbatches;
    try {
      const PlanGraph graph(plan, "p.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint(16384), "");
  EXPECT_EQ(complaint(16385),
            "p.json: /microbatches: found 16385, expected 1 to 16384 in a plan that is to be "
            "mutated");
}

TEST(PlanGraph, WhatIsNoPlanIsAnInputError) {
  const Json noFormat = Json::parse(R"({"programs": []})"),
             model = Json::parse(R"({"format": "shardproof-model"})");
  const Json noNodes = Json::parse(
      R"({"format": "shardproof-plan", "mesh": [], "programs": [{"at": {}, "tensors": {}}],
          "lineage": []})");
  for (const Json* document : {&noFormat, &model, &noNodes})
    EXPECT_THROW(PlanGraph(*document, "f"), InputError);
}

}  // namespace
}  // namespace shardproof::mutate
