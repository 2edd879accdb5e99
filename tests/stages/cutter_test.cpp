// SPDX-License-Identifier: Apache-2.0
// Where slices stop, what they assume, and which axes are collapsed.
#include "stages/cutter.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "check/checker.h"
#include "refute/stage_refuter.h"
#include "shape_reduction/reduction.h"
#include "stages/canonical_reader.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using Names = std::vector<std::string>;
using test::Draft;
using test::findIn;
using test::Json;
using test::opsOf;

Origin originOf(const test::Cut& c, const std::string& name, std::int32_t rank = -1,
                std::int32_t microbatch = -1) {
  const std::int32_t t = findIn(c.stage, *c.problem, name, rank, microbatch);
  if (t < 0) throw std::logic_error("the stage has no tensor " + name);
  return c.stage.tensors[static_cast<std::size_t>(t)].origin;
}

// ---- slices ----

TEST(Cutter, StopsAtLineageThatItMayAssume) {
  const auto c = test::cut(test::pipeline(), 5);  // s, from t
  EXPECT_EQ(c.stage.usedEntries, (test::ids<EntryId>({4})));
  EXPECT_EQ(opsOf(c.stage, false), (Names{"add", "add", "all_reduce",
                                          "broadcast"}));  // tp is small: each of its ranks has a
                                                           // claim, and receives what one computes
  EXPECT_EQ(originOf(c, "t", 2, 0), Origin::kBoundary);
  ASSERT_EQ(c.stage.claims.size(), 2u);
  ASSERT_EQ(c.stage.assumptions.size(), 1u);
  EXPECT_EQ(c.stage.assumptions[0].parts.size(), 4u);
  EXPECT_TRUE(c.stage.collapsedAxes.empty());
  EXPECT_TRUE(opsOf(c.stage, true).empty());  // s on both sides: no operator of the model is needed
  EXPECT_EQ(originOf(c, "s"), Origin::kVariable);
}

TEST(Cutter, StopsAtTheNearestLineageOnBothSides) {
  const auto c = test::cut(test::pipeline(), 4);  // the sums t, from y where it was received
  EXPECT_EQ(c.stage.usedEntries, (test::ids<EntryId>({3})));
  EXPECT_EQ(opsOf(c.stage, false), (Names{"sum", "sum", "sum", "sum"}));
  EXPECT_EQ(opsOf(c.stage, true), (Names{"sum"}));
  EXPECT_EQ(c.stage.assumptions.size(), 4u);
  EXPECT_EQ(originOf(c, "y"), Origin::kVariable);
  EXPECT_EQ(findIn(c.stage, *c.problem, "x"), -1);
}

TEST(Cutter, GoesThroughCommunicationToItsPartner) {
  const auto c = test::cut(test::pipeline(), 3);
  EXPECT_EQ(c.stage.usedEntries, (test::ids<EntryId>({2})));
  EXPECT_EQ(opsOf(c.stage, false), (Names{"recv", "recv", "recv", "recv"}));
  EXPECT_EQ(originOf(c, "y", 1, 1), Origin::kBoundary);
  EXPECT_EQ(originOf(c, "y", 3, 1), Origin::kComputed);
}

TEST(Cutter, InputLineageIsAlwaysUsable) {
  const auto c = test::cut(test::pipeline(), 2);
  EXPECT_TRUE(c.stage.usedEntries.empty());  // entries of role input are no lemmas
  EXPECT_EQ(opsOf(c.stage, false), Names(4, "linear"));
  EXPECT_EQ(c.stage.assumptions.size(),
            2u * 2u + 2u);  // x on each rank and microbatch, w on each rank
}

TEST(Cutter, ExcludedDeepenedAndLaterEntriesAreNotAssumed) {
  const Draft d = test::pipeline();
  std::vector<char> excluded(d.plan["lineage"].size(), 0);
  excluded[4] = 1;
  CutOptions options;
  options.excluded = &excluded;
  EXPECT_EQ(test::cut(d, 5, options).stage.usedEntries, (test::ids<EntryId>({3})));
  options.deepened = {EntryId(3)};
  EXPECT_EQ(test::cut(d, 5, options).stage.usedEntries, (test::ids<EntryId>({2})));
}

