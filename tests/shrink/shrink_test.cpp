// SPDX-License-Identifier: Apache-2.0
#include "shrink/shrink.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "ops/attributes.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::draft;
using test::Draft;
using test::Json;

Verdict verdictOf(const Problem& problem) {
  VerifyOptions options;
  options.jobs = 1;
  return verify(problem, options).verdict;
}

const Tensor& local(const Problem& p, const std::string& name, std::int32_t program = 0) {
  return p.plan.programs[static_cast<std::size_t>(program)]
      .graph.tensors[static_cast<std::size_t>(test::localTensor(p, program, name))];
}
const Tensor& logical(const Problem& p, const std::string& name) {
  return p.model.graph.tensors[static_cast<std::size_t>(test::modelTensor(p, name))];
}
const Attributes& attributesOf(const Problem& p, std::size_t node, std::int32_t program = 0) {
  const Graph& g =
      program < 0 ? p.model.graph : p.plan.programs[static_cast<std::size_t>(program)].graph;
  return p.attributes.at(g.nodes[node].attributes);
}

// The mean of squares over 40 rows; 8 ranks have five rows each, add up and divide by what stands
// in for 40.
Draft meanOverRanks() {
  return draft(
      R"({"tensors": {"x": {"shape": [40, 6], "kind": "input"}, "s": {"shape": [40, 6]},
          "y": {"shape": [6]}},
                   "nodes": [{"op": "square", "in": ["x"], "out": ["s"]},
                    {"op": "mean", "in": ["s"], "out": ["y"], "attrs": {"dim": 0}}],
                    "outputs": ["y"]})",
      R"({"mesh": [["dp", 8]], "programs": [{
                   "tensors": {"x": {"shape": [5, 6], "kind": "input"}, "s": {"shape": [5, 6]},
                    "m": {"shape": [6]}, "a": {"shape": [6]}, "y": {"shape": [6]}},
                   "nodes": [{"op": "square", "in": ["x"], "out": ["s"]},
                    {"op": "mean", "in": ["s"], "out": ["m"], "attrs": {"dim": 0}},
                             {"op": "all_reduce", "in": ["m"], "out": ["a"], "comm": "c",
                              "group": ["dp"]},
                             {"op": "mul", "in": ["a"], "out": ["y"],
                              "attrs": {"scalar": 0.125}}]}],
                   "lineage": [{"tensor": "x", "role": "input",
                    "shards": [{"box": [[0, 5], [0, 6]], "step": {"dp": [5, 0]},
                    "parts": [{"local": "x"}]}]},
                               {"tensor": "y", "role": "output",
                                "shards": [{"box": [[0, 6]], "parts": [{"local": "y"}]}]}]})");
}

