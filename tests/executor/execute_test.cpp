// SPDX-License-Identifier: Apache-2.0
// Whole problems: what agrees, what differs and where, what cannot run, what cannot be told.
#include "executor/interpret.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/problems.h"

namespace shardproof::executor {
namespace {

using test::Draft;

Result executed(const Draft& d, Options options = {}) {
  const auto problem = test::read(d);
  return execute(*problem, options);
}
Agreement outputsOf(const Draft& d, const Options& options = {}) {
  const auto problem = test::read(d);
  return execute(*problem, options).outputs(problem->plan);
}
const EntryResult& entryOf(const Result& result, std::int32_t entry) {
  for (const EntryResult& e : result.entries)
    if (e.entry == entry) return e;
  throw std::logic_error("no such entry was compared");
}

TEST(Execute, ARightPlanAgreesOnEveryElement) {
  const auto problem = test::read(test::pipeline());
  const Result result = execute(*problem, {});
  ASSERT_EQ(result.status, Status::kRun) << result.reason;
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kAgrees);
  EXPECT_EQ(entryOf(result, 2).compared, 48);  // y, on pp 0
  EXPECT_EQ(entryOf(result, 4).compared, 1);
  EXPECT_EQ(entryOf(result, 5).compared, 2);  // s is on both tp ranks of pp 1
  EXPECT_EQ(result.trials, 1);
  EXPECT_GT(result.flops, 0);
  EXPECT_GT(result.peakBytes, 0);
}

TEST(Execute, ApprovedDifferencesAreWhatTheModelHas) {
  EXPECT_EQ(outputsOf(test::approvedPipeline()), Agreement::kAgrees);
  Options real;
  real.approved = false;
  EXPECT_EQ(outputsOf(test::approvedPipeline(), real), Agreement::kDiffers);
  // Of a tensor that a communication makes.
  Draft d = test::pipeline();
  d.plan["programs"][0]["tensors"]["n"] = d.plan["programs"][0]["tensors"]["y"];
  d.node(0, 1) = {{"op", "neg"}, {"in", {"y"}}, {"out", {"n"}}, {"mb", "*"}};
  d.plan["programs"][0]["nodes"].push_back(
      test::Json::parse(R"({"op": "send", "in": ["n"], "out": [], "comm": "p2p", "to": {"pp": 1},
                            "mb": "*"})"));
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
  d.entry(3)["role"] = "assumed";
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
  Options field;
  field.arithmetic = Arithmetic::kPrimeField;
  EXPECT_EQ(outputsOf(test::approvedPipeline(), field), Agreement::kAgrees);
  // What is wrong behind one shows.
  d = test::approvedPipeline();
  d.node(1, 2)["op"] = "sub";
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
}

TEST(Execute, TheFirstDifferenceIsNamed) {
  Draft d = test::pipeline();
  d.plan["lineage"][2]["shards"][0]["step"]["mb"] = {
      0, 0};  // y of microbatch 1 is said to be the rows of microbatch 0
  const auto problem = test::read(d);
  const Result result = execute(*problem, {});
  ASSERT_EQ(result.status, Status::kRun);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kAgrees);  // a cut point is no output
  const EntryResult& wrong = entryOf(result, 2);
  EXPECT_EQ(wrong.agreement, Agreement::kDiffers);
  ASSERT_TRUE(wrong.difference);
  EXPECT_EQ(wrong.difference->rank, 0);
  EXPECT_EQ(wrong.difference->microbatch, 1);
  EXPECT_EQ(wrong.difference->position, (std::vector<std::int64_t>{0, 0}));
  EXPECT_NE(wrong.difference->logical, wrong.difference->parallel);
}

TEST(Execute, AWrongOutputDiffers) {
  Draft d = test::pipeline();
  d.node(1, 2)["in"] = {"t#0", "t#0"};
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
}

