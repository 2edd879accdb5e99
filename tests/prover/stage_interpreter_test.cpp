// SPDX-License-Identifier: Apache-2.0
// Executing stages in numbers: what each communication yields, how assumed lineage is bound, and
// how claims are paired up.
#include "prover/stage_interpreter.h"

#include <functional>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "numbers/double_algebra.h"
#include "shape_reduction/reduction.h"
#include "support/problems.h"
#include "terms/term_algebra.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

struct Run {
  test::Cut cut;
  ReducedStage reduced;
  DoubleAlgebra algebra;
  std::unique_ptr<StageInterpreter<ops::RealNumbers>> interpreter;
  const std::vector<double>& value(const std::string& name, std::int32_t rank = -1,
                                   std::int32_t microbatch = -1) const {
    const std::int32_t t = test::findIn(cut.stage, *cut.problem, name, rank, microbatch);
    if (t < 0) throw std::logic_error("the stage has no tensor " + name);
    return interpreter->value(StageTensorId(t)).data;
  }
  bool paired() const {
    for (const auto& p : interpreter->pairs()) {
      if (p.logical != p.parallel) return false;
    }
    return !interpreter->pairs().empty();
  }
};

// Free elements get 1, 2, 3, ... in the order in which the interpreter asks, or what `supply` says.
std::unique_ptr<Run> run(const Draft& d, std::int32_t entry,
                         std::function<double(std::int32_t, std::int64_t)> supply = {},
                         const CutOptions& options = {}) {
  auto r = std::make_unique<Run>();
  r->cut = test::cut(d, entry, options);
  ReductionOptions whole;
  whole.extraSummands = 64;  // small tensors are not reduced at all
  r->reduced = reduceStage(r->cut.stage, whole);
  r->interpreter =
      std::make_unique<StageInterpreter<ops::RealNumbers>>(r->cut.stage, r->reduced, r->algebra);
  double next = 0;
  r->interpreter->run(
      [&](std::int32_t t, std::int64_t i) { return supply ? supply(t, i) : ++next; });
  return r;
}

// ---- communication ----

// x [2, 4] is cut by rows over two named ranks, and each makes y from its row by one node.
Draft communication(const std::string& node, const std::string& result,
                    const std::string& modelNode, const std::string& modelShape,
                    const std::string& shards) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [2, 4], "kind": "input"}}, "nodes": [], "outputs": ["o"]})",
      R"({"mesh": [["tp", 2]], "programs": [], "lineage": [{"tensor": "x", "role": "input",
          "shards": [{"box": [[0, 1], [0, 4]], "step": {"tp": [1, 0]},
          "parts": [{"local": "x"}]}]}]})");
  d.model["tensors"]["o"] = {{"shape", Json::parse(modelShape)}};
  d.model["nodes"].push_back(Json::parse(modelNode));
  for (int r = 0; r < 2; ++r) {
    Json program = {{"at", {{"tp", r}}},
                    {"tensors", Json::parse(R"({"x": {"shape": [1, 4], "kind": "input"}})")},
                    {"nodes", {Json::parse(node)}}};
    program["tensors"]["y"] = {{"shape", Json::parse(result)}};
    d.plan["programs"].push_back(program);
  }
  d.plan["lineage"].push_back(
      {{"tensor", "o"}, {"role", "output"}, {"shards", Json::parse(shards)}});
  return d;
}

using Values = std::vector<double>;

// For each reduction of a communication the model's operator, and what becomes of 1 2 3 4 and
// 5 6 7 8.
const std::map<std::string, std::pair<std::string, Values>> kReduced{
    {"sum", {"sum", {6, 8, 10, 12}}},
    {"mean", {"mean", {3, 4, 5, 6}}},
    {"max", {"amax", {5, 6, 7, 8}}},
    {"min", {"amin", {1, 2, 3, 4}}}};

TEST(StageInterpreter, AllReduce) {
  for (const auto& [reduce, expected] : kReduced) {
    const auto r =
        run(communication(
                R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", 
                "group": ["tp"], "attrs": {"reduce": ")" +
                    reduce + R"("}})",
                "[1, 4]",
                R"({"op": ")" + expected.first +
                    R"(", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "keepdim": true}})",
                "[1, 4]", R"([{"box": [[0, 1], [0, 4]], "parts": [{"local": "y"}]}])"),
            1);
    EXPECT_EQ(r->value("y", 0), expected.second) << reduce;
    EXPECT_EQ(r->value("y", 1), expected.second) << reduce;
    EXPECT_TRUE(r->paired()) << reduce;
  }
}