TEST(Shrink, FactorsFollowTheRanksThatTheyStandFor) {
  const auto full = test::read(meanOverRanks());
  ASSERT_EQ(verdictOf(*full), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_EQ(s.problem->plan.ranks(), 2);
  EXPECT_EQ(local(*s.problem, "x").shape[0] * 2, logical(*s.problem, "x").shape[0]);
  EXPECT_EQ(ops::number(attributesOf(*s.problem, 3), "scalar"), Rational(1, 2));
  EXPECT_TRUE(s.factorsExplained);
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
  EXPECT_LT(s.elements, s.fullElements / 10);
  EXPECT_EQ(s.entryOf, (std::vector{EntryId(0), EntryId(1)}));
}

TEST(Shrink, WithoutADecimalTheOperatorDivides) {
  Draft d = meanOverRanks();
  ShrinkOptions options;
  options.ranks = 3;
  const Shrunk s = shrinkProblem(*test::read(d), options);
  EXPECT_EQ(s.problem->plan.ranks(), 3);
  EXPECT_EQ(ops::Registry::instance().at(s.problem->plan.programs[0].graph.nodes[3].op).name,
            "div");
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

TEST(Shrink, WrongScalesStayWrong) {
  Draft d = meanOverRanks();
  d.node(0, 3)["attrs"]["scalar"] = 0.0625;
  const Shrunk s = shrinkProblem(*test::read(d));
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kNotEquivalent);
  EXPECT_FALSE(s.factorsExplained);  // no product of sizes is 16
  ASSERT_FALSE(s.notes.empty());
  d = meanOverRanks();
  d.node(0, 2)["op"] = "identity";
  for (const char* key : {"comm", "group"}) d.node(0, 2).erase(key);
  EXPECT_EQ(verdictOf(*shrinkProblem(*test::read(d)).problem), Verdict::kNotEquivalent);
}

// Two axes of eight ranks: the factor could be either, and is taken for the one that divides the
// samples.
TEST(Shrink, AFactorIsTakenForTheAxisThatDividesTheSamples) {
  Draft d = meanOverRanks();
  d.plan["mesh"] = Json::parse(R"([["tp", 8], ["dp", 8]])");
  d.plan["programs"][0]["at"] = Json::object();
  ShrinkOptions options;
  const Shrunk s = shrinkProblem(*test::read(d), options);
  EXPECT_EQ(s.problem->plan.mesh[1].size, 2);
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// 8 samples of 16 tokens, and a layer that is 128 wide: what the model divides by is how many
// tokens there are.
TEST(Shrink, AFactorIsTakenForTokensWhereALayerIsAsWide) {
  const auto full = test::read(draft(
      R"({"tensors": {"x": {"shape": [8, 16, 6], "kind": "input"},
          "w": {"shape": [128, 6], "kind": "parameter"},
                      "a": {"shape": [8, 16, 128]}, "b": {"shape": [16, 128]},
                       "s": {"shape": [128]}, "y": {"shape": [128]}},
          "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["a"]},
           {"op": "sum", "in": ["a"], "out": ["b"], "attrs": {"dim": 0}},
                    {"op": "sum", "in": ["b"], "out": ["s"], "attrs": {"dim": 0}},
                     {"op": "mul", "in": ["s"], "out": ["y"], "attrs": {"scalar": 0.0078125}}],
                     "outputs": ["y"]})",
      R"({"mesh": [["dp", 2]], "programs": [{
            "tensors": {"x": {"shape": [4, 16, 6], "kind": "input"},
             "w": {"shape": [128, 6], "kind": "parameter"}, "a": {"shape": [4, 16, 128]},
                        "b": {"shape": [16, 128]}, "s": {"shape": [128]}, "m": {"shape": [128]},
                         "y": {"shape": [128]}},
            "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["a"]},
             {"op": "sum", "in": ["a"], "out": ["b"], "attrs": {"dim": 0}},
                      {"op": "sum", "in": ["b"], "out": ["s"], "attrs": {"dim": 0}},
                       {"op": "mul", "in": ["s"], "out": ["m"], "attrs": {"scalar": 0.015625}},
                      {"op": "all_reduce", "in": ["m"], "out": ["y"], "comm": "c", "group": ["dp"],
                       "attrs": {"reduce": "mean"}}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 16], [0, 6]],
           "step": {"dp": [4, 0, 0]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 128], [0, 6]],
                       "parts": [{"local": "w"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 128]],
                       "parts": [{"local": "y"}]}]}]})"));
  ASSERT_EQ(verdictOf(*full), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_LT(s.elements, s.fullElements / 10);
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// Attention of 256 queries on one rank, with these attributes in the model and in the plan.
Draft attention(const Json& ofModel, const Json& ofPlan) {
  const Json tensors = Json::parse(
      R"({"q": {"shape": [256, 64], "kind": "input"}, "k": {"shape": [256, 64], "kind": "input"},
          "v": {"shape": [256, 64], "kind": "input"}, "o": {"shape": [256, 64]}})");
  const auto nodes = [](const Json& attrs) {
    return Json{
        {{"op", "attention"}, {"in", {"q", "k", "v"}}, {"out", {"o", nullptr}}, {"attrs", attrs}}};
  };
  Draft d = draft(R"({"tensors": {}, "nodes": [], "outputs": ["o"]})",
                  R"({"mesh": [["a", 1]], "programs": [{"tensors": {}, "nodes": []}],
          "lineage": [{"tensor": "q", "role": "input", "shards": [{"box": [[0, 256], [0, 64]],
           "parts": [{"local": "q"}]}]},
                      {"tensor": "k", "role": "input", "shards": [{"box": [[0, 256], [0, 64]],
                       "parts": [{"local": "k"}]}]},
                      {"tensor": "v", "role": "input", "shards": [{"box": [[0, 256], [0, 64]],
                       "parts": [{"local": "v"}]}]},
                      {"tensor": "o", "role": "output", "shards": [{"box": [[0, 256], [0, 64]],
                       "parts": [{"local": "o"}]}]}]})");
  d.model["tensors"] = d.program(0)["tensors"] = tensors;
  d.model["nodes"] = nodes(ofModel);
  d.program(0)["nodes"] = nodes(ofPlan);
  return d;
}

