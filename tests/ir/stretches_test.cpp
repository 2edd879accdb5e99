// SPDX-License-Identifier: Apache-2.0
// Programs and lineage that name stretches of an axis.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "executor/interpret.h"
#include "ir/attribute_steps.h"
#include "plan/plan_index.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "support/problems.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

// Eight rows over dp 6 x tp 2, alike on tp: ranks 0 to 3 of dp have one, ranks 4 and 5 two. Each
// takes its rows of x by a slice.
Draft rows() {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [8, 3], "kind": "input"}, "y": {"shape": [8, 3]}},
          "nodes": [{"op": "mul", "in": ["x", "x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"version": 2, "mesh": [["dp", 6], ["tp", 2]], "programs": [
           {"at": {"dp": [0, 4]}, "tensors": {"x": {"shape": [8, 3], "kind": "input"},
            "own": {"shape": [1, 3]}, "y": {"shape": [1, 3]}},
            "nodes": [{"op": "slice", "in": ["x"], "out": ["own"],
             "attrs": {"dim": 0, "start": 0, "stop": 1}, "step": {"dp": {"start": 1, "stop": 1}}},
                      {"op": "mul", "in": ["own", "own"], "out": ["y"]}]},
           {"at": {"dp": [4, 6]}, "tensors": {"x": {"shape": [8, 3], "kind": "input"},
            "own": {"shape": [2, 3]}, "y": {"shape": [2, 3]}},
            "nodes": [{"op": "slice", "in": ["x"], "out": ["own"],
             "attrs": {"dim": 0, "start": -4, "stop": -2}, "step": {"dp": {"start": 2, "stop": 2}}},
                      {"op": "mul", "in": ["own", "own"], "out": ["y"]}]}],
          "lineage": [
           {"tensor": "x", "role": "input", "shards": [{"box": [[0, 8], [0, 3]],
            "parts": [{"local": "x"}]}]},
           {"tensor": "y", "role": "output", "shards": [
            {"box": [[0, 1], [0, 3]], "step": {"dp": [1, 0]},
             "parts": [{"local": "y", "at": {"dp": [0, 4]}}]},
            {"box": [[-4, -2], [0, 3]], "step": {"dp": [2, 0]},
             "parts": [{"local": "y", "at": {"dp": [4, 6]}}]}]}]})");
  return d;
}

// A sum over dp 6 whose parts have other names on ranks 0 to 3 than on the others.
Draft sum() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [6, 3], "kind": "input"}, "y": {"shape": [3]}},
          "nodes": [{"op": "sum", "in": ["x"], "out": ["y"], "attrs": {"dim": 0}}],
           "outputs": ["y"]})",
      R"({"version": 2, "mesh": [["dp", 6]], "programs": [
           {"at": {"dp": [0, 4]}, "tensors": {"x": {"shape": [1, 3], "kind": "input"},
            "a": {"shape": [3]}},
            "nodes": [{"op": "sum", "in": ["x"], "out": ["a"], "attrs": {"dim": 0}}]},
           {"at": {"dp": [4, 6]}, "tensors": {"x": {"shape": [1, 3], "kind": "input"},
            "b": {"shape": [3]}},
            "nodes": [{"op": "sum", "in": ["x"], "out": ["b"], "attrs": {"dim": 0}}]}],
          "lineage": [
           {"tensor": "x", "role": "input", "shards": [{"box": [[0, 1], [0, 3]],
            "step": {"dp": [1, 0]}, "parts": [{"local": "x"}]}]},
           {"tensor": "y", "role": "output", "shards": [{"box": [[0, 3]], "sum": ["dp"],
            "parts": [{"local": "a", "at": {"dp": [0, 4]}},
             {"local": "b", "at": {"dp": [4, 6]}}]}]}]})");
}

Json& shardOf(Draft& d, std::size_t s) { return d.plan["lineage"][1]["shards"][s]; }
Json& atOf(Draft& d, std::size_t s, std::size_t part) { return shardOf(d, s)["parts"][part]["at"]; }

