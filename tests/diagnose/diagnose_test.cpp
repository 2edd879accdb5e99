// SPDX-License-Identifier: Apache-2.0
// Causes, sentences and fixes of small plans that are wrong in known ways.
#include "diagnose/diagnose.h"
#include "ir/clone.h"

#include <gtest/gtest.h>

#include "describe/describe.h"
#include "diagnose/causes.h"
#include "diagnose/edit.h"
#include "diagnose/excerpt.h"
#include "diagnose/finder.h"
#include "reader/reader.h"
#include "shardproof/verify.h"
#include "support/problems.h"

namespace shardproof {
namespace {

// Rows of x on each dp rank, the product's inner dimension cut over tp: y is a partial sum.
test::Draft partial() {
  return test::draft(R"({
    "tensors": {"x": {"shape": [8, 4], "kind": "input"},
     "w": {"shape": [6, 4], "kind": "parameter"},
                "y": {"shape": [8, 6]}, "z": {"shape": [8, 6]}},
    "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"]},
              {"op": "mul", "in": ["y"], "out": ["z"], "attrs": {"scalar": 3}}],
    "outputs": ["z"]})",
                     R"({
    "mesh": [["dp", 2], ["tp", 2]],
    "programs": [{"tensors": {"x": {"shape": [4, 2], "kind": "input"},
     "w": {"shape": [6, 2], "kind": "parameter"},
                              "y.part": {"shape": [4, 6]}, "y": {"shape": [4, 6]},
                               "z": {"shape": [4, 6]}},
                  "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y.part"]},
                            {"op": "all_reduce", "in": ["y.part"], "out": ["y"], "comm": "c",
                             "group": ["tp"]},
                            {"op": "mul", "in": ["y"], "out": ["z"], "attrs": {"scalar": 3}}]}],
    "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 2]],
       "step": {"dp": [4, 0], "tp": [0, 2]}, "parts": [{"local": "x"}]}]},
      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 6], [0, 2]], "step": {"tp": [0, 2]},
       "parts": [{"local": "w"}]}]},
      {"tensor": "z", "role": "output", "shards": [{"box": [[0, 4], [0, 6]], "step": {"dp": [4, 0]},
       "parts": [{"local": "z"}]}]}]})");
}

struct Diagnosed {
  Report report;
  std::string fixed;
};

Diagnosed diagnosed(const test::Draft& d) {
  const auto problem = test::read(d);
  VerifyOptions options;
  options.jobs = 1;
  Diagnosed result{verify(*problem, options), {}};
  result.fixed = diagnosePlan(*problem, result.report, "", {});
  return result;
}

TEST(Diagnose, SaysNothingOfARightPlan) {
  const Diagnosed d = diagnosed(partial());
  EXPECT_EQ(d.report.verdict, Verdict::kEquivalent);
  EXPECT_TRUE(d.report.causes.empty());
  EXPECT_TRUE(d.fixed.empty());
}