TEST(StageInterpreter, AllGatherAlongADimensionInGroupOrder) {
  auto r = run(communication(
                   R"({"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
              "attrs": {"dim": 0}})",
                   "[2, 4]", R"({"op": "identity", "in": ["x"], "out": ["o"]})", "[2, 4]",
                   R"([{"box": [[0, 2], [0, 4]], "parts": [{"local": "y"}]}])"),
               1);
  EXPECT_EQ(r->value("y", 1), (Values{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(r->paired());
  r = run(communication(
              R"({"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "c",
              "group_at": [{"tp": 1}, {"tp": 0}], "attrs": {"dim": -1}})",
              "[1, 8]", R"({"op": "view", "in": ["x"], "out": ["o"], "attrs": {"size": [1, 8]}})",
              "[1, 8]", R"([{"box": [[0, 1], [0, 8]], "parts": [{"local": "y"}]}])"),
          1);
  EXPECT_EQ(r->value("y", 0), (Values{5, 6, 7, 8, 1, 2, 3, 4}));
  EXPECT_FALSE(r->paired());  // the group is listed the other way round
}

TEST(StageInterpreter, ReduceScatterGivesTheMembersOwnPiece) {
  const std::string shards =
      R"([{"box": [[0, 1], [0, 2]], "step": {"tp": [0, 2]}, "parts": [{"local": "y"}]}])";
  const auto r =
      run(communication(
              R"({"op": "reduce_scatter", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
              "attrs": {"dim": 1}})",
              "[1, 2]",
              R"({"op": "sum", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "keepdim": true}})",
              "[1, 4]", shards),
          1);
  EXPECT_EQ(r->value("y", 0), (Values{6, 8}));
  EXPECT_EQ(r->value("y", 1), (Values{10, 12}));
  EXPECT_TRUE(r->paired());
}

// What a reduce_scatter adds up is made once in a stage, and each member takes its part in group
// order.
TEST(StageInterpreter, ReduceScatterIsCombinedOnce) {
  for (const auto& [reduce, expected] : kReduced) {
    for (const bool turned : {false, true}) {
      const std::string group =
          turned ? R"("group_at": [{"tp": 1}, {"tp": 0}])" : R"("group": ["tp"])";
      const std::string shards =
          turned
              ? R"([{"box": [[0, 1], [2, 4]], "step": {"tp": [0, -2]}, "parts": [{"local": "y"}]}])"
              : R"([{"box": [[0, 1], [0, 2]], "step": {"tp": [0, 2]}, "parts": [{"local": "y"}]}])";
      const auto r =
          run(communication(
                  R"({"op": "reduce_scatter", "in": ["x"], "out": ["y"], "comm": "c", )" + group +
                      R"(, "attrs": {"dim": -1, "reduce": ")" + reduce + R"("}})",
                  "[1, 2]",
                  R"({"op": ")" + expected.first +
                      R"(", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "keepdim": true}})",
                  "[1, 4]", shards),
              1);
      const Values& all = expected.second;
      EXPECT_EQ(r->value("y", turned ? 1 : 0), (Values{all[0], all[1]})) << reduce << group;
      EXPECT_EQ(r->value("y", turned ? 0 : 1), (Values{all[2], all[3]})) << reduce << group;
      EXPECT_TRUE(r->paired()) << reduce << group;
      std::size_t operands = 0;
      for (const StageNode& n : r->cut.stage.nodes)
        operands += n.communication == Communication::kNone ? 0 : n.in.size();
      EXPECT_EQ(operands, 4u);  // two are added up, and each takes its part of one
    }
  }
}