Verdict verdictOf(const Problem& problem) {
  VerifyOptions options;
  options.inProcess = true;
  return verify(problem, options).verdict;
}

void expectRefused(const Draft& d, const std::string& pointer, const std::string& what) {
  try {
    static_cast<void>(test::read(d));
    ADD_FAILURE() << "was read: " << what;
  } catch (const InputError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(pointer), std::string::npos) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
  }
}

TEST(Stretches, AreRead) {
  const auto problem = test::read(rows());
  const Plan& plan = problem->plan;
  EXPECT_TRUE(plan.programs[0].at.empty());
  EXPECT_EQ(plan.programs[0].within, (Stretches{{0, 0, 4}}));
  EXPECT_EQ(plan.lineage[1].shards[1].parts[0].within, (Stretches{{0, 4, 6}}));
  ASSERT_EQ(plan.programs[1].steps.size(), 1u);
  EXPECT_EQ(plan.programs[1].steps[0].sets.size(), 2u);
  EXPECT_EQ(verdictOf(*problem), Verdict::kEquivalent);
}

TEST(Stretches, OneCoordinateOrAllOfThemAreNone) {
  Draft d = rows();
  d.program(0)["at"]["dp"] = {0, 6};
  d.plan["programs"].erase(1);
  d.plan["mesh"][0][1] = 6;
  d.plan["lineage"][1]["shards"].erase(1);
  d.model["tensors"]["x"]["shape"] = d.model["tensors"]["y"]["shape"] = {6, 3};
  d.tensor(0, "x")["shape"] = {6, 3};
  d.plan["lineage"][0]["shards"][0]["box"] = Json::parse("[[0, 6], [0, 3]]");
  atOf(d, 0, 0)["dp"] = {0, 6};
  auto problem = test::read(d);
  EXPECT_FALSE(problem->plan.hasStretches());
  EXPECT_EQ(verdictOf(*problem), Verdict::kEquivalent);

  d = sum();
  d.program(0)["at"]["dp"] = atOf(d, 0, 0)["dp"] = {0, 5};
  d.program(1)["at"]["dp"] = atOf(d, 0, 1)["dp"] = {5, 6};
  problem = test::read(d);
  EXPECT_EQ(problem->plan.programs[1].at, (Coordinates{{0, 5}}));
  EXPECT_TRUE(problem->plan.programs[1].within.empty());
  EXPECT_EQ(verdictOf(*problem), Verdict::kEquivalent);
}

TEST(Stretches, EachRankHasItsProgramAndItsAttributes) {
  const auto problem = test::read(rows());
  const PlanIndex index(*problem);
  for (std::int32_t rank = 0; rank < 12; ++rank) {
    const std::int32_t dp = rank / 2;
    const ProgramId p = index.programOf(Rank(rank));
    EXPECT_EQ(p, dp < 4 ? 0 : 1);
    const Node& node = problem->plan.programs[p].graph.nodes[0];
    const auto& attributes = problem->attributes.at(index.attributesOf(p, node, Rank(rank)));
    EXPECT_EQ(std::get<Rational>(attributes.at("start")).toInt64(), dp < 4 ? dp : 2 * dp - 4);
  }
  EXPECT_TRUE(index.names(ProgramId(0), 0));
  EXPECT_FALSE(index.names(ProgramId(0), 1));
  EXPECT_EQ(index.symmetry().classes(0),
            (std::vector<std::vector<std::int32_t>>{{0, 1, 2, 3}, {4, 5}}));
  std::vector<Rank> visited;
  index.forEachRank(ProgramId(1), [&](Rank r) { visited.push_back(r); });
  EXPECT_EQ(visited, (test::ids<Rank>({8, 9, 10, 11})));
  EXPECT_EQ(index.operatorInstances(), 24);
}

TEST(Stretches, OfLineageMakeClasses) {
  Draft d = sum();
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "input", "shards": [{"box": [[0, 1], [0, 3]],
          "step": {"dp": [1, 0]}, "parts": [{"local": "x", "at": {"dp": [1, 3]}}]}]})"));
  const auto problem = test::read(d);
  EXPECT_EQ(PlanIndex(*problem).symmetry().classes(0),
            (std::vector<std::vector<std::int32_t>>{{0}, {1, 2}, {3}, {4, 5}}));
}