// For evaluation in numbers the model begins at its inputs and the plan at what is proved, other
// than sums.
TEST(Cutter, ModelFromItsInputsAndPlanFromWhatIsProved) {
  const Draft d = test::pipeline();
  std::vector<char> proved(d.plan["lineage"].size(), 0);
  CutOptions options;
  options.proved = &proved;
  const auto whole = test::cut(d, 5, options);
  EXPECT_TRUE(whole.stage.usedEntries.empty());
  EXPECT_EQ(opsOf(whole.stage, true), (Names{"linear", "sum"}));
  const std::size_t all = whole.stage.nodes.size();
  proved[3] = 1;  // y where it was received
  const auto from = test::cut(d, 5, options);
  EXPECT_EQ(from.stage.usedEntries, (test::ids<EntryId>({3})));
  EXPECT_EQ(opsOf(from.stage, true), (Names{"linear", "sum"}));
  EXPECT_LT(from.stage.nodes.size(), all);
  EXPECT_EQ(originOf(from, "x"), Origin::kVariable);
  EXPECT_EQ(originOf(from, "y"), Origin::kComputed);
  EXPECT_EQ(originOf(from, "y", 3, 1), Origin::kBoundary);
  proved[3] = 0;
  proved[4] = 1;  // the sums over microbatches: not what their parts are
  EXPECT_EQ(test::cut(d, 5, options).stage.nodes.size(), all);
}

// Two entries say the same about one tensor. They have the same key; the later may use the earlier,
// never the other way round.
TEST(Cutter, EqualEntriesDoNotProveEachOther) {
  Draft d = test::pipeline();
  d.plan["lineage"].push_back(d.entry(3));
  EXPECT_EQ(test::cut(d, 3).stage.usedEntries, (test::ids<EntryId>({2})));
  const auto second = test::cut(d, 6);
  EXPECT_EQ(second.stage.usedEntries, (test::ids<EntryId>({3})));
  EXPECT_TRUE(second.stage.nodes.empty());
}

TEST(Cutter, ALocalInputThatNoLineageMentionsIsArbitrary) {
  Draft d = test::pipeline();
  d.tensor(1, "noise") = Json::parse(R"({"shape": [], "kind": "input"})");
  d.node(1, 2)["in"] = {"t#0", "noise"};
  const auto c = test::cut(d, 5);
  EXPECT_EQ(originOf(c, "noise", 2), Origin::kUnbound);
}

TEST(Cutter, SizeLimit) {
  const std::vector<char> proved(test::pipeline().plan["lineage"].size(), 0);
  CutOptions options;
  options.proved = &proved;
  options.maxNodes = 3;
  EXPECT_THROW(test::cut(test::pipeline(), 5, options), Unsupported);
}

TEST(Cutter, SeveralClaimsInOneStage) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  const Stage stage = cutStages(planIndex, {EntryId(4), EntryId(5)}, {});
  EXPECT_EQ(stage.usedEntries, (test::ids<EntryId>({3})));  // what the earliest of them may assume
  EXPECT_EQ(stage.claims.size(), 3u);
  EXPECT_EQ(stage.claims[0].entry, 4);
  EXPECT_EQ(stage.claims[1].entry, 5);
}

// ---- copies ----

// The model's a and b are copies of h. Lineage stops the local side at both; the plan multiplies
// one with itself, which is right only because the copies are known to be equal.
TEST(Cutter, CopiesShareTheirSource) {
  Draft d = test::oneRank(
      R"("x": {"shape": [2, 3], "kind": "input"})",
      R"("h": {"shape": [2, 3]}, "a": {"shape": [2, 3]}, "b": {"shape": [2, 3]},
          "bt": {"shape": [3, 2]}, "bb": {"shape": [2, 3]}, "o": {"shape": [2, 3]})",
      R"({"op": "square", "in": ["x"], "out": ["h"]}, {"op": "multiref", "in": ["h"],
          "out": ["a", "b"]}, {"op": "transpose", "in": ["b"], "out": ["bt"],
          "attrs": {"dim0": 0, "dim1": 1}},
                             {"op": "transpose", "in": ["bt"], "out": ["bb"],
                              "attrs": {"dim0": 0, "dim1": 1}},
                              {"op": "mul", "in": ["a", "bb"], "out": ["o"]})",
      R"("h": {"shape": [2, 3]}, "a": {"shape": [2, 3]}, "bt": {"shape": [3, 2]},
          "unused": {"shape": [3, 2]}, "o": {"shape": [2, 3]})",
      R"({"op": "square", "in": ["x"], "out": ["h"]}, {"op": "identity", "in": ["h"], "out": ["a"]},
          {"op": "transpose", "in": ["h"], "out": ["bt"], "attrs": {"dim0": 0, "dim1": 1}},
                             {"op": "mul", "in": ["a", "a"], "out": ["o"]})");
  d.plan["programs"][0]["tensors"].erase("unused");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "a", "role": "cut_point", "shards": [{"box": [[0, 2], [0, 3]],
          "parts": [{"local": "a"}]}]})"));
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "bt", "role": "cut_point", "shards": [{"box": [[0, 3], [0, 2]],
          "parts": [{"local": "bt"}]}]})"));
  const auto c = test::cut(d, 1);
  EXPECT_EQ(c.stage.usedEntries, (test::ids<EntryId>({2})));
  EXPECT_EQ(originOf(c, "h"), Origin::kVariable);
  EXPECT_EQ(originOf(c, "a"), Origin::kComputed);
  EXPECT_EQ(findIn(c.stage, *c.problem, "x"), -1);  // the slice does not go past the source
  EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kProved);
}