// Each program's own nodes, in the wrong order or with partners that are missing.
TEST(Execute, WhatCannotRunSaysWhere) {
  const auto reasonOf = [](const Draft& d) {
    const Result result = executed(d);
    EXPECT_EQ(result.status, Status::kCannotRun);
    return result.reason;
  };
  Draft d = test::pipeline();
  d.program(1)["nodes"].erase(3);
  EXPECT_NE(reasonOf(d).find("no node produces 's'"), std::string::npos) << reasonOf(d);

  d = test::pipeline();
  d.node(0, 1)["comm"] = "other";
  EXPECT_NE(reasonOf(d).find("never joins communication"), std::string::npos) << reasonOf(d);

  d = test::pipeline();
  d.tensor(1, "t")["shape"] = {2};
  d.plan["lineage"].erase(4);
  EXPECT_NE(reasonOf(d).find("/programs/1/nodes/1 (sum)"), std::string::npos) << reasonOf(d);

  d = test::pipeline();
  d.node(0, 1)["to"] = test::Json{{"pp", 0}};
  EXPECT_NE(reasonOf(d).find("own rank"), std::string::npos) << reasonOf(d);

  d = test::pipeline();
  std::swap(d.node(1, 0), d.node(1, 1));
  EXPECT_NE(reasonOf(d).find("only later"), std::string::npos) << reasonOf(d);

  d = test::pipeline();
  d.program(0)["nodes"].push_back(d.node(0, 0));
  EXPECT_NE(reasonOf(d).find("produced twice"), std::string::npos) << reasonOf(d);
}

// Two ranks that each send before they receive: a rendezvous never comes about.
Draft exchange(bool crossed) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [2], "kind": "input"}}, "nodes": [], "outputs": ["x"]})",
      R"({"mesh": [["tp", 2]], "programs": [
      {"at": {"tp": 0}, "order": "issue", "tensors": {"x": {"shape": [2], "kind": "input"},
       "y": {"shape": [2]}},
       "nodes": [{"op": "send", "in": ["x"], "out": [], "comm": "a", "to": {"tp": 1}},
        {"op": "recv", "in": [], "out": ["y"], "comm": "b", "from": {"tp": 1}}]},
      {"at": {"tp": 1}, "order": "issue", "tensors": {"x": {"shape": [2], "kind": "input"},
       "y": {"shape": [2]}},
       "nodes": [{"op": "recv", "in": [], "out": ["y"], "comm": "a", "from": {"tp": 0}},
        {"op": "send", "in": ["x"], "out": [], "comm": "b", "to": {"tp": 0}}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]],
      "parts": [{"local": "x"}]}]},
                 {"tensor": "x", "role": "output", "shards": [{"box": [[0, 2]],
                  "parts": [{"local": "y"}]}]}]})");
  if (crossed) std::swap(d.node(1, 0), d.node(1, 1));
  return d;
}

TEST(Execute, ADeadlockIsFound) {
  EXPECT_EQ(outputsOf(exchange(false)), Agreement::kAgrees);
  const Result result = executed(exchange(true));
  EXPECT_EQ(result.status, Status::kCannotRun);
  EXPECT_NE(result.reason.find("waits for rank"), std::string::npos) << result.reason;
}

TEST(Execute, MicrobatchesHaveNoOrderAmongThemselvesUnlessIssued) {
  // Rank 0 lists microbatch 0 first, rank 1 microbatch 1: in issue order they wait for one another.
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}}, "nodes": [], "outputs": ["x"]})",
      R"({"mesh": [["tp", 2]], "microbatches": 2, "programs": [
      {"at": {"tp": 0}, "tensors": {"x": {"shape": [2], "kind": "input", "per_mb": true},
       "y": {"shape": [4], "per_mb": true}},
       "nodes": [{"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "a", "group": ["tp"],
        "attrs": {"dim": 0}, "mb": 0},
                 {"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "a", "group": ["tp"],
                  "attrs": {"dim": 0}, "mb": 1}]},
      {"at": {"tp": 1}, "tensors": {"x": {"shape": [2], "kind": "input", "per_mb": true},
       "y": {"shape": [4], "per_mb": true}},
       "nodes": [{"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "a", "group": ["tp"],
        "attrs": {"dim": 0}, "mb": 1},
                 {"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "a", "group": ["tp"],
                  "attrs": {"dim": 0}, "mb": 0}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"tp": [2]},
      "parts": [{"local": "x"}]}]},
                 {"tensor": "x", "role": "output", "shards": [{"box": [[0, 4]],
                  "parts": [{"local": "y"}]}]}]})");
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
  for (const std::size_t p : {0, 1}) d.program(p)["order"] = "issue";
  EXPECT_EQ(executed(d).status, Status::kCannotRun);
}