TEST(StageInterpreter, AllToAll) {
  auto r =
      run(communication(
              R"({"op": "all_to_all", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
              "attrs": {"idim": 1, "odim": 0}})",
              "[2, 2]", R"({"op": "identity", "in": ["x"], "out": ["o"]})", "[2, 4]",
              R"([{"box": [[0, 2], [0, 2]], "step": {"tp": [0, 2]}, "parts": [{"local": "y"}]}])"),
          1);
  EXPECT_EQ(r->value("y", 0), (Values{1, 2, 5, 6}));
  EXPECT_EQ(r->value("y", 1), (Values{3, 4, 7, 8}));
  EXPECT_TRUE(r->paired());
  // Along one dimension: piece by piece of every member.
  r = run(communication(
              R"({"op": "all_to_all", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
              "attrs": {"idim": 1, "odim": 1}})",
              "[1, 4]", R"({"op": "identity", "in": ["x"], "out": ["o"]})", "[2, 4]",
              R"([{"box": [[0, 1], [0, 4]], "step": {"tp": [1, 0]}, "parts": [{"local": "y"}]}])"),
          1);
  EXPECT_EQ(r->value("y", 0), (Values{1, 2, 5, 6}));
  EXPECT_EQ(r->value("y", 1), (Values{3, 4, 7, 8}));
}

TEST(StageInterpreter, BroadcastSendAndReceive) {
  Draft d = communication(
      R"({"op": "broadcast", "in": [], "out": ["y"], "comm": "c", "group": ["tp"],
          "root": {"tp": 0}})",
      "[1, 4]", R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "stop": 1}})",
      "[1, 4]", R"([{"box": [[0, 1], [0, 4]], "parts": [{"local": "y", "at": {"tp": 1}}]}])");
  d.node(0, 0)["in"] = {"x"};
  d.node(0, 0)["out"] = Json::array();
  auto r = run(d, 1);
  EXPECT_EQ(r->value("y", 1), (Values{1, 2, 3, 4}));
  EXPECT_TRUE(r->paired());
  d.node(0, 0) =
      Json::parse(R"({"op": "send", "in": ["x"], "out": [], "comm": "c", "to": {"tp": 1}})");
  d.node(1, 0) =
      Json::parse(R"({"op": "recv", "in": [], "out": ["y"], "comm": "c", "from": {"tp": 0}})");
  r = run(d, 1);
  EXPECT_EQ(r->value("y", 1), (Values{1, 2, 3, 4}));
  EXPECT_TRUE(r->paired());
}

// The members of a collapsed axis count as many times as they stand for.
TEST(StageInterpreter, CollapsedMembersHaveWeights) {
  for (const bool mean : {false, true}) {
    Draft d = test::draft(
        R"({"tensors": {"x": {"shape": [10], "kind": "input"}, "o": {"shape": [1]}},
            "nodes": [{"op": "sum", "in": ["x"], "out": ["o"],
            "attrs": {"dim": 0, "keepdim": true}}], "outputs": ["o"]})",
        R"({"mesh": [["dp", 10]], "programs": [{"tensors": {"x": {"shape": [1], "kind": "input"},
            "y": {"shape": [1]}},
                               "nodes": [{"op": "all_reduce", "in": ["x"], "out": ["y"],
                                "comm": "c", "group": ["dp"]}]}],
                              "lineage": [{"tensor": "x", "role": "input",
                               "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                               "parts": [{"local": "x"}]}]},
                                          {"tensor": "o", "role": "output",
                                           "shards": [{"box": [[0, 1]],
                                           "parts": [{"local": "y"}]}]}]})");
    if (mean) {
      d.model["nodes"][0]["op"] = "mean";
      d.node(0, 0)["attrs"] = {{"reduce", "mean"}};
    }
    const auto r = run(d, 1);
    EXPECT_EQ(r->value("x"), (Values{1, 2, 3}));
    EXPECT_EQ(r->value("y", 0), Values{(1 + 2 + 8 * 3) / (mean ? 10.0 : 1.0)});
    EXPECT_TRUE(r->paired());
  }
}

// ---- binding ----

TEST(StageInterpreter, UnitedElementsAreOneUnknown) {
  const auto r = run(test::pipeline(), 2);  // y from x and w, x replicated over tp
  EXPECT_EQ(r->value("x", 0, 1), r->value("x", 1, 1));
  const auto& x = r->value("x");
  EXPECT_EQ(r->value("x", 0, 0), Values(x.begin(), x.begin() + 16));
  EXPECT_EQ(std::set<double>(x.begin(), x.end()).size(), 32u);
  EXPECT_TRUE(r->paired());
  EXPECT_FALSE(r->interpreter->droppedAssumption());
}

TEST(StageInterpreter, TheLastPartOfASumIsTheDifference) {
  const auto r = run(test::pipeline(), 5);  // s from the four t
  const double s = r->value("s").at(0);
  double sum = 0;
  std::set<double> values;
  for (const std::int32_t rank : {2, 3}) {
    for (const std::int32_t mb : {0, 1}) {
      sum += r->value("t", rank, mb).at(0);
      values.insert(r->value("t", rank, mb).at(0));
    }
  }
  EXPECT_EQ(sum, s);
  EXPECT_EQ(values.size(), 4u);  // free but for their sum
  EXPECT_TRUE(r->paired());
}