TEST(Diagnose, FindsAMissingReduction) {
  test::Draft draft = partial();
  draft.node(0, 1) = test::Json::parse(R"({"op": "identity", "in": ["y.part"], "out": ["y"]})");
  const Diagnosed d = diagnosed(draft);
  EXPECT_EQ(d.report.verdict, Verdict::kNotEquivalent);
  ASSERT_EQ(d.report.causes.size(), 1u);
  const Cause& cause = d.report.causes[0];
  EXPECT_EQ(cause.kind, "partial-sum");
  EXPECT_NE(cause.sentence.find("it is a partial sum over tp of their parts of `z`"),
            std::string::npos)
      << cause.sentence;
  EXPECT_EQ(cause.ranks, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(cause.defects, (std::vector<std::size_t>{0}));
  ASSERT_FALSE(cause.nodes.empty());
  EXPECT_EQ(cause.nodes[0].pointer, "/programs/0/nodes/1");
  ASSERT_TRUE(cause.fix);
  EXPECT_TRUE(cause.fix->proved);
  test::Draft fixed = draft;
  fixed.plan = test::Json::parse(d.fixed);
  EXPECT_EQ(verify(*test::read(fixed), {}).verdict, Verdict::kEquivalent);
}

// The mean over dp of what each rank makes of its rows, with a guess of how the parts add up.
test::Draft mean(const char* reduce) {
  test::Draft d = test::draft(R"({
    "tensors": {"x": {"shape": [8, 4], "kind": "input"}, "w": {"shape": [4], "kind": "parameter"},
                "s": {"shape": [4]}, "m": {"shape": [4]}, "w.new": {"shape": [4]}},
    "nodes": [{"op": "sum", "in": ["x"], "out": ["s"], "attrs": {"dim": [0]}},
              {"op": "div", "in": ["s"], "out": ["m"], "attrs": {"scalar": 8}},
              {"op": "sub", "in": ["w", "m"], "out": ["w.new"]}],
    "outputs": ["w.new"]})",
                              R"({
    "version": 2, "mesh": [["dp", 2]],
    "programs": [{"tensors": {"x": {"shape": [4, 4], "kind": "input"},
     "w": {"shape": [4], "kind": "parameter"}, "s": {"shape": [4]}, "m": {"shape": [4]},
     "mean": {"shape": [4]}, "w.new": {"shape": [4]}},
                  "nodes": [{"op": "sum", "in": ["x"], "out": ["s"], "attrs": {"dim": [0]}},
                            {"op": "div", "in": ["s"], "out": ["m"], "attrs": {"scalar": 4}},
                            {"op": "all_reduce", "in": ["m"], "out": ["mean"], "comm": "c",
                             "group": ["dp"], "loc": "train.py:9"},
                            {"op": "sub", "in": ["w", "mean"], "out": ["w.new"]}]}],
    "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 4]], "step": {"dp": [4, 0]},
       "parts": [{"local": "x"}]}]},
      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 4]], "parts": [{"local": "w"}]}]},
      {"tensor": "m", "role": "cut_point", "guess": "how parts add up", "shards": [
       {"box": [[0, 4]], "sum": ["dp"], "parts": [{"local": "m"}]}]},
      {"tensor": "w.new", "role": "output", "shards": [{"box": [[0, 4]],
       "parts": [{"local": "w.new"}]}]}]})");
  d.node(0, 2)["attrs"] = {{"reduce", reduce}};
  return d;
}

TEST(Diagnose, AGuessThatIsWrongIsNoCause) {
  EXPECT_EQ(diagnosed(mean("mean")).report.verdict, Verdict::kEquivalent);
  Diagnosed d = diagnosed(mean("sum"));
  EXPECT_EQ(d.report.verdict, Verdict::kNotEquivalent);
  ASSERT_EQ(d.report.causes.size(), 1u);
  EXPECT_NE(d.report.causes[0].sentence.find(
                "the all_reduce at train.py:9 adds up where it has to take the mean"),
            std::string::npos)
      << d.report.causes[0].sentence;
  ASSERT_TRUE(d.report.causes[0].fix);
  EXPECT_TRUE(d.report.causes[0].fix->proved);
  // What is left of the report's defects is about what nobody guessed.
  leaveOutGuesses(*test::read(mean("sum")), d.report);
  for (const Defect& defect : d.report.defects) EXPECT_EQ(defect.tensor, "w.new");
}