// ---- sums and collapsed axes ----

// x [dp * microbatches * 2, 3] is cut into rows; every rank adds up its own and the output is the
// sum of all.
Draft rowSums(int dp, int microbatches, const char* op = "sum") {
  const int rows = dp * microbatches * 2;
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [0, 3], "kind": "input"}, "o": {"shape": []}},
          "nodes": [{"op": "sum", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["dp", 0]], "microbatches": 0, "programs": [{"tensors": {"x": {"shape": [2, 3],
          "kind": "input", "per_mb": true}, "t": {"shape": [], "per_mb": true}},
                             "nodes": [{"op": "sum", "in": ["x"], "out": ["t"], "mb": "*"}]}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 2], [0, 3]],
                             "step": {"dp": [0, 0], "mb": [2, 0]}, "parts": [{"local": "x"}]}]},
                                        {"tensor": "o", "role": "output",
                                         "shards": [{"box": [], "parts": [{"local": "t"}],
                                         "sum": ["dp", "mb"]}]}]})");
  d.model["tensors"]["x"]["shape"][0] = rows;
  d.plan["mesh"][0][1] = dp;
  d.plan["microbatches"] = microbatches;
  d.entry(0)["shards"][0]["step"]["dp"][0] = 2 * microbatches;
  d.node(0, 0)["op"] = op;
  return d;
}

TEST(Cutter, SumsOverAxesAndMicrobatches) {
  const auto c = test::cut(rowSums(2, 3), 1);
  ASSERT_EQ(c.stage.claims.size(), 1u);
  const Equation& claim = c.stage.claims[0];
  ASSERT_EQ(claim.parts.size(), 6u);
  std::set<std::pair<std::int32_t, std::int32_t>> instances;
  for (const auto& [t, weight] : claim.parts) {
    EXPECT_EQ(weight, 1);
    const StageTensor& local = c.stage.tensors[static_cast<std::size_t>(t)];
    instances.emplace(local.rank, local.microbatch.number());
  }
  EXPECT_EQ(instances.size(), 6u);
  EXPECT_TRUE(c.stage.collapsedAxes.empty());  // nothing to gain from 2 and 3 coordinates
  EXPECT_EQ(c.stage.assumptions[1].box[0], (std::pair<std::int64_t, std::int64_t>{2, 4}));
}

TEST(Cutter, CollapsedAxesStandForTheirCoordinatesWithWeights) {
  const auto c = test::cut(rowSums(8, 8), 1);
  ASSERT_EQ(c.stage.collapsedAxes.size(), 2u);
  EXPECT_EQ(c.stage.collapsedAxes[0], CollapsedAxis::whole(0, 8));
  EXPECT_EQ(c.stage.collapsedAxes[1], CollapsedAxis::whole(kMicrobatchAxis, 8));
  const Equation& claim = c.stage.claims[0];
  ASSERT_EQ(claim.parts.size(), 9u);
  std::multiset<std::int64_t> weights;
  std::int64_t total = 0;
  for (const auto& [t, weight] : claim.parts) {
    weights.insert(weight);
    total += weight;
  }
  EXPECT_EQ(weights, (std::multiset<std::int64_t>{1, 1, 1, 1, 6, 6, 6, 6, 36}));
  EXPECT_EQ(total, 64);
  for (const Equation& a : c.stage.assumptions) {
    ASSERT_EQ(a.step.size(), 2u);
    EXPECT_EQ(a.box[0].first, a.step[0].coordinate * 16 + a.step[1].coordinate * 2);
  }
}