// y = f(x) in the model; the plan's nodes compute "o" from the same x.
Draft unary(const std::string& shape, const std::string& modelNodes, const std::string& planNodes,
            const std::string& more = "") {
  const std::string tensors = R"("a": {"shape": )" + shape + R"(}, "b": {"shape": )" + shape +
                              R"(}, "o": {"shape": )" + shape + "}" + more;
  return test::oneRank(R"("x": {"shape": )" + shape + R"(, "kind": "input"})", tensors, modelNodes,
                       tensors, planNodes);
}
const std::string kFill =
    R"({"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "neg", "in": ["x"], "out": ["b"]}, )";

TEST(Execute, RoundingIsNoDifference) {
  // (x + 1e9) - 1e9 loses nine digits.
  const Draft d =
      unary("[64]",
            R"({"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "neg", "in": ["x"], "out": ["b"]},
          {"op": "identity", "in": ["x"], "out": ["o"]})",
            R"({"op": "add", "in": ["x"], "out": ["a"], "attrs": {"scalar": 1e9}},
          {"op": "sub", "in": ["a"], "out": ["o"], "attrs": {"scalar": 1e9}},
          {"op": "neg", "in": ["x"], "out": ["b"]})");
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
}

TEST(Execute, AnOverflowOrUnderflowDecidesNothing) {
  // log(exp(40000)) is 40000, and no number is as large as exp(40000), or as small as its
  // reciprocal.
  for (const auto& [scale, why] :
       {std::pair("40000", "too large"), std::pair("-40000", "too small")}) {
    const std::string scaled = R"("attrs": {"scalar": )" + std::string(scale) + "}}";
    const auto problem = test::read(
        unary("[2]", kFill + R"({"op": "mul", "in": ["x"], "out": ["o"], )" + scaled,
              R"({"op": "mul", "in": ["x"], "out": ["a"], )" + scaled +
                  R"(, {"op": "exp", "in": ["a"], "out": ["b"]}, {"op": "log", "in": ["b"],
                "out": ["o"]})"));
    const std::map<std::string, Array> ones{{"x", {{2}, ElementKind::kReal, {1, 1}}}};
    Options options;
    options.inputs = &ones;
    const Result result = execute(*problem, options);
    EXPECT_EQ(result.outputs(problem->plan), Agreement::kUnknown);
    EXPECT_NE(result.entries[0].reason.find(why), std::string::npos) << result.entries[0].reason;
  }
}

TEST(Execute, WhatIsRoundedToOneDecidesNothing) {
  // log(log(exp(exp(-300)))) is -300; exp(exp(-300)) is 1 in every floating point.
  Draft d =
      unary("[2]", kFill + R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": 1}})",
            R"({"op": "exp", "in": ["x"], "out": ["a"]}, {"op": "exp", "in": ["a"], "out": ["b"]},
          {"op": "log", "in": ["b"], "out": ["c"]}, {"op": "log", "in": ["c"], "out": ["o"]})");
  d.tensor(0, "c") = d.tensor(0, "a");
  const auto problem = test::read(d);
  const std::map<std::string, Array> small{{"x", {{2}, ElementKind::kReal, {-300, -300}}}};
  Options options;
  options.inputs = &small;
  EXPECT_EQ(execute(*problem, options).outputs(problem->plan), Agreement::kUnknown);
}