TEST(Shrink, AScaleOfAttentionThatIsWrittenDownIsFreeOfSizes) {
  const Shrunk s = shrinkProblem(*test::read(attention({{"scale", 0.3}}, {{"scale", 0.3}})));
  EXPECT_LT(logical(*s.problem, "q").shape[0], 16);
  EXPECT_LT(logical(*s.problem, "q").shape[1], 16);
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// 1/8 is the root of 1/64 and of nothing else.
TEST(Shrink, AScaleThatOneSideTakesFromTheSizeKeepsTheSize) {
  const Json none = Json::object(), eighth = {{"scale", 0.125}};
  for (const auto& [model, plan] : {std::pair{none, eighth}, std::pair{eighth, none}}) {
    const Shrunk s = shrinkProblem(*test::read(attention(model, plan)));
    EXPECT_LT(logical(*s.problem, "q").shape[0], 16);
    EXPECT_EQ(logical(*s.problem, "q").shape[1], 64);
    EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
  }
  const Shrunk both = shrinkProblem(*test::read(attention(none, none)));
  EXPECT_LT(logical(*both.problem, "q").shape[1], 16);
  EXPECT_EQ(verdictOf(*both.problem), Verdict::kEquivalent);
}

// The sum of squares over 40 rows, five for each of 8 microbatches, written as a running sum of
// which `order` has the microbatches. `named`: each one's sum has a name of its own.
Draft runningSum(const std::vector<int>& order, bool named = false) {
  Json tensors = {{"x", {{"shape", {5, 6}}, {"kind", "input"}, {"per_mb", true}}},
                  {"s", {{"shape", {5, 6}}, {"per_mb", true}}}};
  Json nodes = {{{"op", "square"}, {"in", {"x"}}, {"out", {"s"}}, {"mb", "*"}}};
  const auto sum = [&](const std::string& of, const Json& microbatch) {
    tensors[of] = {{"shape", {6}}, {"per_mb", !named}};
    nodes.push_back(
        {{"op", "sum"}, {"in", {"s"}}, {"out", {of}}, {"attrs", {{"dim", 0}}}, {"mb", microbatch}});
  };
  const std::string one = named ? "t." : "t#";
  if (!named) sum("t", "*");
  else
    for (int k = 0; k < 8; ++k) sum(one + std::to_string(k), k);
  std::string before = one + std::to_string(order[0]);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::string both = i + 1 == order.size() ? "y" : "sum." + std::to_string(i);
    tensors[both] = {{"shape", {6}}};
    nodes.push_back(
        {{"op", "add"}, {"in", {before, one + std::to_string(order[i])}}, {"out", {both}}});
    before = both;
  }
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [40, 6], "kind": "input"}, "s": {"shape": [40, 6]},
          "y": {"shape": [6]}},
          "nodes": [{"op": "square", "in": ["x"], "out": ["s"]},
           {"op": "sum", "in": ["s"], "out": ["y"], "attrs": {"dim": 0}}], "outputs": ["y"]})",
      R"({"mesh": [["dp", 1]], "microbatches": 8, "programs": [],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 5], [0, 6]],
           "step": {"mb": [5, 0]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 6]],
                       "parts": [{"local": "y"}]}]}]})");
  d.plan["programs"].push_back({{"tensors", tensors}, {"nodes", nodes}});
  return d;
}