TEST(Stretches, SumsOverPartsOfSeveral) {
  EXPECT_EQ(verdictOf(*test::read(sum())), Verdict::kEquivalent);
  Draft half = sum();
  shardOf(half, 0)["parts"].erase(1);
  EXPECT_EQ(verdictOf(*test::read(half)), Verdict::kNotEquivalent);
  Draft left = sum();
  atOf(left, 0, 1)["dp"] = {4, 5};
  EXPECT_EQ(verdictOf(*test::read(left)), Verdict::kNotEquivalent);
  Draft single = sum();
  atOf(single, 0, 1)["dp"] = 4;
  shardOf(single, 0)["parts"].push_back(Json::parse(R"({"local": "b", "at": {"dp": 5}})"));
  EXPECT_EQ(verdictOf(*test::read(single)), Verdict::kEquivalent);
}

TEST(Stretches, ThePlanOfSingleCoordinatesIsTheSame) {
  for (const Draft& d : {rows(), sum()}) {
    const auto problem = test::read(d);
    const auto fixed = ir::withFixedAttributes(*problem);
    ASSERT_TRUE(fixed);
    EXPECT_FALSE(fixed->plan.hasStretches());
    EXPECT_FALSE(fixed->plan.attributesMove());
    EXPECT_EQ(fixed->plan.programs.size(), 6u);
    EXPECT_EQ(fixed->plan.nodePointer(ProgramId(5), NodeId(0)), "/programs/1/nodes/0");
    EXPECT_EQ(verdictOf(*fixed), Verdict::kEquivalent);
    EXPECT_FALSE(ir::withFixedAttributes(*fixed));
  }
  EXPECT_EQ(executor::execute(*test::read(rows()), {}).status, executor::Status::kRefused);
  const auto fixed = ir::withFixedAttributes(*test::read(rows()));
  ASSERT_EQ(fixed->plan.lineage[1].shards.size(), 6u);
  EXPECT_EQ(fixed->plan.lineage[1].shards[5].box[0], (std::pair<std::int64_t, std::int64_t>{6, 8}));
  EXPECT_TRUE(fixed->plan.lineage[1].shards[5].step.empty());
  EXPECT_EQ(ir::withFixedAttributes(*test::read(sum()))->plan.lineage[1].shards[0].parts.size(),
            6u);
}

TEST(Stretches, AreWrittenAndReadAgain) {
  for (const Draft& d : {rows(), sum()}) {
    const auto problem = test::read(d);
    const Json written = Json::parse(planText(*problem, ""));
    EXPECT_EQ(written["version"], 2);
    EXPECT_EQ(written["programs"][1]["at"], d.plan["programs"][1]["at"]);
    EXPECT_EQ(written["programs"][1]["nodes"][0]["attrs"],
              Json(d.plan["programs"][1]["nodes"][0]["attrs"]));
    Json lineage = written["lineage"];
    EXPECT_EQ(lineage[1]["shards"][0]["parts"], d.plan["lineage"][1]["shards"][0]["parts"]);
    Draft again = d;
    again.plan = written;
    EXPECT_EQ(planText(*test::read(again), ""), planText(*problem, ""));
  }
}