TEST(Diagnose, CallsANumberThatAFrontEndNamedByItsValue) {
  const Diagnosed d = diagnosed(test::draft(R"({
    "tensors": {"lr": {"shape": [], "kind": "constant", "value": 0.5}, "lr.new": {"shape": []}},
    "nodes": [{"op": "identity", "in": ["lr"], "out": ["lr.new"]}],
    "outputs": ["lr.new"]})",
                                            R"({
    "version": 2, "mesh": [["dp", 2]],
    "programs": [{"tensors": {"%const.7": {"shape": [], "kind": "constant", "value": 0.25}},
                  "nodes": []}],
    "lineage": [{"tensor": "lr.new", "role": "output", "shards": [
                  {"box": [], "parts": [{"local": "%const.7"}]}]}]})"));
  EXPECT_EQ(d.report.verdict, Verdict::kNotEquivalent);
  ASSERT_EQ(d.report.causes.size(), 1u);
  EXPECT_NE(d.report.causes[0].sentence.find("as the number 0.25"), std::string::npos)
      << d.report.causes[0].sentence;
}

// Two layers with tensor parallelism, and the gradient of nothing: w1's rows, w2's columns over tp.
test::Draft layers() {
  return test::draft(R"({
    "tensors": {"x": {"shape": [4, 6], "kind": "input"},
                "w1": {"shape": [8, 6], "kind": "parameter"},
                 "w2": {"shape": [6, 8], "kind": "parameter"},
                "h": {"shape": [4, 8]}, "a": {"shape": [4, 8]}, "y": {"shape": [4, 6]},
                "w1.new": {"shape": [8, 6]}},
    "nodes": [{"op": "linear", "in": ["x", "w1"], "out": ["h"]},
              {"op": "silu", "in": ["h"], "out": ["a"]},
              {"op": "linear", "in": ["a", "w2"], "out": ["y"]},
              {"op": "mul", "in": ["w1"], "out": ["w1.new"], "attrs": {"scalar": 3}}],
    "outputs": ["y", "w1.new"]})",
                     R"({
    "mesh": [["dp", 2], ["tp", 2]],
    "programs": [{"tensors": {"x": {"shape": [2, 6], "kind": "input"},
                              "w1": {"shape": [4, 6], "kind": "parameter"},
                               "w2": {"shape": [6, 4], "kind": "parameter"},
                              "h": {"shape": [2, 4]}, "a": {"shape": [2, 4]},
                               "y.part": {"shape": [2, 6]},
                              "y": {"shape": [2, 6]}, "w1.new": {"shape": [4, 6]}},
                  "nodes": [{"op": "linear", "in": ["x", "w1"], "out": ["h"], "loc": "net.py:3"},
                            {"op": "silu", "in": ["h"], "out": ["a"]},
                            {"op": "linear", "in": ["a", "w2"], "out": ["y.part"]},
                            {"op": "all_reduce", "in": ["y.part"], "out": ["y"], "comm": "c",
                             "group": ["tp"]},
                            {"op": "mul", "in": ["w1"], "out": ["w1.new"],
                             "attrs": {"scalar": 3}}]}],
    "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 6]], "step": {"dp": [2, 0]},
       "parts": [{"local": "x"}]}]},
      {"tensor": "w1", "role": "input", "shards": [
        {"box": [[0, 4], [0, 6]], "parts": [{"local": "w1", "at": {"tp": 0}}]},
        {"box": [[4, 8], [0, 6]], "parts": [{"local": "w1", "at": {"tp": 1}}]}]},
      {"tensor": "w2", "role": "input", "shards": [{"box": [[0, 6], [0, 4]], "step": {"tp": [0, 4]},
       "parts": [{"local": "w2"}]}]},
      {"tensor": "h", "role": "cut_point", "shards": [{"box": [[0, 2], [0, 4]],
       "step": {"dp": [2, 0], "tp": [0, 4]}, "parts": [{"local": "h"}]}]},
      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2], [0, 6]], "step": {"dp": [2, 0]},
       "parts": [{"local": "y"}]}]},
      {"tensor": "w1.new", "role": "output", "shards": [{"box": [[0, 4], [0, 6]],
       "step": {"tp": [4, 0]}, "parts": [{"local": "w1.new"}]}]}]})");
}