TEST(Shrink, MicrobatchesThatAreAlikeBecomeFewer) {
  const auto full = test::read(runningSum({0, 1, 2, 3, 4, 5, 6, 7}));
  ASSERT_EQ(verdictOf(*full), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_EQ(s.problem->plan.microbatches, 2);
  EXPECT_EQ(s.microbatchOf, (std::vector<std::int32_t>{0, 1}));
  const Graph& graph = s.problem->plan.programs[0].graph;
  ASSERT_EQ(graph.nodes.size(), full->plan.programs[0].graph.nodes.size());
  const auto op = [&](std::size_t n) {
    return ops::Registry::instance().at(graph.nodes[n].op).name;
  };
  EXPECT_EQ(op(2), "add");  // of microbatches 0 and 1
  for (std::size_t n = 3; n < graph.nodes.size(); ++n) EXPECT_EQ(op(n), "identity");
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// What each of them makes has another name.
TEST(Shrink, MicrobatchesWithNamesOfTheirOwnBecomeFewer) {
  const auto full = test::read(runningSum({0, 1, 2, 3, 4, 5, 6, 7}, true));
  ASSERT_EQ(verdictOf(*full), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_EQ(s.problem->plan.microbatches, 2);
  std::map<std::string, int> ops;
  for (const Node& node : s.problem->plan.programs[0].graph.nodes)
    ++ops[ops::Registry::instance().at(node.op).name];
  EXPECT_EQ(ops,
            (std::map<std::string, int>{{"square", 1}, {"sum", 2}, {"add", 1}, {"identity", 6}}));
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

void expectAllStay(const Draft& d) {
  const auto full = test::read(d);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_EQ(s.problem->plan.microbatches, 8);
  EXPECT_EQ(verdictOf(*s.problem), verdictOf(*full));
}

// A microbatch that is left out, or added twice, or in a sum of those that go: all stay.
TEST(Shrink, MicrobatchesThatAreNotAlikeStay) {
  for (const bool named : {false, true}) {
    for (const auto& order : {std::vector<int>{0, 1, 2, 3, 4, 5, 6},
                              {0, 1, 2, 3, 4, 5, 6, 6},
                              {0, 1, 2, 3, 4, 5, 6, 7, 7},
                              {7, 6, 5, 4, 3, 2, 1, 0}})
      expectAllStay(runningSum(order, named));
  }
}

// One that is made otherwise, read by something else, spoken of by lineage.
TEST(Shrink, MicrobatchesWithNamesOfTheirOwnThatAreNotAlikeStay) {
  const Draft d = runningSum({0, 1, 2, 3, 4, 5, 6, 7}, true);
  Draft other = d;
  other.node(0, 6)["op"] = "mean";
  expectAllStay(other);
  other = d;
  other.node(0, 9)["in"] = {"t.0", "u"};
  other.tensor(0, "u") = {{"shape", {6}}};
  auto& nodes = other.program(0)["nodes"];
  nodes.insert(nodes.begin() + 9, Json::parse(R"({"op": "neg", "in": ["t.1"], "out": ["u"]})"));
  expectAllStay(other);
  other = d;
  other.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "y", "role": "cut_point", "shards": [{"box": [[0, 6]],
          "parts": [{"local": "t.5"}]}]})"));
  expectAllStay(other);
}

// A schedule that names each microbatch: nodes of those that go, go.
TEST(Shrink, MicrobatchesThatAScheduleNamesBecomeFewer) {
  const auto full = test::read(test::microbatchByMicrobatch(5));
  ASSERT_EQ(verdictOf(*full), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_EQ(s.problem->plan.microbatches, 2);
  const Graph& graph = s.problem->plan.programs[0].graph;
  std::map<std::string, int> ops;
  for (const Node& node : graph.nodes) ++ops[ops::Registry::instance().at(node.op).name];
  EXPECT_EQ(ops,
            (std::map<std::string, int>{{"square", 2}, {"sum", 2}, {"add", 1}, {"identity", 6}}));
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// One that does something else, that is there once too often, in another order or of another one's
// tensors: all stay, and the plan is as wrong or right as it was.
TEST(Shrink, NamedMicrobatchesThatAreNotAlikeStay) {
  const auto unlike = [](const std::function<void(Json&)>& change) {
    Draft d = test::microbatchByMicrobatch(5);
    change(d.plan["programs"][0]["nodes"]);
    const auto full = test::read(d);
    const Shrunk s = shrinkProblem(*full);
    EXPECT_EQ(s.problem->plan.microbatches, 8);
    EXPECT_EQ(verdictOf(*s.problem), verdictOf(*full));
  };
  unlike([](Json& nodes) { nodes[14]["op"] = "exp"; });
  unlike([](Json& nodes) { nodes[15]["in"][0] = "s#0"; });
  unlike([](Json& nodes) { nodes[16]["in"][1] = "t#0"; });
  unlike([](Json& nodes) { nodes.erase(nodes.begin() + 16), nodes[18]["in"][0] = "sum.4"; });
  unlike([](Json& nodes) { nodes[14]["in"][0] = "x#1"; });
}

TEST(Shrink, ACoordinateUnlikeTheOthersStays) {
  Draft d = meanOverRanks();
  Json own = d.program(0), others = d.program(0);
  d.plan["programs"] = Json::array();
  for (int c = 0; c < 8; ++c) {
    Json program = c == 5 ? own : others;
    program["at"] = {{"dp", c}};
    if (c == 5)
      program["nodes"][0] = Json::parse(R"({"op": "mul", "in": ["x", "x"], "out": ["s"]})");
    d.plan["programs"].push_back(program);
  }
  const Shrunk right = shrinkProblem(*test::read(d));
  EXPECT_EQ(right.problem->plan.ranks(), 3);  // 0 and 1 for one symmetry class, and 5
  EXPECT_EQ(ops::Registry::instance().at(right.problem->plan.programs[2].graph.nodes[0].op).name,
            "mul");
  EXPECT_EQ(verdictOf(*right.problem), Verdict::kEquivalent);
  d.node(5, 0) = Json::parse(R"({"op": "identity", "in": ["x"], "out": ["s"]})");
  EXPECT_EQ(verdictOf(*shrinkProblem(*test::read(d)).problem), Verdict::kNotEquivalent);
}

// Two halves that are put together again; `stop` of the first.
Draft halves(int stop) {
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [4096, 6], "kind": "input"}, "y": {"shape": [4096, 6]}},
          "nodes": [{"op": "neg", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["a", 1]], "programs": [{
                      "tensors": {"x": {"shape": [4096, 6], "kind": "input"},
                       "l": {"shape": [2048, 6]}, "r": {"shape": [2048, 6]},
                       "c": {"shape": [4096, 6]}, "y": {"shape": [4096, 6]}},
                      "nodes": [{"op": "slice", "in": ["x"], "out": ["l"],
                       "attrs": {"dim": 0, "stop": 2048}},
                                {"op": "slice", "in": ["x"], "out": ["r"],
                                 "attrs": {"dim": 0, "start": 2048}},
                                {"op": "cat", "in": ["l", "r"], "out": ["c"], "attrs": {"dim": 0}},
                                 {"op": "neg", "in": ["c"], "out": ["y"]}]}],
                      "lineage": [{"tensor": "x", "role": "input",
                       "shards": [{"box": [[0, 4096], [0, 6]], "parts": [{"local": "x"}]}]},
                                  {"tensor": "y", "role": "output",
                                   "shards": [{"box": [[0, 4096], [0, 6]],
                                   "parts": [{"local": "y"}]}]}]})");
  d.node(0, 0)["attrs"] = {{"dim", 0}, {"start", stop - 2048}, {"stop", stop}};
  return d;
}

TEST(Shrink, ABoundThatIsOneOffStaysOneOff) {
  const Shrunk right = shrinkProblem(*test::read(halves(2048)));
  EXPECT_LE(logical(*right.problem, "x").shape[0], 8);
  EXPECT_EQ(verdictOf(*right.problem), Verdict::kEquivalent);
  const Shrunk wrong = shrinkProblem(*test::read(halves(2049)));
  EXPECT_LE(logical(*wrong.problem, "x").shape[0], 4096);
  EXPECT_EQ(ops::integer(attributesOf(*wrong.problem, 0), "start"), 1);
  EXPECT_EQ(ops::integer(attributesOf(*wrong.problem, 0), "stop"),
            local(*wrong.problem, "l").shape[0] + 1);
  EXPECT_EQ(verdictOf(*wrong.problem), Verdict::kNotEquivalent);
}

// A table of 1000 rows in two windows; the second begins at `start`.
TEST(Shrink, WindowsOfATableKeepThreeRowsAndTheirPlaces) {
  for (const int start : {500, 499}) {
    Draft d = draft(
        R"({"tensors": {"i": {"shape": [64], "kind": "input", "dtype": "int64"},
            "w": {"shape": [1000, 32], "kind": "parameter"}, "y": {"shape": [64, 32]}},
                        "nodes": [{"op": "embedding", "in": ["i", "w"], "out": ["y"]}],
                         "outputs": ["y"]})",
        R"({"mesh": [["tp", 2]], "programs": [
                        {"at": {"tp": 0}, "tensors": {"i": {"shape": [64], "kind": "input",
                         "dtype": "int64"}, "w": {"shape": [500, 32], "kind": "parameter"},
                         "p": {"shape": [64, 32]}, "y": {"shape": [64, 32]}},
                         "nodes": [{"op": "embedding", "in": ["i", "w"], "out": ["p"],
                          "attrs": {"start": 0, "stop": 500}},
                          {"op": "all_reduce", "in": ["p"], "out": ["y"], "comm": "c",
                          "group": ["tp"]}]},
                        {"at": {"tp": 1}, "tensors": {"i": {"shape": [64], "kind": "input",
                         "dtype": "int64"}, "w": {"shape": [500, 32], "kind": "parameter"},
                         "p": {"shape": [64, 32]}, "y": {"shape": [64, 32]}},
                         "nodes": [{"op": "embedding", "in": ["i", "w"], "out": ["p"],
                          "attrs": {"start": 500, "stop": 1000}},
                          {"op": "all_reduce", "in": ["p"], "out": ["y"], "comm": "c",
                          "group": ["tp"]}]}],
                        "lineage": [{"tensor": "i", "role": "input",
                         "shards": [{"box": [[0, 64]], "parts": [{"local": "i"}]}]},
                                    {"tensor": "w", "role": "input",
                                     "shards": [{"box": [[0, 500], [0, 32]],
                                     "parts": [{"local": "w", "at": {"tp": 0}}]},
                                     {"box": [[500, 1000], [0, 32]],
                                     "parts": [{"local": "w", "at": {"tp": 1}}]}]},
                                    {"tensor": "y", "role": "output",
                                     "shards": [{"box": [[0, 64], [0, 32]],
                                     "parts": [{"local": "y"}]}]}]})");
    d.node(1, 0)["attrs"] = {{"start", start}, {"stop", start + 500}};
    const Shrunk s = shrinkProblem(*test::read(d));
    EXPECT_GE(local(*s.problem, "w").shape[0], 3);
    EXPECT_LE(logical(*s.problem, "i").shape[0], 3);
    EXPECT_EQ(verdictOf(*s.problem), start == 500 ? Verdict::kEquivalent : Verdict::kNotEquivalent)
        << start;
  }
}