TEST(Cutter, CollapsedAxesGiveTheSameVerdictAsSmallOnes) {
  for (const auto& [dp, mb] : {std::pair{2, 2}, {3, 3}, {4, 4}, {8, 8}, {8, 1}, {1, 8}}) {
    const auto right = test::cut(rowSums(dp, mb), 1);
    EXPECT_EQ(checkStage(right.stage, {}).verdict(), StageVerdict::kProved) << dp << " " << mb;
    const auto wrong = test::cut(rowSums(dp, mb, "mean"), 1);
    EXPECT_EQ(checkStage(wrong.stage, {}).verdict(), StageVerdict::kRefuted) << dp << " " << mb;
  }
}

// Blocks of a collapsed axis that lie inside those of an axis with all its coordinates repeat, and
// are exchanged in all of these alike.
TEST(Cutter, ACollapsedAxisInsideAnEnumeratedOne) {
  for (const char* reduce : {"sum", "mean"}) {
    const auto c = test::cut(rowSums(2, 8, reduce), 1);
    EXPECT_EQ(c.stage.collapsedAxes.size(), 1u);
    const StageOutcome outcome = checkStage(c.stage, {});
    EXPECT_FALSE(outcome.needsRefinement) << outcome.reason;
    CutOptions options;
    options.collapse = false;
    const auto whole = test::cut(rowSums(2, 8, reduce), 1, options);
    EXPECT_EQ(checkStage(whole.stage, {}).verdict(), outcome.verdict()) << reduce;
    EXPECT_EQ(outcome.verdict(), reduce[0] == 's' ? StageVerdict::kProved : StageVerdict::kRefuted);
  }
}

TEST(Cutter, CollapsingCanBeSwitchedOff) {
  CutOptions options;
  options.collapse = false;
  const auto c = test::cut(rowSums(8, 8), 1, options);
  EXPECT_TRUE(c.stage.collapsedAxes.empty());
  EXPECT_EQ(c.stage.claims[0].parts.size(), 64u);
}

// ---- what makes coordinates tell apart ----

// x is cut by rows over dp; `op` brings the pieces together.
Draft gathered(int dp, const std::string& node, const std::string& box) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [0, 8], "kind": "input"}, "o": {"shape": [0, 8]}},
          "nodes": [{"op": "identity", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["dp", 0]], "programs": [{"tensors": {"x": {"shape": [1, 8], "kind": "input"},
          "y": {"shape": [1, 8]}}, "nodes": []}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 1], [0, 8]], "step": {"dp": [1, 0]},
                             "parts": [{"local": "x"}]}]},
                                        {"tensor": "o", "role": "output",
                                         "shards": [{"box": [], "parts": [{"local": "y"}]}]}]})");
  d.model["tensors"]["x"]["shape"][0] = d.model["tensors"]["o"]["shape"][0] = dp;
  d.plan["mesh"][0][1] = dp;
  d.program(0)["nodes"].push_back(Json::parse(node));
  d.entry(1)["shards"][0] = Json::parse(box);
  return d;
}

TEST(Cutter, AGatherTellsCoordinatesApart) {
  Draft d =
      gathered(8,
               R"({"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "g", "group": ["dp"],
          "attrs": {"dim": 0}})",
               R"({"box": [[0, 8], [0, 8]], "parts": [{"local": "y"}]})");
  d.tensor(0, "y")["shape"] = {8, 8};
  const auto c = test::cut(d, 1);
  EXPECT_TRUE(c.stage.collapsedAxes.empty());
  EXPECT_EQ(c.stage.claims.size(), 8u);
  // One member computes what all of it get.
  std::size_t gathers = 0, receives = 0;
  for (const StageNode& n : c.stage.nodes) {
    gathers += n.communication == Communication::kAllGather && n.in.size() == 8;
    receives += n.communication == Communication::kBroadcast && n.in.size() == 1;
  }
  EXPECT_EQ(gathers, 1u);
  EXPECT_EQ(receives, 7u);
  EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kProved);
}