TEST(Execute, WhatWouldBePlusInfinityHasNoValue) {
  // - -m is no mask, and exp(- m m) no 0.
  const auto decided = [](const std::string& nodes) {
    const std::string tensors =
        R"("m": {"shape": [1, 1, 4, 4]}, "a": {"shape": [1, 1, 4, 4]}, "b": {"shape": [1, 1, 4, 4]},
            "o": {"shape": [1, 1, 4, 4]})";
    const std::string all = R"({"op": "create_mask", "in": ["x"], "out": ["m"]}, )" + nodes;
    const auto problem =
        test::read(test::oneRank(R"("x": {"shape": [1, 4], "kind": "input", "dtype": "int64"})",
                                 tensors, all, tensors, all));
    return execute(*problem, {}).entries.back().undefined;
  };
  EXPECT_EQ(
      decided(
          R"({"op": "exp", "in": ["m"], "out": ["a"]}, {"op": "neg", "in": ["a"], "out": ["b"]},
              {"op": "neg", "in": ["b"], "out": ["o"]})"),
      0);
  EXPECT_EQ(
      decided(
          R"({"op": "neg", "in": ["m"], "out": ["a"]}, {"op": "neg", "in": ["a"], "out": ["b"]},
              {"op": "identity", "in": ["b"], "out": ["o"]})"),
      6);
  EXPECT_EQ(
      decided(
          R"({"op": "square", "in": ["m"], "out": ["a"]}, {"op": "neg", "in": ["a"], "out": ["b"]},
              {"op": "exp", "in": ["b"], "out": ["o"]})"),
      6);
}

TEST(Execute, WhatCancelsIsRounding) {
  // log(exp(x)) - x and x - x: rounding on one side, 0 on the other.
  const Draft d =
      unary("[64]",
            R"({"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "neg", "in": ["x"], "out": ["b"]},
          {"op": "sub", "in": ["x", "x"], "out": ["o"]})",
            R"({"op": "exp", "in": ["x"], "out": ["a"]}, {"op": "log", "in": ["a"], "out": ["b"]},
          {"op": "sub", "in": ["b", "x"], "out": ["o"]})");
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
}

TEST(Execute, WhatIsNotZeroIsNotRoundingOfZero) {
  const auto scaled = [](const char* by) {
    return unary(
        "[64]", kFill + R"({"op": "sub", "in": ["x", "x"], "out": ["o"]})",
        kFill + R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": )" + by + "}}");
  };
  EXPECT_EQ(outputsOf(scaled("1e-6")), Agreement::kDiffers);
  EXPECT_EQ(outputsOf(scaled("1e-12")), Agreement::kDiffers);
  EXPECT_EQ(outputsOf(scaled("1e-20")), Agreement::kUnknown);  // not agreement
}

TEST(Execute, AllThatIsSmallIsNoRounding) {
  // Everything is of the size 1e-30, and the plan has twice the model's.
  const auto problem = test::read(
      unary("[8]", kFill + R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": 0.25}})",
            kFill + R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": 0.5}})"));
  const std::map<std::string, Array> tiny{
      {"x", {{8}, ElementKind::kReal, std::vector<double>(8, 1e-30)}}};
  Options options;
  options.inputs = &tiny;
  EXPECT_EQ(execute(*problem, options).outputs(problem->plan), Agreement::kDiffers);
}

TEST(Execute, ATensorIsOfOneKindForAllMicrobatches) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}},
          "nodes": [{"op": "neg", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [], "microbatches": 2, "programs": [{"tensors": {"x": {"shape": [4],
          "kind": "input"}, "i": {"shape": [4], "kind": "input", "dtype": "int64"},
          "u": {"shape": [4], "per_mb": true}, "y": {"shape": [4]}},
       "nodes": [{"op": "identity", "in": ["x"], "out": ["u"], "mb": 0},
        {"op": "identity", "in": ["i"], "out": ["u"], "mb": 1},
        {"op": "neg", "in": ["u#0"], "out": ["y"]}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
      "parts": [{"local": "x"}]}]},
                 {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4]],
                  "parts": [{"local": "y"}]}]}]})");
  const Result result = executed(d);
  EXPECT_EQ(result.status, Status::kCannotRun);
  EXPECT_NE(result.reason.find("another kind of element"), std::string::npos) << result.reason;
  d.node(0, 1)["in"][0] = "x";
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
}