TEST(Diagnose, NamesTheInputLineageOfAWeightThatIsWrong) {
  ASSERT_EQ(diagnosed(layers()).report.verdict, Verdict::kEquivalent);
  const auto expectNamed = [](const test::Draft& draft, const std::string& entry,
                              const std::string& hasToBe) {
    const Diagnosed d = diagnosed(draft);
    EXPECT_EQ(d.report.verdict, Verdict::kNotEquivalent);
    ASSERT_EQ(d.report.causes.size(), 1u);
    const Cause& cause = d.report.causes[0];
    EXPECT_EQ(cause.kind, "input-lineage") << cause.sentence;
    EXPECT_NE(cause.sentence.find(entry), std::string::npos) << cause.sentence;
    EXPECT_NE(cause.sentence.find("has to have " + hasToBe), std::string::npos) << cause.sentence;
    ASSERT_TRUE(cause.fix);
    EXPECT_TRUE(cause.fix->proved);
    EXPECT_EQ(cause.defects.size(), d.report.defects.size());
    ASSERT_FALSE(cause.nodes.empty());
    EXPECT_EQ(cause.nodes[0].location, "net.py:3");
    test::Draft fixed = draft;
    fixed.plan = test::Json::parse(d.fixed);
    EXPECT_EQ(verify(*test::read(fixed), {}).verdict, Verdict::kEquivalent);
  };
  // Ranks in the wrong order.
  test::Draft order = layers();
  order.plan["lineage"][1]["shards"][0]["box"] = {{4, 8}, {0, 6}};
  order.plan["lineage"][1]["shards"][1]["box"] = {{0, 4}, {0, 6}};
  expectNamed(order, "input lineage /lineage/1 of `w1`", "shard 0 box [[0, 4], [0, 6]]");
  // A box that is shifted: two rows are on no rank.
  test::Draft shifted = layers();
  shifted.plan["lineage"][1]["shards"][1]["box"] = {{2, 6}, {0, 6}};
  expectNamed(shifted, "input lineage /lineage/1 of `w1`", "shard 1 box [[4, 8], [0, 6]]");
  // Cut over another axis.
  test::Draft axis = layers();
  axis.plan["lineage"][1]["shards"] = test::Json::parse(
      R"([{"box": [[0, 4], [0, 6]], "step": {"dp": [4, 0]}, "parts": [{"local": "w1"}]}])");
  expectNamed(axis, "input lineage /lineage/1 of `w1`", "box [[0, 4], [0, 6]], step {tp: [4, 0]}");
  // The same on all ranks.
  test::Draft none = layers();
  none.plan["lineage"][1]["shards"] =
      test::Json::parse(R"([{"box": [[0, 4], [0, 6]], "parts": [{"local": "w1"}]}])");
  expectNamed(none, "input lineage /lineage/1 of `w1`", "box [[0, 4], [0, 6]], step {tp: [4, 0]}");
}

// The plan is wrong, not its lineage: that would not fix it either.
TEST(Diagnose, BlamesNoLineageForAWrongPlan) {
  test::Draft draft = layers();
  draft.node(0, 3)["group"] = {"dp"};
  draft.node(0, 4)["attrs"]["scalar"] = 5;
  for (const Cause& cause : diagnosed(draft).report.causes) EXPECT_NE(cause.kind, "input-lineage");
}

TEST(Diagnose, FindsFactorsGroupsAndOperands) {
  test::Draft factor = partial();
  factor.node(0, 2)["attrs"]["scalar"] = 6;
  const Cause scaled = diagnosed(factor).report.causes.at(0);
  EXPECT_EQ(scaled.kind, "scaled");
  EXPECT_NE(scaled.sentence.find("scalar 6 where it has to have 3"), std::string::npos)
      << scaled.sentence;

  test::Draft group = partial();
  group.node(0, 1)["group"] = {"dp"};
  const Cause other = diagnosed(group).report.causes.at(0);
  EXPECT_NE(other.sentence.find("runs over dp where it has to run over tp"), std::string::npos)
      << other.sentence;
  EXPECT_TRUE(other.fix && other.fix->proved);

  test::Draft operand = partial();
  operand.node(0, 2)["in"] = {"y.part"};
  const Cause reads = diagnosed(operand).report.causes.at(0);
  EXPECT_NE(reads.sentence.find("reads `y.part` where it has to read `y`"), std::string::npos)
      << reads.sentence;
}