// A square weight is no square any more where nothing says that it must be one: a transposition
// would not show.
TEST(Shrink, SizesOfOneTensorDiffer) {
  const auto problem = test::read(
      R"({"tensors": {"x": {"shape": [64, 64], "kind": "input"},
          "w": {"shape": [64, 64], "kind": "parameter"}, "y": {"shape": [64, 64]}},
                                      "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"]}],
                                       "outputs": ["y"]})",
      R"({"mesh": [["a", 1]], "programs": [{"tensors": {"x": {"shape": [64, 64], "kind": "input"},
          "w": {"shape": [64, 64], "kind": "parameter"}, "y": {"shape": [64, 64]}},
                                      "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"]}]}],
                                      "lineage": [{"tensor": "x", "role": "input",
                                       "shards": [{"box": [[0, 64], [0, 64]],
                                       "parts": [{"local": "x"}]}]},
                                                  {"tensor": "w", "role": "input",
                                                   "shards": [{"box": [[0, 64], [0, 64]],
                                                   "parts": [{"local": "w"}]}]},
                                                  {"tensor": "y", "role": "output",
                                                   "shards": [{"box": [[0, 64], [0, 64]],
                                                   "parts": [{"local": "y"}]}]}]})");
  const Shrunk s = shrinkProblem(*problem);
  for (const char* name : {"x", "w", "y"})
    EXPECT_NE(logical(*s.problem, name).shape[0], logical(*s.problem, name).shape[1]) << name;
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// Optimizer states shared over eight ranks: 4 rows each of 32 that are heads of several positions
// in a view.
TEST(Shrink, SharesNeedNotFollowTheHeads) {
  const auto problem = test::read(
      R"({"tensors": {"w": {"shape": [32, 10], "kind": "parameter"},
          "g": {"shape": [32, 10], "kind": "input"}, "v": {"shape": [4, 8, 10]},
          "h": {"shape": [4, 10]}, "n": {"shape": [32, 10]}},
          "nodes": [{"op": "sgd", "in": ["w", "g"], "out": ["n"], "attrs": {"lr": 0.1}},
           {"op": "view", "in": ["n"], "out": ["v"], "attrs": {"size": [4, 8, 10]}},
                    {"op": "sum", "in": ["v"], "out": ["h"], "attrs": {"dim": 1}}],
                     "outputs": ["h", "n"]})",
      R"({"mesh": [["dp", 8]], "programs": [{
          "tensors": {"w": {"shape": [4, 10], "kind": "parameter"},
           "g": {"shape": [4, 10], "kind": "input"}, "n": {"shape": [4, 10]},
           "a": {"shape": [32, 10]}, "v": {"shape": [4, 8, 10]}, "h": {"shape": [4, 10]}},
          "nodes": [{"op": "sgd", "in": ["w", "g"], "out": ["n"], "attrs": {"lr": 0.1}},
           {"op": "all_gather", "in": ["n"], "out": ["a"], "comm": "c", "group": ["dp"],
           "attrs": {"dim": 0}},
                    {"op": "view", "in": ["a"], "out": ["v"], "attrs": {"size": [4, -1, 10]}},
                     {"op": "sum", "in": ["v"], "out": ["h"], "attrs": {"dim": 1}}]}],
          "lineage": [{"tensor": "w", "role": "input", "shards": [{"box": [[0, 4], [0, 10]],
           "step": {"dp": [4, 0]}, "parts": [{"local": "w"}]}]},
                      {"tensor": "g", "role": "input", "shards": [{"box": [[0, 4], [0, 10]],
                       "step": {"dp": [4, 0]}, "parts": [{"local": "g"}]}]},
                      {"tensor": "n", "role": "output", "shards": [{"box": [[0, 4], [0, 10]],
                       "step": {"dp": [4, 0]}, "parts": [{"local": "n"}]}]},
                      {"tensor": "h", "role": "output", "shards": [{"box": [[0, 4], [0, 10]],
                       "parts": [{"local": "h"}]}]}]})");
  ASSERT_EQ(verdictOf(*problem), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*problem);
  EXPECT_EQ(s.problem->plan.ranks(), 2);
  EXPECT_EQ(local(*s.problem, "a").shape[0], 2 * local(*s.problem, "w").shape[0]);
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
}