TEST(Stretches, BadOnesAreErrors) {
  Draft d = rows();
  d.plan["version"] = 1;
  expectRefused(d, "/programs/0/at", "version 2");
  d = rows();
  d.program(1)["at"]["dp"] = {4, 7};
  expectRefused(d, "/programs/1/at/dp", "inside [0, 6)");
  d = rows();
  d.program(1)["at"]["dp"] = {5, 5};
  expectRefused(d, "/programs/1/at/dp", "empty");
  d = rows();
  d.program(1)["at"]["dp"] = {6, 4};
  expectRefused(d, "/programs/1/at/dp", "empty");
  d = rows();
  d.program(1)["at"]["dp"] = {1, 2, 3};
  expectRefused(d, "/programs/1/at/dp", "a pair");
  d = rows();
  d.program(1)["at"]["dp"] = {3, 6};
  expectRefused(d, "/programs/1/at", "also covered by /programs/0");
  d = rows();
  d.program(1)["at"]["dp"] = {5, 6};
  expectRefused(d, "/programs", "no program covers the rank");
  d = rows();  // groups have members, not stretches of them
  d.program(0)["nodes"].push_back(Json::parse(
      R"({"op": "all_reduce", "in": ["y"], "out": ["y"], "comm": "c",
          "group_at": [{"dp": [0, 4]}]})"));
  expectRefused(d, "/programs/0/nodes/2/group_at/0/dp", "expected");
  d = rows();  // the last coordinate of the stretch would have rows 7 and 8
  shardOf(d, 1)["box"] = Json::parse("[[-3, -1], [0, 3]]");
  expectRefused(d, "/lineage/1/shards/1/box/0", "reaches over [5, 9)");
  d = rows();
  shardOf(d, 1)["box"] = Json::parse("[[-9, -7], [0, 3]]");
  expectRefused(d, "/lineage/1/shards/1/box/0", "reaches over [-1, 3)");
  d = rows();  // only the whole axis may begin below 0 nowhere
  shardOf(d, 0)["box"] = Json::parse("[[-1, 0], [0, 3]]");
  shardOf(d, 0)["parts"][0].erase("at");
  expectRefused(d, "/lineage/1/shards/0/box/0", "begins at 0 or above");
  d = rows();  // coordinate 3 of the first program has one row
  atOf(d, 1, 0)["dp"] = {3, 6};
  expectRefused(d, "/lineage/1/shards/1", "expected the shape");
  d = rows();  // slices of the second program would lie before x at its first coordinate
  d.node(1, 0)["attrs"]["start"] = -10;
  const auto problem = test::read(d);
  EXPECT_NE(verdictOf(*problem), Verdict::kEquivalent);
}

TEST(Stretches, PartsOfAShardHaveTheSame) {
  Draft d = sum();
  shardOf(d, 0).erase("sum");
  expectRefused(d, "/lineage/1/shards/0/parts/1/at", "expected the same in all parts");
  d = sum();
  atOf(d, 0, 1).erase("dp");  // over all ranks, of which the first have no b
  expectRefused(d, "/lineage/1/shards/0/parts/1/local", "/programs/0 has none of that name");
  d = sum();
  shardOf(d, 0)["step"] = Json::parse(R"({"dp": [1]})");
  expectRefused(d, "/lineage/1/shards/0", "over which the shard sums");
}

TEST(Stretches, InputsHaveOneSourceOnEachRank) {
  Draft d = sum();
  Json& x = d.plan["lineage"][0]["shards"];
  x.push_back(Json::parse(
      R"({"box": [[0, 1], [0, 3]], "step": {"dp": [1, 0]}, "parts": [{"local": "x",
          "at": {"dp": [4, 6]}}]})"));
  EXPECT_EQ(verdictOf(*test::read(d)), Verdict::kEquivalent);  // says the same twice
  x[1]["box"] = Json::parse("[[-1, 0], [0, 3]]");
  expectRefused(d, "/lineage/0/shards/1", "already is the input piece");
  x[0]["parts"][0]["at"] = Json::parse(R"({"dp": [0, 4]})");  // apart they may differ
  EXPECT_NE(verdictOf(*test::read(d)), Verdict::kEquivalent);
}

TEST(Stretches, PartsOfLocalTensorsHaveNone) {
  Draft d = rows();
  shardOf(d, 0)["parts"][0]["local_box"] = Json::parse("[[0, 1], [0, 3]]");
  d.plan["lineage"][1]["shards"][0]["parts"][0]["scale"] = 2;
  expectRefused(d, "/lineage/1/shards/0/parts/0/at", "expected single coordinates");
}

}  // namespace
}  // namespace shardproof