TEST(Cutter, AnAllToAllTellsCoordinatesApart) {
  Draft d =
      gathered(8,
               R"({"op": "all_to_all", "in": ["x"], "out": ["y"], "comm": "g", "group": ["dp"],
          "attrs": {"idim": 1, "odim": 0}})",
               R"({"box": [[0, 8], [0, 1]], "step": {"dp": [0, 1]}, "parts": [{"local": "y"}]})");
  d.tensor(0, "y")["shape"] = {8, 1};
  const auto c = test::cut(d, 1);
  EXPECT_TRUE(c.stage.collapsedAxes.empty());
  EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kProved);
}

// Sizes are said in operators, which keep pieces of different lengths apart; what members have in
// common is still computed once. The form says all of it.
TEST(Cutter, PiecesWithSizesAreOperators) {
  const auto found = [](const char* node, const char* box, const Shape& shape) {
    Draft d = gathered(8, node, box);
    d.tensor(0, "y")["shape"] = shape;
    const auto c = test::cut(d, 1);
    EXPECT_TRUE(c.stage.collapsedAxes.empty());
    EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kProved);
    const std::string form = canonicalForm(c.stage);
    EXPECT_EQ(canonicalForm(readCanonicalForm(form)), form);
    std::map<std::string, int> ops;
    for (const std::string& op : opsOf(c.stage, false)) ++ops[op];
    return ops;
  };
  using Ops = std::map<std::string, int>;
  const char* const rows = R"({"box": [[0, 8], [0, 8]], "parts": [{"local": "y"}]})";
  const char* const columns =
      R"({"box": [[0, 8], [0, 1]], "step": {"dp": [0, 1]}, "parts": [{"local": "y"}]})";
  EXPECT_EQ(found(
                R"({"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "g", "group": ["dp"],
              "attrs": {"dim": 0}, "sizes": [1, 1, 1, 1, 1, 1, 1, 1]})",
                rows, {8, 8}),
            (Ops{{"cat", 1}, {"broadcast", 7}}));
  const std::string row = "[1, 1, 1, 1, 1, 1, 1, 1]";
  std::string sizes = row;
  for (int i = 1; i < 8; ++i) sizes += ", " + row;
  EXPECT_EQ(found((R"({"op": "all_to_all", "in": ["x"], "out": ["y"], "comm": "g", "group": ["dp"],
               "attrs": {"idim": 1, "odim": 0}, "sizes": [)" +
                   sizes + "]}")
                      .c_str(),
                  columns, {8, 1}),
            (Ops{{"cat", 8}, {"slice", 64}}));
}

TEST(Cutter, SizesOfAReduceScatterAreWindowsOfOneSum) {
  Draft d =
      gathered(8,
               R"({"op": "reduce_scatter", "in": ["x"], "out": ["y"], "comm": "g", "group": ["dp"],
          "attrs": {"dim": 1, "reduce": "max"}, "sizes": [1, 1, 1, 1, 1, 1, 1, 1]})",
               R"({"box": [[0, 1], [0, 1]], "step": {"dp": [0, 1]}, "parts": [{"local": "y"}]})");
  d.model["nodes"][0] = Json::parse(
      R"({"op": "amax", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "keepdim": true}})");
  d.model["tensors"]["o"]["shape"] = {1, 8};
  d.tensor(0, "y")["shape"] = {1, 1};
  const auto c = test::cut(d, 1);
  std::map<std::string, int> ops;
  for (const std::string& op : opsOf(c.stage, false)) ++ops[op];
  EXPECT_EQ(ops, (std::map<std::string, int>{{"all_reduce", 1}, {"slice", 8}}));
  EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kProved);
}

TEST(Cutter, WhoIsNoTargetOfAPermutationHasZeros) {
  Draft d = gathered(
      8,
      R"({"op": "collective_permute", "in": ["x"], "out": ["y"], "comm": "g", "group": ["dp"],
          "pairs": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7]]})",
      R"({"box": [[0, 1], [0, 8]], "step": {"dp": [1, 0]}, "parts": [{"local": "y"}]})");
  d.model["tensors"]["h"] = Json::parse(R"({"shape": [7, 8]})");
  d.model["nodes"] = Json::parse(
      R"([{"op": "slice", "in": ["x"], "out": ["h"], "attrs": {"dim": 0, "stop": 7}},
          {"op": "pad", "in": ["h"], "out": ["o"], "attrs": {"pad": [0, 0, 1, 0]}}])");
  const auto c = test::cut(d, 1);
  EXPECT_TRUE(c.stage.collapsedAxes.empty());
  EXPECT_EQ(originOf(c, "y", 0), Origin::kConstant);
  EXPECT_EQ(originOf(c, "y", 1), Origin::kComputed);
  EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kProved);
  const std::string form = canonicalForm(c.stage);
  EXPECT_EQ(canonicalForm(readCanonicalForm(form)), form);
  d.model["nodes"][1]["attrs"]["value"] = 1;
  EXPECT_EQ(checkStage(test::cut(d, 1).stage, {}).verdict(), StageVerdict::kRefuted);
}