// Members whose places mean something all stay, and so do their pieces; other dimensions shrink.
TEST(Shrink, UnevenPiecesAndPairsStay) {
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [12, 40], "kind": "input"}, "y": {"shape": [12, 40]}},
          "nodes": [{"op": "exp", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["dp", 3]], "programs": [], "lineage": [{"tensor": "x", "role": "input",
          "shards": []},
          {"tensor": "y", "role": "output", "shards": [{"box": [[0, 12], [0, 40]],
           "parts": [{"local": "y"}]}]}]})");
  const std::int64_t sizes[] = {7, 5, 0}, begin[] = {0, 7, 12};
  for (std::size_t r = 0; r < 3; ++r) {
    Json program = Json::parse(
        R"({"tensors": {"all": {"shape": [12, 40]}, "e": {"shape": [12, 40]},
            "y": {"shape": [12, 40]}},
            "nodes": [{"op": "all_gather", "in": [], "out": ["all"], "comm": "g", "group": ["dp"],
             "attrs": {"dim": 0}, "sizes": [7, 5, 0]},
                      {"op": "exp", "in": ["all"], "out": ["e"]},
                      {"op": "collective_permute", "in": ["e"], "out": ["y"], "comm": "p",
                       "group": ["dp"], "pairs": [[0, 1], [1, 2], [2, 0]]}]})");
    program["at"]["dp"] = r;
    if (sizes[r] > 0) {
      program["tensors"]["x"] = {{"shape", {sizes[r], 40}}, {"kind", "input"}};
      program["nodes"][0]["in"] = {"x"};
      d.entry(0)["shards"].push_back(
          {{"box", {{begin[r], begin[r] + sizes[r]}, {0, 40}}},
           {"parts", Json::array({{{"local", "x"}, {"at", {{"dp", r}}}}})}});
    }
    d.plan["programs"].push_back(std::move(program));
  }
  const auto full = test::read(d);
  ASSERT_EQ(verdictOf(*full), Verdict::kEquivalent);
  const Shrunk s = shrinkProblem(*full);
  EXPECT_EQ(s.problem->plan.ranks(), 3);
  EXPECT_EQ(local(*s.problem, "x", 1).shape[0], 5);
  EXPECT_LT(local(*s.problem, "x", 1).shape[1], 40);
  EXPECT_EQ(verdictOf(*s.problem), Verdict::kEquivalent);
  for (std::size_t r = 0; r < 3; ++r) d.node(r, 2)["pairs"] = Json::parse("[[0, 1], [1, 2]]");
  const auto wrong = test::read(d);
  EXPECT_EQ(verdictOf(*shrinkProblem(*wrong).problem), Verdict::kNotEquivalent);
}

TEST(Shrink, SaysWhyItCannot) {
  ShrinkOptions options;
  options.maxElements = 1;
  EXPECT_THROW(shrinkProblem(*test::read(meanOverRanks()), options), Unsupported);
}

// A plan with a wrong shape cannot run; nor can the smaller one.
TEST(Shrink, AWrongShapeStaysWrong) {
  Draft d = meanOverRanks();
  d.tensor(0, "a")["shape"] = {6, 1};
  d.tensor(0, "y")["shape"] = {6};
  const auto full = test::read(d);
  ASSERT_EQ(verdictOf(*full), Verdict::kNotEquivalent);
  EXPECT_EQ(verdictOf(*shrinkProblem(*full).problem), Verdict::kNotEquivalent);
}

}  // namespace
}  // namespace shardproof