TEST(Diagnose, FindsRowsOfAnotherRank) {
  // Each dp rank holds the other's rows: as lineage of an output, which no change of a node fixes.
  test::Draft draft = partial();
  draft.entry(2)["shards"][0]["box"] = test::Json::parse("[[4, 8], [0, 6]]");
  draft.entry(2)["shards"][0]["step"]["dp"] = {-4, 0};
  const Diagnosed d = diagnosed(draft);
  ASSERT_EQ(d.report.causes.size(), 1u);
  EXPECT_EQ(d.report.causes[0].kind, "other-place");
  EXPECT_NE(d.report.causes[0].sentence.find("the part of dp rank 1"), std::string::npos)
      << d.report.causes[0].sentence;
  EXPECT_TRUE(d.fixed.empty());
}

// t = 2 x, of which the plan makes 4 x: lineage says truly that it holds u, which is 4 x, and z is
// computed from that. What was right of the wrong t says nothing of a changed one.
TEST(Diagnose, LooksBehindLineageThatIsTrueOfWhatIsWrong) {
  const test::Draft draft = test::draft(R"({
    "tensors": {"x": {"shape": [4], "kind": "input"}, "u": {"shape": [4]}, "t": {"shape": [4]},
                "z": {"shape": [4]}},
    "nodes": [{"op": "mul", "in": ["x"], "out": ["u"], "attrs": {"scalar": 4}},
              {"op": "mul", "in": ["x"], "out": ["t"], "attrs": {"scalar": 2}},
              {"op": "silu", "in": ["t"], "out": ["z"]}],
    "outputs": ["u", "z"]})",
                                        R"({
    "mesh": [["dp", 2]],
    "programs": [{"tensors": {"x": {"shape": [2], "kind": "input"}, "u": {"shape": [2]},
     "t": {"shape": [2]},
                              "z": {"shape": [2]}},
                  "nodes": [{"op": "mul", "in": ["x"], "out": ["u"], "attrs": {"scalar": 4}},
                            {"op": "mul", "in": ["x"], "out": ["t"], "attrs": {"scalar": 4}},
                            {"op": "silu", "in": ["t"], "out": ["z"]}]}],
    "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
       "parts": [{"local": "x"}]}]},
      {"tensor": "u", "role": "cut_point", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
       "parts": [{"local": "t"}]}]},
      {"tensor": "u", "role": "output", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
       "parts": [{"local": "u"}]}]},
      {"tensor": "z", "role": "output", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
       "parts": [{"local": "z"}]}]}]})");
  const Diagnosed d = diagnosed(draft);
  ASSERT_EQ(d.report.causes.size(), 1u);
  const Cause& cause = d.report.causes[0];
  EXPECT_NE(cause.sentence.find("/programs/0/nodes/1 (mul) has scalar 4 where it has to have 2"),
            std::string::npos)
      << cause.sentence;
}