TEST(Execute, ASmallDifferenceIsOne) {
  // 1e-11 of the value: far below what nine lost digits of the test above come to, and yet a
  // difference.
  const Draft d = unary(
      "[64]", kFill + R"({"op": "identity", "in": ["x"], "out": ["o"]})",
      kFill + R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": 1.00000000001}})");
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
}

TEST(Execute, WhereTheModelHasNoValueNothingIsAsked) {
  // log has a value where x > 0 only; the plan has one everywhere.
  const auto problem = test::read(unary(
      "[64]", kFill + R"({"op": "log", "in": ["x"], "out": ["o"]})",
      R"({"op": "square", "in": ["x"], "out": ["a"]}, {"op": "log", "in": ["a"], "out": ["b"]},
          {"op": "div", "in": ["b"], "out": ["o"], "attrs": {"scalar": 2}})"));
  const std::map<std::string, Array> inputs{{"x", {{64}, ElementKind::kReal, [] {
                                                     std::vector<double> v;
                                                     for (int i = 0; i < 64; ++i)
                                                       v.push_back((i % 3 == 0 ? -1 : 1) *
                                                                   (0.1 + 0.01 * i));
                                                     return v;
                                                   }()}}};
  Options options;
  options.inputs = &inputs;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kAgrees);
  EXPECT_EQ(result.entries[0].compared, 42);
  EXPECT_EQ(result.entries[0].undefined, 22);
}

TEST(Execute, WhereThePlanHasNoValueItIsWrong) {
  const auto problem = test::read(unary(
      "[64]",
      R"({"op": "square", "in": ["x"], "out": ["a"]}, {"op": "log", "in": ["a"], "out": ["b"]},
          {"op": "div", "in": ["b"], "out": ["o"], "attrs": {"scalar": 2}})",
      kFill + R"({"op": "log", "in": ["x"], "out": ["o"]})"));
  const std::map<std::string, Array> inputs{
      {"x", {{64}, ElementKind::kReal, std::vector<double>(64, -0.7)}}};
  Options options;
  options.inputs = &inputs;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kDiffers);
  ASSERT_TRUE(result.entries[0].difference);
  EXPECT_TRUE(std::isnan(result.entries[0].difference->parallel));
}

TEST(Execute, AModelWithoutAnyValueDecidesNothing) {
  const std::string zero =
      R"({"op": "sub", "in": ["x", "x"], "out": ["a"]}, {"op": "div", "in": ["x", "a"],
          "out": ["o"]}, {"op": "neg", "in": ["x"], "out": ["b"]})";
  const auto problem = test::read(unary("[8]", zero, zero));
  const Result result = execute(*problem, {});
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kUnknown);
  EXPECT_NE(result.entries[0].reason.find("no value"), std::string::npos);
}

TEST(Execute, InputsOfOneSignAreTriedWhereBothGiveNothing) {
  // The sum of logarithms of all elements: no value unless all are positive. What is logged is no
  // input, so its sign is not asked for.
  const std::string nodes =
      R"({"op": "mul", "in": ["x"], "out": ["a"], "attrs": {"scalar": 3}},
          {"op": "log", "in": ["a"], "out": ["b"]}, {"op": "sum", "in": ["b"], "out": ["s"]},
          {"op": "mul", "in": ["x", "s"], "out": ["o"]})";
  EXPECT_EQ(outputsOf(unary("[8]", nodes, nodes, R"(, "s": {"shape": []})")), Agreement::kAgrees);
}