// Two groups of four, and twice the same communication by its tag: only members of one rendezvous
// share its result.
TEST(Cutter, RendezvousAreNotMixedUp) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [2], "kind": "input"}, "y": {"shape": [2], "kind": "input"},
          "o": {"shape": [2]}, "p": {"shape": [2]}},
                            "nodes": [{"op": "mul", "in": ["x"], "out": ["o"],
                             "attrs": {"scalar": 3}}, {"op": "mul", "in": ["y"], "out": ["p"],
                             "attrs": {"scalar": 3}}], "outputs": ["o", "p"]})",
      R"({"mesh": [["dp", 2], ["tp", 3]], "programs": [{"tensors": {"x": {"shape": [1],
          "kind": "input"}, "y": {"shape": [1], "kind": "input"}, "a": {"shape": [1]},
          "b": {"shape": [1]}},
                             "nodes": [{"op": "all_reduce", "in": ["x"], "out": ["a"], "comm": "r",
                              "tag": 1, "group": ["tp"]},
                                       {"op": "all_reduce", "in": ["y"], "out": ["b"], "comm": "r",
                                        "tag": 2, "group": ["tp"]}]}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                             "parts": [{"local": "x"}]}]},
                                        {"tensor": "y", "role": "input",
                                         "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                                         "parts": [{"local": "y"}]}]},
                                        {"tensor": "o", "role": "output",
                                         "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                                         "parts": [{"local": "a"}]}]},
                                        {"tensor": "p", "role": "output",
                                         "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                                         "parts": [{"local": "b"}]}]}]})");
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  ASSERT_TRUE(planIndex.defects().empty());
  const Stage stage = cutStages(planIndex, {EntryId(2), EntryId(3)}, {});
  std::size_t reduces = 0, receives = 0;
  for (const StageNode& n : stage.nodes) {
    reduces += n.communication == Communication::kAllReduce && n.in.size() == 3;
    receives += n.communication == Communication::kBroadcast;
  }
  EXPECT_EQ(reduces, 4u);
  EXPECT_EQ(receives, 8u);
  EXPECT_EQ(checkStage(stage, {}).verdict(), StageVerdict::kProved);
  d.entry(3)["shards"][0]["parts"][0]["local"] = "a";
  const auto wrong = test::read(d);
  const PlanIndex wrongIndex(*wrong);
  EXPECT_EQ(checkStage(cutStages(wrongIndex, {EntryId(2), EntryId(3)}, {}), {}).verdict(),
            StageVerdict::kRefuted);
}

TEST(Cutter, ANamedMicrobatchIsApartInMicrobatchesOnly) {
  Draft d = rowSums(8, 8);
  d.tensor(0, "first") = Json::parse(R"({"shape": []})");
  d.program(0)["nodes"].push_back(
      Json::parse(R"({"op": "identity", "in": ["t#0"], "out": ["first"]})"));
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "o", "role": "cut_point", "shards": [{"box": [], "parts": [{"local": "first"}],
          "sum": ["dp"]}]})"));
  const auto c = test::cut(d, 2);
  ASSERT_EQ(c.stage.collapsedAxes.size(), 1u);
  EXPECT_EQ(c.stage.collapsedAxes[0].axis, 0);
  const auto other = test::cut(d, 1);  // the entry whose slice names none keeps both
  EXPECT_EQ(other.stage.collapsedAxes.size(), 2u);
}

// What the microbatches have, added up one by one.
Draft accumulated(int microbatches) {
  Draft d = rowSums(8, microbatches);
  std::string sum = "t#0";
  for (int k = 1; k < microbatches; ++k) {
    const std::string next = "sum." + std::to_string(k);
    d.tensor(0, next) = Json::parse(R"({"shape": []})");
    d.program(0)["nodes"].push_back(
        {{"op", "add"}, {"in", {sum, "t#" + std::to_string(k)}}, {"out", {next}}});
    sum = next;
  }
  d.entry(1)["shards"][0] = {
      {"box", Json::array()}, {"parts", {{{"local", sum}}}}, {"sum", {"dp"}}};
  return d;
}

TEST(Cutter, WithTheSameInputsANamedMicrobatchIsTheOneThatStandsForIt) {
  CutOptions options;
  EXPECT_EQ(test::cut(accumulated(16), 1, options).stage.collapsedAxes.size(), 1u);  // dp
  options.sameInMicrobatches = true;
  for (const std::int32_t apart : {CollapsedAxis::kNoneApart, CollapsedAxis::kApart}) {
    options.apart = apart;
    const auto c = test::cut(accumulated(16), 1, options);
    ASSERT_EQ(c.stage.collapsedAxes.size(), 2u);
    const auto rows = opsOf(c.stage, false);
    EXPECT_EQ(std::count(rows.begin(), rows.end(), "sum"), (apart + 1) * (apart + 1));
    EXPECT_EQ(evaluateEndToEnd(c.stage, Masks::kReduced).reason, kNoDifferenceFound);
    Draft wrong = accumulated(16);
    wrong.node(0, 5)["op"] = "sub";
    EXPECT_EQ(evaluateEndToEnd(test::cut(wrong, 1, options).stage, Masks::kReduced).verdict(),
              StageVerdict::kRefuted);
  }
}

TEST(Cutter, ALineagePartThatNamesAMicrobatchIsApartInMicrobatches) {
  Draft d = rowSums(8, 8);
  d.entry(1)["shards"][0] = Json::parse(
      R"({"box": [], "parts": [{"local": "t", "mb": 0}, {"local": "t", "mb": 5}], "sum": ["dp"]})");
  const auto c = test::cut(d, 1);
  ASSERT_EQ(c.stage.collapsedAxes.size(), 1u);
  EXPECT_EQ(c.stage.collapsedAxes[0].axis, 0);
}

// Each coordinate of dp has a program of its own, and all are the same but those of `other`.
Draft aProgramEach(const std::vector<int>& other) {
  Draft d = rowSums(8, 8);
  d.program(0)["at"] = {{"dp", 0}};
  const Json same = d.program(0);
  for (int r = 1; r < 8; ++r) {
    d.plan["programs"].push_back(same);
    d.program(static_cast<std::size_t>(r))["at"]["dp"] = r;
  }
  for (const int r : other) d.node(static_cast<std::size_t>(r), 0)["op"] = "mean";
  return d;
}

TEST(Cutter, CoordinatesWithTheSameProgramAreCollapsed) {
  const auto c = test::cut(aProgramEach({}), 1);
  ASSERT_EQ(c.stage.collapsedAxes.size(), 2u);
  EXPECT_EQ(c.stage.collapsedAxes[0], CollapsedAxis::whole(0, 8));
}

TEST(Cutter, ACoordinateWithAProgramOfItsOwnIsKept) {
  const auto c = test::cut(aProgramEach({5}), 1);
  ASSERT_EQ(c.stage.collapsedAxes.size(), 2u);
  EXPECT_EQ(c.stage.collapsedAxes[0].kept,
            (std::vector<std::pair<std::int32_t, std::int64_t>>{{0, 1}, {1, 1}, {2, 5}, {5, 1}}));
  EXPECT_EQ(checkStage(c.stage, {}).verdict(), StageVerdict::kRefuted);
}

TEST(Cutter, SmallClassesAreNotCollapsed) {
  const auto c = test::cut(aProgramEach({1, 3, 5, 7}), 1);  // two classes of four
  ASSERT_EQ(c.stage.collapsedAxes.size(), 2u);
  EXPECT_EQ(c.stage.collapsedAxes[0].kept, (std::vector<std::pair<std::int32_t, std::int64_t>>{
                                               {0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 2}, {5, 2}}));
  Draft d = aProgramEach({1, 3});
  for (const std::size_t p : {5, 6, 7}) d.tensor(p, "unused") = {{"shape", {p}}, {"kind", "input"}};
  const auto each = test::cut(d, 1);  // {0, 2, 4}, {1, 3}, {5}, {6}, {7}
  ASSERT_EQ(each.stage.collapsedAxes.size(), 1u);
  EXPECT_EQ(each.stage.collapsedAxes[0].axis, kMicrobatchAxis);
}

}  // namespace
}  // namespace shardproof