// Of three that are alike one has another number, far from what fails.
TEST(Diagnose, FindsANumberThatLikeNodesDoNotHave) {
  test::Draft draft = test::draft(R"({
    "tensors": {"x": {"shape": [4], "kind": "input"}, "a": {"shape": [4]}, "a2": {"shape": [4]},
                "b": {"shape": [4]}, "b2": {"shape": [4]}, "c": {"shape": [4]},
                 "z": {"shape": [4]}},
    "nodes": [{"op": "mul", "in": ["x"], "out": ["a"], "attrs": {"scalar": 6}},
              {"op": "silu", "in": ["a"], "out": ["a2"]},
              {"op": "mul", "in": ["a2"], "out": ["b"], "attrs": {"scalar": 6}},
              {"op": "silu", "in": ["b"], "out": ["b2"]},
              {"op": "mul", "in": ["b2"], "out": ["c"], "attrs": {"scalar": 6}},
              {"op": "silu", "in": ["c"], "out": ["z"]}],
    "outputs": ["z"]})",
                                  R"({
    "mesh": [["dp", 2]],
    "programs": [{"tensors": {"x": {"shape": [2], "kind": "input"}, "a": {"shape": [2]},
     "a2": {"shape": [2]},
                              "b": {"shape": [2]}, "b2": {"shape": [2]}, "c": {"shape": [2]},
                               "z": {"shape": [2]}},
                  "nodes": [{"op": "mul", "in": ["x"], "out": ["a"], "attrs": {"scalar": 7}},
                            {"op": "silu", "in": ["a"], "out": ["a2"]},
                            {"op": "mul", "in": ["a2"], "out": ["b"], "attrs": {"scalar": 6}},
                            {"op": "silu", "in": ["b"], "out": ["b2"]},
                            {"op": "mul", "in": ["b2"], "out": ["c"], "attrs": {"scalar": 6}},
                            {"op": "silu", "in": ["c"], "out": ["z"]}]}],
    "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
       "parts": [{"local": "x"}]}]},
      {"tensor": "z", "role": "output", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
       "parts": [{"local": "z"}]}]}]})");
  const Cause cause = diagnosed(draft).report.causes.at(0);
  EXPECT_NE(cause.sentence.find("/programs/0/nodes/0 (mul) has scalar 7 where it has to have 6"),
            std::string::npos)
      << cause.sentence;
  EXPECT_TRUE(cause.fix && cause.fix->proved);
}

TEST(Diagnose, NeverChangesAVerdict) {
  test::Draft draft = partial();
  draft.node(0, 2)["attrs"]["scalar"] = 5;
  const auto problem = test::read(draft);
  Report report = verify(*problem, {});
  const Verdict before = report.verdict;
  const std::size_t defects = report.defects.size();
  diagnosePlan(*problem, report, "", {});
  EXPECT_EQ(report.verdict, before);
  EXPECT_EQ(report.defects.size(), defects);
}

// z = 3 y with y from lineage: neither the product nor its inputs are in it.
TEST(DiagnoseExcerpt, IsWhatLineageLeadsTo) {
  test::Draft draft = partial();
  draft.plan["lineage"].push_back(test::Json::parse(
      R"({"tensor": "y", "role": "cut_point", "shards": [{"box": [[0, 4], [0, 6]],
          "step": {"dp": [4, 0]}, "parts": [{"local": "y"}]}]})"));
  const auto problem = test::read(draft);
  const diagnose::Excerpt excerpt = diagnose::excerptOf(*problem, EntryId(2));
  const Problem& part = *excerpt.problem;
  ASSERT_EQ(part.plan.programs[ProgramId(0)].graph.nodes.size(), 1u);
  EXPECT_EQ(excerpt.nodeOf[0], (std::vector{NodeId(2)}));
  EXPECT_EQ(excerpt.modelNodeOf, (std::vector{NodeId(1)}));
  EXPECT_EQ(excerpt.entryOf, (std::vector{EntryId(2), EntryId(3)}));
  ASSERT_EQ(part.model.graph.tensors.size(), 2u);
  for (const Tensor& t : part.model.graph.tensors)
    EXPECT_EQ(t.kind, part.names.text(t.name) == "y" ? TensorKind::kInput : TensorKind::kProduced);
  // As an image: nodes and entries are those of the plan.
  const diagnose::Image image(*problem, EntryId(2), 1);
  EXPECT_FALSE(image.isFull());
  EXPECT_EQ(image.entryHere(2), 0);
  EXPECT_EQ(image.entryHere(0), -1);
  EXPECT_EQ(image.fullNode({ProgramId(0), NodeId(0)}).node, NodeId(2));
  EXPECT_EQ(image.fullNode({ProgramId(), NodeId(0)}).node, NodeId(1));
  VerifyOptions options;
  options.jobs = 1;
  EXPECT_EQ(verify(part, options).verdict, Verdict::kEquivalent);
}