TEST(Execute, ADifferenceAtAKinkOnlyIsNone) {
  // The slope of relu at 0 against that of another function: at inputs of exactly 0, and nowhere
  // else.
  const std::string model =
      R"({"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "neg", "in": ["a"], "out": ["b"]},
          {"op": "relu_backward", "in": ["b", "x"], "out": ["o"]})";
  const std::string plan =
      R"({"op": "sigmoid", "in": ["x"], "out": ["a"]}, {"op": "relu", "in": ["x"], "out": ["b"]},
          {"op": "div", "in": ["b", "x"], "out": ["c"]},
          {"op": "mul", "in": ["c", "x"], "out": ["o"]})";
  const auto problem = test::read(unary("[8]", model, plan, R"(, "c": {"shape": [8]})"));
  const std::map<std::string, Array> zeros{
      {"x", {{8}, ElementKind::kReal, std::vector<double>(8, 0.0)}}};
  Options options;
  options.inputs = &zeros;
  EXPECT_EQ(execute(*problem, {}).outputs(problem->plan), Agreement::kAgrees);
  // Zeros cannot be moved by a part of themselves: there the plan has no value, and the model does.
  EXPECT_EQ(execute(*problem, options).outputs(problem->plan), Agreement::kDiffers);
}

TEST(Execute, ADifferenceAtATieGoesAwayWhenInputsMove) {
  // The slope of relu is 0 at 0; 1 - relu'(-x) is 1 there, and the same elsewhere.
  const std::string inputs =
      R"("x": {"shape": [8], "kind": "input"}, "z": {"shape": [8], "kind": "input"},
          "g": {"shape": [8], "kind": "input"})";
  const std::string tensors =
      R"("d": {"shape": [8]}, "o": {"shape": [8]}, "m": {"shape": [8]}, "s": {"shape": [8]})";
  const std::string difference =
      R"({"op": "sub", "in": ["x", "z"], "out": ["d"]}, {"op": "neg", "in": ["d"], "out": ["m"]},
)";
  const auto problem = test::read(test::oneRank(
      inputs, tensors,
      difference +
          R"({"op": "neg", "in": ["d"], "out": ["s"]}, {"op": "relu_backward", "in": ["g", "d"],
              "out": ["o"]})",
      tensors,
      difference +
          R"({"op": "relu_backward", "in": ["g", "m"], "out": ["s"]},
              {"op": "sub", "in": ["g", "s"], "out": ["o"]})"));
  EXPECT_EQ(execute(*problem, {}).outputs(problem->plan), Agreement::kAgrees);
  const std::map<std::string, Array> ties{
      {"x", {{8}, ElementKind::kReal, {1, 2, 3, 4, 5, 6, 7, 8}}},
      {"z", {{8}, ElementKind::kReal, {0, 2, 0, 0, 5, 0, 0, 0}}}};
  Options options;
  options.inputs = &ties;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kUnknown);
  EXPECT_NE(result.entries[0].reason.find("goes away when the inputs are moved"), std::string::npos)
      << result.entries[0].reason;
}

TEST(Execute, ADecisionByLessThanRoundingIsNoDifference) {
  // 10 (x / 10) - x is 0; what rounding makes of it decides the slope.
  const std::string nodes =
      R"({"op": "mul", "in": ["x"], "out": ["a"], "attrs": {"scalar": 0.1}},
          {"op": "mul", "in": ["a"], "out": ["b"], "attrs": {"scalar": 10}},
          {"op": "sub", "in": ["b", "x"], "out": ["c"]}, )";
  const std::string more = R"(, "c": {"shape": [64]})";
  const Draft d =
      unary("[64]", nodes + R"({"op": "relu_backward", "in": ["x", "c"], "out": ["o"]})",
            nodes + R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": 0}})", more);
  EXPECT_EQ(outputsOf(d), Agreement::kUnknown);
}