TEST(StageInterpreter, OverDeterminedSumsAreDropped) {
  const auto r = run(test::overDetermined(), 6);
  EXPECT_TRUE(r->interpreter->droppedAssumption());
  EXPECT_TRUE(r->paired());
}

// The very same equation in two entries is one assumption.
TEST(StageInterpreter, AnEquationThatIsStatedTwiceIsNotOverDetermined) {
  Draft d = test::pipeline();
  const Json same = d.entry(4);
  d.plan["lineage"].insert(d.plan["lineage"].begin() + 5, same);
  const auto r = run(d, 6);
  EXPECT_FALSE(r->interpreter->droppedAssumption());
  EXPECT_TRUE(r->paired());
}

// ---- trees of additions ----

struct TermRun {
  test::Cut cut;
  ReducedStage reduced;
  TermAlgebra algebra;
  bool equal = true;
};

TermRun inTerms(const Draft& d, std::int32_t entry) {
  TermRun r{test::cut(d, entry), {}, TermAlgebra(), true};
  ReductionOptions whole;
  whole.extraSummands = 64;
  r.reduced = reduceStage(r.cut.stage, whole);
  StageInterpreter<TermAlgebra> interpreter(r.cut.stage, r.reduced, r.algebra);
  interpreter.run([&](std::int32_t, std::int64_t) { return r.algebra.variable(false); });
  r.equal = !interpreter.pairs().empty();
  for (const auto& p : interpreter.pairs()) r.equal = r.equal && p.logical == p.parallel;
  return r;
}

std::string tensors(const std::string& names, const std::string& rest) {
  std::string text;
  for (const char name : names)
    text +=
        (text.empty() ? "" : ", ") + std::string("\"") + name + "\": {\"shape\": [2]" + rest + "}";
  return text;
}

Draft sums(const std::string& modelNodes, const std::string& planNodes) {
  return test::oneRank(tensors("abcd", R"(, "kind": "input")"), tensors("pqrso", ""), modelNodes,
                       tensors("pqrso", ""), planNodes);
}

std::string node(const std::string& op, const std::string& a, const std::string& b,
                 const std::string& out, const std::string& attributes = "{}") {
  return R"({"op": ")" + op + R"(", "in": [")" + a + R"(", ")" + b + R"("], "out": [")" + out +
         R"("], "attrs": )" + attributes + "}";
}

TEST(StageInterpreter, TreesOfAdditionsAreTheirSums) {
  const std::string chain = node("add", "a", "b", "p") + ", " + node("add", "p", "c", "q") + ", " +
                            node("add", "q", "d", "o");
  const std::string balanced = node("add", "d", "c", "p") + ", " + node("add", "b", "a", "q") +
                               ", " + node("add", "p", "q", "o");
  EXPECT_TRUE(inTerms(sums(chain, balanced), 4).equal);
  const std::string without = node("add", "a", "b", "p") + ", " + node("add", "p", "c", "q") +
                              ", " + node("add", "q", "a", "o");
  EXPECT_FALSE(inTerms(sums(chain, without), 4).equal);
  EXPECT_FALSE(inTerms(sums(without, chain), 4).equal);
}

TEST(StageInterpreter, WhatIsReadTwiceOrIsNoPlainSumIsNotPartOfATree) {
  // 2 (a + b) + c: read by the same node, by another addition, and by something else.
  const std::string twice = node("add", "a", "b", "p") + ", " + node("add", "p", "p", "q") + ", " +
                            node("add", "q", "c", "o");
  const std::string apart = node("add", "a", "b", "p") + ", " + node("add", "p", "c", "q") + ", " +
                            node("add", "q", "p", "o");
  const std::string scaled = node("add", "c", "a", "p", R"({"alpha": 2})") + ", " +
                             node("add", "p", "b", "q", R"({"alpha": 2})") + ", " +
                             node("sub", "q", "c", "r") + ", " + node("add", "c", "r", "o");
  for (const auto& one : {twice, apart, scaled}) {
    for (const auto& other : {twice, apart, scaled})
      EXPECT_TRUE(inTerms(sums(one, other), 4).equal) << one << other;
  }
  const std::string once = node("add", "a", "b", "p") + ", " + node("add", "p", "c", "q") + ", " +
                           node("add", "q", "b", "o");
  for (const auto& one : {twice, apart, scaled})
    EXPECT_FALSE(inTerms(sums(one, once), 4).equal) << one;
}