TEST(DiagnoseStructure, WhatOneProgramAloneCommunicatesIsOneCause) {
  test::Draft draft = partial();
  test::Json& plan = draft.plan;
  test::Json first = plan["programs"][0], second = first;
  first["at"] = {{"dp", 0}};
  second["at"] = {{"dp", 1}};
  for (const char* name : {"u", "v"}) {
    first["tensors"][name] = {{"shape", {4, 6}}};
    first["nodes"].push_back({{"op", "all_reduce"},
                              {"in", {"y.part"}},
                              {"out", {name}},
                              {"comm", name},
                              {"group", {"dp"}}});
  }
  plan["programs"] = {first, second};
  const Diagnosed d = diagnosed(draft);
  ASSERT_EQ(d.report.causes.size(), 1u);
  EXPECT_GT(d.report.defects.size(), 1u);
  EXPECT_NE(d.report.causes[0].sentence.find("1 more communication of the same program"),
            std::string::npos)
      << d.report.causes[0].sentence;
}

TEST(DiagnoseStructure, MessagesThatMissEachOther) {
  test::Draft d =
      test::draft(R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}},
    "nodes": [{"op": "exp", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
                  R"({"mesh": [["pp", 2], ["dp", 2]],
    "programs": [{"at": {"pp": 0}, "tensors": {"x": {"shape": [4], "kind": "input"},
     "y": {"shape": [4]}},
                  "nodes": [{"op": "exp", "in": ["x"], "out": ["y"]},
                   {"op": "send", "in": ["y"], "out": [], "comm": "c", "to": {"pp": 1, "dp": 0}}]},
                 {"at": {"pp": 1}, "tensors": {"y": {"shape": [4]}},
                  "nodes": [{"op": "recv", "in": [], "out": ["y"], "comm": "c",
                  "from": {"pp": 0}}]}],
    "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
     "parts": [{"local": "x", "at": {"pp": 0}}]}]},
                {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4]],
                 "parts": [{"local": "y", "at": {"pp": 1}}]}]}]})");
  const Diagnosed result = diagnosed(d);
  ASSERT_EQ(result.report.causes.size(), 1u);
  EXPECT_EQ(result.report.causes[0].kind, "wrong-peer");
  EXPECT_NE(result.report.causes[0].sentence.find("rank 1 sends to rank 2"), std::string::npos)
      << result.report.causes[0].sentence;
}

TEST(DiagnoseFinder, SmallFractions) {
  using diagnose::Field;
  using diagnose::Ratio;
  using diagnose::ratioOf;
  EXPECT_EQ(ratioOf(Field(8)), (Ratio{8, 1}));
  EXPECT_EQ(ratioOf(executor::inverse(Field(3))), (Ratio{1, 3}));
  EXPECT_EQ(ratioOf(-(Field(2) * executor::inverse(Field(5)))), (Ratio{-2, 5}));
  EXPECT_FALSE(ratioOf(Field(1234567891234)));
}

TEST(DiagnoseEdit, RefusesWhatTheReaderWould) {
  const auto problem = test::read(partial());
  diagnose::Edit edit;
  edit.kind = diagnose::Edit::Kind::kOperand;
  edit.nodes = {{ProgramId(0), NodeId(0)}};
  edit.index = 0;
  edit.tensor = TensorId(1);  // w for x: shapes that do not fit
  EXPECT_FALSE(diagnose::apply(*cloneProblem(*problem), Correspondence(*problem), edit));
  edit.nodes = {{ProgramId(0), NodeId(99)}};
  EXPECT_FALSE(diagnose::apply(*cloneProblem(*problem), Correspondence(*problem), edit));
}

}  // namespace
}  // namespace shardproof