TEST(Execute, InputsThatDoNotFitAreRefused) {
  const auto problem = test::read(test::pipeline());
  const auto with = [&](const std::string& name, Array array) {
    const std::map<std::string, Array> inputs{{name, std::move(array)}};
    Options options;
    options.inputs = &inputs;
    return execute(*problem, options);
  };
  EXPECT_THROW(with("nobody", {{1}, ElementKind::kReal, {1}}), InputError);
  EXPECT_THROW(with("y", {{8, 6}, ElementKind::kReal, std::vector<double>(48)}), InputError);
  EXPECT_THROW(with("x", {{4, 8}, ElementKind::kReal, std::vector<double>(32)}), InputError);
  EXPECT_THROW(with("x", {{8, 4}, ElementKind::kReal, std::vector<double>(31)}), InputError);
  EXPECT_THROW(with("x", {{8, 4}, ElementKind::kComplex, std::vector<double>(64)}), InputError);
  EXPECT_EQ(with("x", {{8, 4}, ElementKind::kInteger, std::vector<double>(32, 2)}).status,
            Status::kRun);
}

TEST(Execute, GivenInputsAreUsedAndArraysKept) {
  const auto problem = test::read(test::pipeline());
  std::vector<double> x;
  for (int i = 0; i < 32; ++i) x.push_back(i);
  const std::map<std::string, Array> inputs{
      {"x", {{8, 4}, ElementKind::kReal, x}},
      {"w", {{6, 4}, ElementKind::kReal, std::vector<double>(24, 1)}}};
  Options options;
  options.inputs = &inputs;
  options.keep = true;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.model.at("s").data, (std::vector<double>{6 * 496}));
  EXPECT_EQ(result.model.at("y").data[6], 4 + 5 + 6 + 7);
  EXPECT_EQ(result.local.at("x@1#1").data, std::vector<double>(x.begin() + 16, x.end()));
  EXPECT_EQ(result.local.at("y@3#0").shape, (Shape{4, 3}));
  EXPECT_EQ(result.local.at("s@2").data, result.model.at("s").data);
  EXPECT_FALSE(result.local.contains("y@3"));
}

TEST(Execute, TheSameSeedGivesTheSame) {
  const auto problem = test::read(test::pipeline());
  Options options;
  options.keep = true;
  const Result a = execute(*problem, options), b = execute(*problem, options);
  EXPECT_EQ(a.model.at("y").data, b.model.at("y").data);
  options.seed = 2;
  EXPECT_NE(execute(*problem, options).model.at("y").data, a.model.at("y").data);
}

TEST(Execute, TooLargeIsRefusedBeforeAnythingRuns) {
  const auto problem = test::read(test::pipeline());
  Options options;
  options.maxBytes = 500;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.status, Status::kRefused);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kUnknown);
  EXPECT_EQ(result.flops, 0);
}

TEST(Execute, CostIsFromAbove) {
  const auto problem = test::read(test::pipeline());
  const Cost estimate = cost(*problem);
  const Result result = execute(*problem, {});
  EXPECT_GE(estimate.bytes, static_cast<double>(result.peakBytes));
  EXPECT_GE(estimate.flops, result.flops);
  EXPECT_LT(estimate.bytes, 100.0 * static_cast<double>(result.peakBytes));
}

TEST(Execute, CostCountsWhatAllRanksHoldAtOnce) {
  // Each of 8 ranks blows its number up, and needs the array after they have all met.
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [1], "kind": "input"}, "y": {"shape": [1]}},
          "nodes": [{"op": "mul", "in": ["x"], "out": ["y"], "attrs": {"scalar": 1000}}],
          "outputs": ["y"]})",
      R"({"mesh": [["r", 8]], "programs": [{"order": "issue",
          "tensors": {"x": {"shape": [1], "kind": "input"}, "b": {"shape": [1000]},
          "m": {"shape": [1]}, "s": {"shape": [1]}, "y": {"shape": [1]}},
      "nodes": [{"op": "expand", "in": ["x"], "out": ["b"], "attrs": {"size": [1000]}},
       {"op": "all_reduce", "in": ["x"], "out": ["m"], "comm": "c", "group": ["r"]},
       {"op": "sum", "in": ["b"], "out": ["y"]}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 1]],
      "parts": [{"local": "x"}]}]}, {"tensor": "y", "role": "output",
      "shards": [{"box": [[0, 1]], "parts": [{"local": "y"}]}]}]})");
  const auto problem = test::read(d);
  const Result result = execute(*problem, {});
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kAgrees);
  EXPECT_GE(result.peakBytes, 8 * 8000);
  EXPECT_GE(cost(*problem).bytes, static_cast<double>(result.peakBytes));
}