// What a smaller shape broadcasts is no part of a tree: its elements are others.
TEST(StageInterpreter, BroadcastSumsAreNotPartOfATree) {
  Draft d = sums(node("add", "a", "b", "p") + ", " + node("add", "p", "c", "o"),
                 node("add", "b", "c", "p") + ", " + node("add", "a", "p", "o"));
  for (auto* t : {&d.model["tensors"], &d.plan["programs"][0]["tensors"]}) {
    (*t)["c"]["shape"] = {1};
    (*t)["b"]["shape"] = {1};
  }
  d.plan["programs"][0]["tensors"]["p"]["shape"] = {1};
  for (auto& entry : d.plan["lineage"]) {
    if (entry["tensor"] == "b" || entry["tensor"] == "c") entry["shards"][0]["box"] = {{0, 1}};
  }
  EXPECT_TRUE(inTerms(d, 4).equal);
}

// A norm over all parameters adds up as many squares as there are parameters, one by one.
TEST(StageInterpreter, ALongChainOfAdditionsIsNotQuadratic) {
  constexpr int kSummands = 2000;
  const auto chain = [&](bool backwards) {
    std::string nodes = node("mul", "a", "b", "m0") + ", " + node("add", "m0", "m0", "s0");
    for (int i = 1; i < kSummands; ++i) {
      const std::string n = std::to_string(i), before = std::to_string(i - 1);
      nodes += ", " + node("mul", "m" + before, i % 2 != 0 ? "a" : "b", "m" + n) + ", " +
               (backwards ? node("add", "m" + n, "s" + before, "s" + n)
                          : node("add", "s" + before, "m" + n, "s" + n));
    }
    return nodes + ", " + node("add", "s" + std::to_string(kSummands - 1), "c", "o");
  };
  std::string results = tensors("o", "");
  for (int i = 0; i < kSummands; ++i)
    results += R"(, "m)" + std::to_string(i) + R"(": {"shape": [2]}, "s)" + std::to_string(i) +
               R"(": {"shape": [2]})";
  const TermRun r = inTerms(test::oneRank(tensors("abc", R"(, "kind": "input")"), results,
                                          chain(false), results, chain(true)),
                            3);
  EXPECT_TRUE(r.equal);
  EXPECT_LT(r.algebra.memoryBytes(), std::size_t{1} << 20);
}

TEST(StageInterpreter, ConstantsListedElementByElement) {
  const auto r =
      run(test::oneRank(
              R"("x": {"shape": [2, 2], "kind": "input"}, "c": {"shape": [2, 2], "kind": "constant",
              "value": [[1, 10], [100, 1000]]})",
              R"("o": {"shape": [2, 2]})", R"({"op": "mul", "in": ["x", "c"], "out": ["o"]})",
              R"("o": {"shape": [2, 2]})", R"({"op": "mul", "in": ["c", "x"], "out": ["o"]})"),
          1);
  EXPECT_EQ(r->value("c"), (Values{1, 10, 100, 1000}));
  EXPECT_EQ(r->value("o"), (Values{1, 20, 300, 4000}));
  EXPECT_TRUE(r->paired());
}

TEST(StageInterpreter, PairsCarryTheClaimAndTheLogicalPosition) {
  Draft d = communication(
      R"({"op": "neg", "in": ["x"], "out": ["y"]})", "[1, 4]",
      R"({"op": "neg", "in": ["x"], "out": ["o"]})", "[2, 4]",
      R"([{"box": [[0, 1], [0, 4]], "step": {"tp": [1, 0]}, "parts": [{"local": "y"}]}])");
  const auto r = run(d, 1);
  ASSERT_EQ(r->interpreter->pairs().size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(r->interpreter->pairs()[i].claim, i / 4);
    EXPECT_EQ(r->interpreter->pairs()[i].logicalIndex, static_cast<std::int64_t>(i));
    EXPECT_EQ(r->interpreter->pairs()[i].logical, -static_cast<double>(i + 1));
  }
  EXPECT_TRUE(r->paired());
}

}  // namespace
}  // namespace shardproof