TEST(Execute, CancelStops) {
  const auto problem = test::read(test::pipeline());
  std::atomic<bool> cancel{true};
  Options options;
  options.cancel = &cancel;
  EXPECT_EQ(execute(*problem, options).status, Status::kStopped);
}

TEST(Execute, ModuloAPrimeEqualityIsExactAndDifferencesMeanNothing) {
  Options options;
  options.arithmetic = Arithmetic::kPrimeField;
  EXPECT_EQ(outputsOf(test::pipeline(), options), Agreement::kAgrees);
  // exp(x)^2 = exp(2x) holds for reals only.
  const Draft law = unary(
      "[8]",
      R"({"op": "exp", "in": ["x"], "out": ["a"]}, {"op": "square", "in": ["a"], "out": ["o"]},
          {"op": "neg", "in": ["x"], "out": ["b"]})",
      R"({"op": "mul", "in": ["x"], "out": ["a"], "attrs": {"scalar": 2}},
          {"op": "exp", "in": ["a"], "out": ["o"]}, {"op": "neg", "in": ["x"], "out": ["b"]})");
  EXPECT_EQ(outputsOf(law), Agreement::kAgrees);
  EXPECT_EQ(outputsOf(law, options), Agreement::kUnknown);
}

// A logical input that a rank holds as a sum: parts are any that add up.
TEST(Execute, InputsGivenAsSumsAreDivided) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [6], "kind": "input"}, "y": {"shape": [6]}},
          "nodes": [{"op": "square", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["tp", 3]], "programs": [{"tensors": {"p": {"shape": [6], "kind": "input"},
          "x": {"shape": [6]}, "y": {"shape": [6]}},
      "nodes": [{"op": "all_reduce", "in": ["p"], "out": ["x"], "comm": "a", "group": ["tp"]},
       {"op": "square", "in": ["x"], "out": ["y"]}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 6]],
      "parts": [{"local": "p"}], "sum": ["tp"]}]},
                 {"tensor": "y", "role": "output", "shards": [{"box": [[0, 6]],
                  "parts": [{"local": "y"}]}]}]})");
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
  std::swap(d.node(0, 0)["in"], d.node(0, 1)["in"]);
  d.node(0, 0)["out"] = {"y"};
  d.node(0, 1)["out"] = {"x"};
  d.node(0, 0)["in"] = {"x"};
  d.node(0, 1)["in"] = {"p"};
  std::swap(d.node(0, 0), d.node(0, 1));  // the sum of squares is not the square of the sum
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
  Options options;
  options.keep = true;
  const Result result = executed(d, options);
  const auto& parts = result.local;
  EXPECT_NEAR(parts.at("p@0").data[2] + parts.at("p@1").data[2] + parts.at("p@2").data[2],
              result.model.at("x").data[2], 1e-12);
  EXPECT_NE(parts.at("p@0").data, parts.at("p@1").data);
}

TEST(Execute, LocalInputsWithoutLineageAreAny) {
  Draft d = test::pipeline();
  d.tensor(1, "free") = test::Json::parse(R"({"shape": [], "kind": "input"})");
  d.node(1, 2)["in"] = {"t#0", "free"};
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
}

TEST(Execute, TwoSourcesOfOneInputAreAnInputError) {
  Draft d = test::twoRanks();
  d.plan["lineage"].push_back(test::Json::parse(
      R"({"tensor": "x", "role": "input", "shards": [{"box": [[4, 8]],
          "parts": [{"local": "x", "at": {"tp": 0}}]}]})"));
  EXPECT_THROW(executed(d), InputError);
}

}  // namespace
}  // namespace shardproof::executor
