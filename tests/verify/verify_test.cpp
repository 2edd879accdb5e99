// SPDX-License-Identifier: Apache-2.0
// The verdict: what the chain of proofs adds up to, and all that must never add up to "equivalent".
#include "shardproof/verify.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

VerifyOptions quick() {
  VerifyOptions options;
  options.jobs = 1;
  options.stageSeconds = 20;
  return options;
}
Report verified(const Draft& d, const VerifyOptions& options = quick()) {
  const auto problem = test::read(d);
  return verify(*problem, options);
}
const StageReport& stageOf(const Report& report, std::int32_t entry) {
  for (const StageReport& s : report.stages) {
    if (s.entry == entry) return s;
  }
  throw std::logic_error("no stage for entry " + std::to_string(entry));
}

// erf is odd, but no proof knows: neither proved nor refuted.
const char* const kOddNodes =
    R"({"op": "neg", "in": ["x"], "out": ["n"]}, {"op": "erf", "in": ["n"], "out": ["t"]},
        {"op": "neg", "in": ["t"], "out": ["h"]}, {"op": "square", "in": ["h"], "out": ["o"]})";
Draft undecidable() {
  Draft d = test::oneRank(
      R"("x": {"shape": [], "kind": "input"})", R"("h": {"shape": []}, "o": {"shape": []})",
      R"({"op": "erf", "in": ["x"], "out": ["h"]}, {"op": "mul", "in": ["h", "h"], "out": ["o"]})",
      R"("n": {"shape": []}, "t": {"shape": []}, "h": {"shape": []}, "o": {"shape": []})",
      kOddNodes);
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "h", "role": "cut_point", "shards": [{"box": [],
          "parts": [{"local": "h"}]}]})"));
  return d;
}

TEST(Verify, AnApprovedDifferenceIsTakenAsGiven) {
  Report report = verified(test::approvedPipeline());
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  EXPECT_EQ(report.outputsProved, 1u);
  ASSERT_EQ(report.stages.size(), 3u);  // it has none
  EXPECT_TRUE(stageOf(report, 5).assumptions.empty());
  ASSERT_EQ(report.approved.size(), 1u);
  EXPECT_EQ(report.approved[0].name, "means");
  EXPECT_EQ(report.approved[0].tensor, "s");
  EXPECT_EQ(report.approved[0].entry, 4);
  EXPECT_EQ(report.approved[0].claim, "local `t` holds s[], summed over tp, summed over mb");
  Draft d = test::approvedPipeline();
  d.entry(4).erase("approved");
  d.entry(4)["role"] = "cut_point";
  EXPECT_EQ(verified(d).verdict, Verdict::kNotEquivalent);
  d = test::approvedPipeline();
  d.node(1, 2)["op"] = "sub";
  report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  EXPECT_EQ(report.outputsProved, 0u);
}

// A lemma that is false, together with a true one about the same tensor, proves anything: the
// tensor is what the approved difference says, so the other claim is refuted.
TEST(Verify, AnApprovedDifferenceAndALemmaCannotContradictEachOther) {
  Draft d = test::oneRank(
      R"("x": {"shape": [], "kind": "input"})",
      R"("h": {"shape": []}, "d": {"shape": []}, "o": {"shape": []})",
      R"({"op": "square", "in": ["x"], "out": ["h"]}, {"op": "add", "in": ["x", "x"], "out": ["d"]},
         {"op": "sub", "in": ["h", "d"], "out": ["o"]})",
      R"("h": {"shape": []}, "o": {"shape": []})",
      R"({"op": "add", "in": ["x", "x"], "out": ["h"]}, {"op": "sub", "in": ["h", "h"],
          "out": ["o"]})");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "h", "role": "assumed", "shards": [{"box": [], "parts": [{"local": "h"}]}]})"));
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "d", "role": "cut_point", "shards": [{"box": [],
          "parts": [{"local": "h"}]}]})"));
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  EXPECT_EQ(report.outputsProved, 0u);
}

Draft withCapture(const char* capture) {
  Draft d = test::pipeline();
  d.plan["capture"] = Json::parse(capture);
  return d;
}

TEST(Verify, ConditionsMakeAProvedPlanConditional) {
  const Draft risk = withCapture(
      R"({"compared": {"loss": ["s"]}, "assumptions": [
          {"name": "initial-values", "class": "risk", "text": "all begin equal"},
          {"name": "ranks", "class": "checkable", "text": "ranks run alike"},
          {"name": "fractions", "class": "harmless", "text": "0.1 is 1/10"}]})");
  Report report = verified(risk);
  EXPECT_EQ(report.verdict, Verdict::kConditional);
  EXPECT_EQ(report.outputsProved, 1u);
  EXPECT_EQ(report.reason, "initial-values");
  EXPECT_EQ(report.compared, (std::vector<ComparedOutputs>{{"loss", {"s"}}}));
  VerifyOptions options = quick();
  options.accept = {"ranks", "initial"};
  EXPECT_EQ(verified(risk, options).verdict, Verdict::kConditional);
  options.accept = {"initial-values"};
  report = verified(risk, options);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent);
  EXPECT_EQ(report.reason, "");
  EXPECT_TRUE(report.assumptions[0].accepted);
  EXPECT_FALSE(report.assumptions[1].accepted);

  const Draft missing = withCapture(
      R"({"not_compared": [{"what": "leaf[0]", "because": "why"},
          {"what": "leaf[1]", "because": ""}]})");
  options = quick();
  EXPECT_EQ(verified(missing).verdict, Verdict::kConditional);
  options.allowUncompared = {"leaf[0]"};
  EXPECT_EQ(verified(missing, options).reason, "leaf[1] (not compared)");
  options.allowUncompared = {"leaf*"};
  EXPECT_EQ(verified(missing, options).verdict, Verdict::kEquivalent);

  Draft wrong = risk;
  wrong.node(1, 1)["op"] = "mean";
  EXPECT_EQ(verified(wrong).verdict, Verdict::kNotEquivalent);
  EXPECT_EQ(verified(test::pipeline()).compared,
            (std::vector<ComparedOutputs>{{"outputs", {"s"}}}));
}

TEST(Verify, TheChainReachesFromTheInputsToTheOutputs) {
  const Report report = verified(test::pipeline());
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  EXPECT_EQ(report.outputs, 1u);
  EXPECT_EQ(report.outputsProved, 1u);
  ASSERT_EQ(report.stages.size(), 4u);
  for (const StageReport& s : report.stages) {
    EXPECT_EQ(s.verdict, StageVerdict::kProved) << s.tensor << ": " << s.reason;
    EXPECT_EQ(s.method, Method::kNormalForm);
  }
  EXPECT_EQ(stageOf(report, 2).assumptions, (std::vector<std::int32_t>{}));
  EXPECT_EQ(stageOf(report, 3).assumptions, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(stageOf(report, 4).assumptions, (std::vector<std::int32_t>{3}));
  EXPECT_EQ(stageOf(report, 5).assumptions, (std::vector<std::int32_t>{4}));
  EXPECT_TRUE(report.defects.empty());
  EXPECT_FALSE(report.interrupted);
  EXPECT_EQ(report.statistics.ranks, 4u);
  EXPECT_EQ(report.statistics.programNodes, 6u);
  EXPECT_EQ(report.statistics.operatorInstances, 20);
}

TEST(Verify, AnEarlyDefectIsAVerdictAndNothingIsProved) {
  Draft d = test::pipeline();
  d.program(0)["nodes"].push_back(d.node(0, 0));
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  ASSERT_FALSE(report.defects.empty());
  EXPECT_EQ(report.defects[0].kind, DefectKind::kDoubleAssignment);
  EXPECT_TRUE(report.stages.empty());
  EXPECT_EQ(report.outputsProved, 0u);
}

// The determinant of [a b c] at rows i, j, k vanishes wherever two of them coincide. With (i, j) in
// one flattened dimension, [n n, n] has two dimensions and three positions of one class: were only
// two told apart, it would be proved to be zero.
TEST(Verify, PositionsOfAFlattenedDimensionAreToldApart) {
  const auto determinant = [](const std::string& rows) {
    std::string tensors, nodes, sum;
    int k = 0;
    for (const std::string term : {"abc", "bca", "cab", "acb", "bac", "cba"}) {
      const std::string n = std::to_string(k);
      tensors += R"("p)" + n + R"(": {"shape": [6, 6]}, "f)" + n + R"(": {"shape": [36]}, "t)" + n +
                 R"(": {"shape": [36, 6]}, )";
      nodes += R"({"op": "einsum", "in": [")" + term.substr(0, 1) + R"(", ")" + term.substr(1, 1) +
               R"("], "out": ["p)" + n + R"("], "attrs": {"equation": "i,j->ij"}}, )";
      nodes += R"({"op": "view", "in": ["p)" + n + R"("], "out": ["f)" + n +
               R"("], "attrs": {"size": [36]}}, )";
      nodes += R"({"op": "einsum", "in": ["f)" + n + R"(", ")" + term.substr(2) +
               R"("], "out": ["t)" + n + R"("], "attrs": {"equation": "i,j->ij"}}, )";
      if (k > 0) {
        tensors += R"("s)" + n + R"(": {"shape": [36, 6]}, )";
        nodes += std::string(R"({"op": ")") + (k < 3 ? "add" : "sub") + R"(", "in": [")" + sum +
                 R"(", "t)" + n + R"("], "out": ["s)" + n + R"("]}, )";
      }
      sum = (k > 0 ? "s" : "t") + n;
      ++k;
    }
    return std::pair{tensors + R"("o": {"shape": [36, 6]})",
                     nodes + R"({"op": ")" + rows + R"(", "in": ["s5"], "out": ["o"])" +
                         (rows == "mul" ? R"(, "attrs": {"scalar": 0})" : "") + "}"};
  };
  const std::string inputs =
      R"("a": {"shape": [6], "kind": "input"}, "b": {"shape": [6], "kind": "input"},
          "c": {"shape": [6], "kind": "input"})";
  const auto [tensors, nodes] = determinant("identity");
  const auto [zeroTensors, zeroNodes] = determinant("mul");
  EXPECT_EQ(verified(test::oneRank(inputs, tensors, nodes, tensors, nodes)).verdict,
            Verdict::kEquivalent);
  EXPECT_EQ(verified(test::oneRank(inputs, tensors, nodes, zeroTensors, zeroNodes)).verdict,
            Verdict::kNotEquivalent);
}

// Four ranks add up the same indices: 4 i names row 4 i, which no symmetry of rows carries to
// another.
TEST(Verify, SumsOfIndicesNameRowsOfTheirOwn) {
  Draft d = test::draft(
      R"({"tensors": {"i": {"shape": [3], "kind": "input", "dtype": "int64"},
          "w": {"shape": [100, 2], "kind": "parameter"},
          "zeros": {"shape": [98, 2], "kind": "constant", "value": 0},
                                        "first": {"shape": [1, 2]}, "fifth": {"shape": [1, 2]},
                                         "table": {"shape": [100, 2]}, "e": {"shape": [3, 2]}},
                            "nodes": [{"op": "slice", "in": ["w"], "out": ["first"],
                             "attrs": {"dim": 0, "start": 0, "stop": 1}},
                                      {"op": "slice", "in": ["w"], "out": ["fifth"],
                                       "attrs": {"dim": 0, "start": 4, "stop": 5}},
                                      {"op": "cat", "in": ["first", "fifth", "zeros"],
                                       "out": ["table"], "attrs": {"dim": 0}},
                                      {"op": "embedding", "in": ["i", "table"], "out": ["e"]}],
                            "outputs": ["e"]})",
      R"({"mesh": [["tp", 4]],
                            "programs": [{"tensors": {"i": {"shape": [3], "kind": "input",
                             "dtype": "int64"}, "w": {"shape": [100, 2], "kind": "parameter"},
                                                      "i4": {"shape": [3], "dtype": "int64"},
                                                       "e": {"shape": [3, 2]}},
                                          "nodes": [{"op": "all_reduce", "in": ["i"], "out": ["i4"],
                                           "comm": "c", "group": ["tp"]},
                                           {"op": "embedding", "in": ["i4", "w"], "out": ["e"]}]}],
                            "lineage": [{"tensor": "i", "role": "input",
                             "shards": [{"box": [[0, 3]], "parts": [{"local": "i"}]}]},
                                        {"tensor": "w", "role": "input",
                                         "shards": [{"box": [[0, 100], [0, 2]],
                                         "parts": [{"local": "w"}]}]},
                                        {"tensor": "e", "role": "output",
                                         "shards": [{"box": [[0, 3], [0, 2]],
                                         "parts": [{"local": "e"}]}]}]})");
  EXPECT_EQ(verified(d).verdict, Verdict::kNotEquivalent);
}

// Complex numbers have no order: nothing that rests on the largest of them is proved.
// Rows of a table that stand for one another in a proof are none that a constant names.
TEST(Verify, AConstantIndexNamesARowOfItsOwn) {
  const std::string inputs =
      R"("w": {"shape": [50, 3], "kind": "parameter"}, "i": {"shape": [2], "kind": "constant",
          "dtype": "int64", "value": [7, 30]})";
  const std::string looked = R"({"op": "embedding", "in": ["i", "w"], "out": ["o"]})",
                    tensors = R"("o": {"shape": [2, 3]})";
  const Draft d = test::oneRank(inputs, tensors, looked, tensors, looked);
  EXPECT_EQ(verified(d).verdict, Verdict::kEquivalent);
  for (const char* rows : {"[8, 30]", "[7, 7]", "[30, 7]", "[49, 30]"}) {
    Draft other = d;
    other.tensor(0, "i")["value"] = Json::parse(rows);
    EXPECT_EQ(verified(other).verdict, Verdict::kNotEquivalent) << rows;
  }
}

TEST(Verify, TheLargestOfComplexNumbersHasNoMeaning) {
  const std::string inputs =
      R"("q": {"shape": [1, 8, 2, 4], "kind": "input"}, "k": {"shape": [1, 8, 2, 4],
          "kind": "input"}, "f": {"shape": [8, 2], "kind": "input", "dtype": "complex64"})";
  const std::string results = R"("q2": {"shape": [1, 8, 2, 4]}, "k2": {"shape": [1, 8, 2, 4]})";
  const std::string whole = R"([{"box": [[0, 1], [0, 8], [0, 2], [0, 4]], "parts": [{"local": ")";
  const Draft d = test::draft(
      R"({"tensors": {)" + inputs + ", " + results +
          R"(}, "nodes": [{"op": "apply_rotary_emb", "in": ["q", "k", "f"], "out": ["q2", "k2"]}],
              "outputs": ["q2"]})",
      R"({"mesh": [["tp", 2]], "programs": [{"at": {}, "tensors": {"g": {"shape": [8, 2],
          "dtype": "complex64"}, )" +
          inputs + ", " + results + R"(},
                                  "nodes": [{"op": "all_reduce", "in": ["f"], "out": ["g"],
                                   "attrs": {"reduce": "max"}, "comm": "c", "group": ["tp"]},
                                            {"op": "apply_rotary_emb", "in": ["q", "k", "g"],
                                             "out": ["q2", "k2"]}]}],
                                  "lineage": [{"tensor": "q", "role": "input", "shards": )" +
          whole + R"(q"}]}]}, {"tensor": "k", "role": "input", "shards": )" + whole + R"(k"}]}]},
                                              {"tensor": "f", "role": "input",
                                               "shards": [{"box": [[0, 8], [0, 2]],
                                               "parts": [{"local": "f"}]}]},
                                              {"tensor": "q2", "role": "output", "shards": )" +
          whole + R"(q2"}]}]}]})");
  EXPECT_EQ(verified(d).verdict, Verdict::kUndecided);
}

// In the upper right block of a causal mask whole rows are minus infinity, and so is their maximum.
TEST(Verify, TheExponentialOfAMaximumOfMaskEntriesMayBeZero) {
  const Draft d = test::oneRank(
      R"("t": {"shape": [1, 64], "kind": "input", "dtype": "int64"},
          "x": {"shape": [1, 1, 64], "kind": "input"})",
      R"("o": {"shape": [1, 1, 64]})", R"({"op": "identity", "in": ["x"], "out": ["o"]})",
      R"("m": {"shape": [1, 1, 64, 64]}, "s": {"shape": [1, 1, 64, 32]}, "a": {"shape": [1, 1, 64]},
          "e": {"shape": [1, 1, 64]}, "z": {"shape": [1, 1, 64]}, "o": {"shape": [1, 1, 64]})",
      R"({"op": "create_mask", "in": ["t"], "out": ["m"]}, {"op": "slice", "in": ["m"],
          "out": ["s"], "attrs": {"dim": 3, "start": 32}},
                                   {"op": "amax", "in": ["s"], "out": ["a"], "attrs": {"dim": 3}},
                                    {"op": "exp", "in": ["a"], "out": ["e"]},
                                   {"op": "mul", "in": ["x", "e"], "out": ["z"]},
                                    {"op": "div", "in": ["z", "e"], "out": ["o"]})");
  EXPECT_EQ(verified(d).verdict, Verdict::kNotEquivalent);
}

// All groups of experts restrict nothing, whatever the bias.
TEST(Verify, AllGroupsOfExpertsAreNoRestriction) {
  const auto gate = [](const std::string& groups) {
    return R"({"op": "moe_gate", "in": ["x", "w", "b"], "out": ["o", "i"],
               "attrs": {"score_func": "sigmoid", "topk": 3)" +
           groups + "}}";
  };
  const auto verdict = [&](const std::string& groups) {
    const std::string results =
        R"("o": {"shape": [4, 3]}, "i": {"shape": [4, 3], "dtype": "int64"})";
    return verified(test::oneRank(
                        R"("x": {"shape": [4, 16], "kind": "input"}, "w": {"shape": [8, 16],
                       "kind": "input"}, "b": {"shape": [8], "kind": "input"})",
                        results, gate(""), results, gate(groups)))
        .verdict;
  };
  EXPECT_EQ(verdict(R"(, "n_groups": 4, "topk_groups": 4)"), Verdict::kEquivalent);
  EXPECT_EQ(verdict(R"(, "n_groups": 4, "topk_groups": 3)"), Verdict::kNotEquivalent);
}

TEST(Verify, ALineageThatRestrictsInputsIsAnInputError) {
  Draft d = test::twoRanks();
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "x"}]}]})"));
  EXPECT_THROW(test::read(d), InputError);
}

TEST(Verify, AWrongPlanNamesTheFirstPlaceAndTheOutput) {
  Draft d = test::pipeline();
  d.node(1, 2)["in"] = {"t#0", "t#0"};
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  EXPECT_EQ(report.outputsProved, 0u);
  ASSERT_EQ(report.defects.size(), 1u);
  EXPECT_EQ(report.defects[0].tensor, "s");
  EXPECT_NE(report.defects[0].message.find("it shows in output 's'"), std::string::npos)
      << report.defects[0].message;
  EXPECT_EQ(report.defects[0].nodes.at(0).pointer, "/programs/1/nodes/3");
  EXPECT_EQ(stageOf(report, 5).verdict, StageVerdict::kRefuted);
  EXPECT_EQ(stageOf(report, 4).verdict, StageVerdict::kProved);
}

// The sum over 16 microbatches, one by one; `last` is the one that is added last. Its negative is
// the output.
Draft accumulated(int last) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [16], "kind": "input"}, "t": {"shape": []},
                      "o": {"shape": []}},
          "nodes": [{"op": "sum", "in": ["x"], "out": ["t"]},
                    {"op": "neg", "in": ["t"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["dp", 1]], "microbatches": 16,
          "programs": [{"tensors": {"x": {"shape": [1], "kind": "input", "per_mb": true},
                                    "p": {"shape": [], "per_mb": true}, "o": {"shape": []}},
                        "nodes": [{"op": "sum", "in": ["x"], "out": ["p"], "mb": "*"}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [
                        {"box": [[0, 1]], "step": {"mb": [1]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "t", "role": "cut_point", "shards": [
                        {"box": [], "parts": [{"local": "t.15"}]}]},
                      {"tensor": "o", "role": "output", "shards": [
                        {"box": [], "parts": [{"local": "o"}]}]}]})");
  std::string sum = "p#0";
  for (int k = 1; k < 16; ++k) {
    const std::string next = "t." + std::to_string(k);
    d.tensor(0, next) = Json::parse(R"({"shape": []})");
    d.program(0)["nodes"].push_back(
        {{"op", "add"}, {"in", {sum, "p#" + std::to_string(k < 15 ? k : last)}}, {"out", {next}}});
    sum = next;
  }
  d.program(0)["nodes"].push_back({{"op", "neg"}, {"in", {sum}}, {"out", {"o"}}});
  return d;
}

TEST(Verify, AMicrobatchInPlaceOfAnotherOneShowsWhereTheyDiffer) {
  EXPECT_EQ(verified(accumulated(15)).verdict, Verdict::kEquivalent);
  const Report report = verified(accumulated(14));
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent) << report.reason;
  ASSERT_EQ(report.defects.size(), 1u);
  EXPECT_EQ(report.defects[0].tensor, "t");
}

// ---- wrong lemmas ----

TEST(Verify, WrongLineageDoesNotMakeARightPlanWrong) {
  Draft d = test::pipeline();
  d.entry(4)["shards"][0]["sum"] = {"mb"};  // each rank alone is said to have the whole sum
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  EXPECT_EQ(stageOf(report, 4).verdict, StageVerdict::kWrongLineage);
  EXPECT_EQ(stageOf(report, 5).verdict, StageVerdict::kProved);
  EXPECT_EQ(stageOf(report, 5).assumptions, (std::vector<std::int32_t>{3}));  // past the wrong one
  EXPECT_TRUE(report.defects.empty());
}

TEST(Verify, WrongLineageAtSeveralPlaces) {
  Draft d = test::pipeline();
  d.entry(4)["shards"][0]["sum"] = {"mb"};
  d.entry(3)["shards"][0]["step"]["tp"] = {0, 0};
  d.entry(2)["shards"][0]["step"]["tp"] = {0, 0};
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  EXPECT_EQ(stageOf(report, 2).verdict, StageVerdict::kWrongLineage);
  EXPECT_TRUE(stageOf(report, 5).assumptions.empty());
}

// What rests on a wrong lemma fails with it, and is tried again without before it is given up: what
// comes after need not go past it.
TEST(Verify, WhatRestsOnAWrongLemmaIsTriedWithoutIt) {
  Draft d = test::oneRank(
      R"("x": {"shape": [4], "kind": "input"})",
      R"("a": {"shape": [4]}, "b": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "exp", "in": ["a"], "out": ["b"]},
          {"op": "square", "in": ["b"], "out": ["o"]})",
      R"("h": {"shape": [4]}, "a": {"shape": [4]}, "b": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "mul", "in": ["x"], "out": ["h"], "attrs": {"scalar": 2}},
          {"op": "mul", "in": ["h"], "out": ["a"], "attrs": {"scalar": -0.5}},
          {"op": "exp", "in": ["a"], "out": ["b"]}, {"op": "square", "in": ["b"], "out": ["o"]})");
  for (const auto& [tensor, local] : {std::pair("a", "h"), {"a", "a"}, {"b", "b"}}) {
    d.plan["lineage"].push_back(
        Json{{"tensor", tensor},
             {"role", "cut_point"},
             {"shards", {{{"box", {{0, 4}}}, {"parts", {{{"local", local}}}}}}}});
  }
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  EXPECT_EQ(stageOf(report, 2).verdict, StageVerdict::kWrongLineage);
  EXPECT_EQ(stageOf(report, 3).verdict, StageVerdict::kProved);
  EXPECT_TRUE(stageOf(report, 3).assumptions.empty());
  EXPECT_EQ(stageOf(report, 4).assumptions, (std::vector<std::int32_t>{3}));
  EXPECT_EQ(stageOf(report, 1).verdict, StageVerdict::kProved);
}

// True cut points that hide how two tensors hang together, more of them than there are rounds:
// without any the plan is proved.
TEST(Verify, TrueCutPointsThatMisleadAreLeftOut) {
  const int levels = 16;
  Json tensors = Json::object(), nodes = Json::array(), lineage = Json::array();
  std::string before[2] = {"x", "x"};
  for (int k = 0; k < levels; ++k) {
    for (const int side : {0, 1}) {
      const std::string name = (side == 0 ? "u" : "v") + std::to_string(k);
      tensors[name] = {{"shape", {4}}};
      nodes.push_back({{"op", k == 0 && side == 1 ? "neg"
                              : k == 1            ? "exp"
                                                  : "square"},
                       {"in", Json::array({before[side]})},
                       {"out", Json::array({name})}});
      if (k == 0 && side == 0) nodes.back()["op"] = "identity";
      if (k > 0)
        lineage.push_back({{"tensor", name},
                           {"role", "cut_point"},
                           {"shards", {{{"box", {{0, 4}}}, {"parts", {{{"local", name}}}}}}}});
      before[side] = name;
    }
  }
  Draft d = test::oneRank(R"("x": {"shape": [4], "kind": "input"})", R"("o": {"shape": [4]})",
                          R"({"op": "identity", "in": ["x"], "out": ["o"]})",
                          R"("o": {"shape": [4]}, "one": {"shape": [4]})",
                          R"({"op": "identity", "in": ["x"], "out": ["o"]})");
  tensors["o"] = {{"shape", {4}}};
  // The product of both is 1: the model multiplies, the plan divides one by itself.
  Json model = nodes, plan = nodes;
  model.push_back({{"op", "mul"}, {"in", {before[0], before[1]}}, {"out", {"o"}}});
  plan.push_back({{"op", "div"}, {"in", {before[0], before[0]}}, {"out", {"o"}}});
  for (const auto& [name, tensor] : tensors.items()) {
    d.model["tensors"][name] = tensor;
    d.tensor(0, name) = tensor;
  }
  d.model["nodes"] = model;
  d.program(0)["nodes"] = plan;
  d.program(0)["tensors"].erase("one");
  for (const Json& entry : lineage) d.plan["lineage"].push_back(entry);
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
}

// The wrong lemma would prove the wrong output: y is said to be doubled, and the plan halves it
// again.
TEST(Verify, AWrongLemmaProvesNothing) {
  Draft d = test::oneRank(
      R"("x": {"shape": [4], "kind": "input"})", R"("y": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "mul", "in": ["x"], "out": ["y"], "attrs": {"scalar": 2}},
          {"op": "mul", "in": ["y"], "out": ["o"], "attrs": {"scalar": 0.5}})",
      R"("y": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "identity", "in": ["x"], "out": ["y"]}, {"op": "mul", "in": ["y"], "out": ["o"],
          "attrs": {"scalar": 0.5}})");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "y", "role": "cut_point", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "y"}]}]})"));
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  EXPECT_EQ(report.outputsProved, 0u);
  EXPECT_NE(stageOf(report, 1).verdict, StageVerdict::kProved);
}

// Two lemmas that cannot both be true would prove anything: that a equals h and that b, which is a
// + 1, does, make a - b nothing.
TEST(Verify, ContradictoryLemmasProveNothing) {
  Draft d = test::oneRank(
      R"("x": {"shape": [4], "kind": "input"}, "c": {"shape": [4], "kind": "constant",
          "value": 1})",
      R"("h": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "square", "in": ["x"], "out": ["h"]}, {"op": "sub", "in": ["h", "h"],
          "out": ["o"]})",
      R"("a": {"shape": [4]}, "b": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "square", "in": ["x"], "out": ["a"]}, {"op": "add", "in": ["a", "c"], "out": ["b"]},
          {"op": "sub", "in": ["a", "b"], "out": ["o"]})");
  for (const char* local : {"a", "b"}) {
    d.plan["lineage"].push_back(
        Json{{"tensor", "h"},
             {"role", "cut_point"},
             {"shards", {{{"box", {{0, 4}}}, {"parts", {{{"local", local}}}}}}}});
  }
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  EXPECT_EQ(report.outputsProved, 0u);
  EXPECT_EQ(stageOf(report, 2).verdict, StageVerdict::kProved);
  EXPECT_EQ(stageOf(report, 3).verdict, StageVerdict::kRefuted);
}

// A lemma that cannot be proved is left out, and the output is proved from further upstream.
TEST(Verify, AnUnprovableLemmaIsPassedOver) {
  Draft d = undecidable();
  d.plan["programs"][0]["nodes"] = Json::parse(
      R"([{"op": "neg", "in": ["x"], "out": ["n"]}, {"op": "erf", "in": ["n"], "out": ["t"]},
          {"op": "neg", "in": ["t"], "out": ["h"]}, {"op": "erf", "in": ["x"], "out": ["g"]},
          {"op": "square", "in": ["g"], "out": ["o"]}])");
  d.tensor(0, "g") = Json::parse(R"({"shape": []})");
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  EXPECT_EQ(stageOf(report, 2).verdict, StageVerdict::kUndecided);
}

// ---- what is never "equivalent" ----

TEST(Verify, AnOutputWithoutAProofIsUndecided) {
  const Report report = verified(undecidable());
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  EXPECT_EQ(report.outputsProved, 0u);
  EXPECT_EQ(report.reason, "1 of 1 outputs could not be decided");
  EXPECT_TRUE(report.defects.empty());
  for (const StageReport& s : report.stages) EXPECT_NE(s.verdict, StageVerdict::kRefuted);
}

// Leaving out a cut point that is proved does not help: what is told, and every obligation, is
// that of before.
TEST(Verify, ALastResortThatDoesNotHelpChangesNothing) {
  Draft d = undecidable();
  const Json scalar = Json::parse(R"({"shape": []})");
  std::string last = "x";
  for (int k = 0; k < 16; ++k) {
    const std::string name = "k" + std::to_string(k);
    d.model["tensors"][name] = d.tensor(0, name) = scalar;
    for (Json* nodes : {&d.model["nodes"], &d.program(0)["nodes"]})
      nodes->push_back({{"op", "neg"}, {"in", Json::array({last})}, {"out", Json::array({name})}});
    d.plan["lineage"].push_back(
        {{"tensor", name},
         {"role", "cut_point"},
         {"shards",
          Json::array({{{"box", Json::array()}, {"parts", Json::array({{{"local", name}}})}}})}});
    last = name;
  }
  d.model["tensors"]["p"] = d.tensor(0, "p") = scalar;
  for (Json* nodes : {&d.model["nodes"], &d.program(0)["nodes"]})
    nodes->push_back({{"op", "add"}, {"in", {"o", last}}, {"out", Json::array({"p"})}});
  d.model["outputs"] = Json::array({"p"});
  d.entry(1)["tensor"] = d.entry(1)["shards"][0]["parts"][0]["local"] = "p";
  const test::TemporaryDirectory directory;
  VerifyOptions options = quick();
  const std::string index = directory.write("index.json", "");
  options.smt2Directory = std::filesystem::path(index).parent_path().string();
  const Report report = verified(d, options), plain = verified(undecidable());
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  EXPECT_FALSE(report.interrupted);
  EXPECT_EQ(stageOf(report, 3).verdict, StageVerdict::kProved);
  for (const std::int32_t e : {1, 2})
    EXPECT_EQ(stageOf(report, e).reason, stageOf(plain, e).reason);
  std::ifstream written(index);
  EXPECT_EQ(Json::parse(written)["complete"], true);
}

TEST(Verify, OneOfTwoOutputsIsNotEnough) {
  Draft d = undecidable();
  d.model["outputs"].push_back("p");
  d.model["tensors"]["p"] = d.program(0)["tensors"]["p"] = Json::parse(R"({"shape": []})");
  const Json node = Json::parse(R"({"op": "neg", "in": ["x"], "out": ["p"]})");
  d.model["nodes"].push_back(node);
  d.program(0)["nodes"].push_back(node);
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "p", "role": "output", "shards": [{"box": [], "parts": [{"local": "p"}]}]})"));
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  EXPECT_EQ(report.outputs, 2u);
  EXPECT_EQ(report.outputsProved, 1u);
}

// o = f(x) + x of a function f of which nothing is known: r is what it makes of x.
TEST(Verify, ADifferenceCountsOnlyWhereArgumentsOfUnknownFunctionsAreProved) {
  const std::string inputs = R"("x": {"shape": [], "kind": "input"}, )"
                             R"("r": {"shape": [], "kind": "input"})",
                    tensors = R"("a": {"shape": []}, "o": {"shape": []})";
  const auto nodes = [](const std::string& argument, const std::string& result) {
    return R"({"op": ")" + argument + R"(", "in": ["x"], "out": ["a"]}, {"op": ")" + result +
           R"(", "in": ["r", "x"], "out": ["o"]})";
  };
  const auto verdict = [&](const std::string& argument, const std::string& result) {
    Draft d =
        test::oneRank(inputs, tensors, nodes("identity", "add"), tensors, nodes(argument, result));
    d.model["outputs"] = {"a", "o"};
    d.model["arguments"] = {"a"};
    bool claimed = false;
    for (const Json& entry : d.plan["lineage"]) claimed = claimed || entry["tensor"] == "a";
    if (!claimed)
      d.plan["lineage"].push_back(Json::parse(
          R"({"tensor": "a", "role": "output", "shards": [{"box": [],
              "parts": [{"local": "a"}]}]})"));
    return verified(d);
  };
  EXPECT_EQ(verdict("identity", "add").verdict, Verdict::kEquivalent);
  EXPECT_EQ(verdict("identity", "sub").verdict, Verdict::kNotEquivalent);
  for (const char* result : {"add", "sub"}) {
    const Report report = verdict("neg", result);
    EXPECT_EQ(report.verdict, Verdict::kUndecided) << result;
    EXPECT_NE(report.reason.find("arguments of a function of which nothing is known"),
              std::string::npos)
        << report.reason;
    EXPECT_TRUE(report.defects.empty());
  }
}

TEST(Verify, AModelWithoutOutputsSaysNothing) {
  const auto problem = test::read(test::pipeline());
  problem->model.outputs.clear();  // the reader would refuse it
  const Report report = verify(*problem, quick());
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  EXPECT_EQ(report.reason, "the model names no outputs, so there is nothing to prove");
}

TEST(Verify, AnOutputWithoutLineageIsNotProved) {
  const auto problem = test::read(test::pipeline());
  problem->plan.lineage.pop_back();
  const Report report = verify(*problem, quick());
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  EXPECT_EQ(report.outputsProved, 0u);
}

// A goal is a goal, whether the model lists the tensor as an output or not.
TEST(Verify, EveryOutputEntryIsAGoal) {
  Draft d = test::pipeline();
  d.entry(3)["role"] = "output";
  EXPECT_EQ(verified(d).verdict, Verdict::kEquivalent);
  d.entry(3)["shards"][0]["step"]["tp"] = {0, 0};  // wrong now
  const Report report = verified(d);
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  d = undecidable();
  d.entry(2)["role"] = "output";
  EXPECT_EQ(verified(d).verdict, Verdict::kUndecided);
}

// ---- options ----

TEST(Verify, WithoutClassesTheResultIsTheSame) {
  Draft wrong = test::pipeline();
  wrong.node(1, 2)["in"] = {"t#0", "t#0"};
  Draft lemma = test::pipeline();
  lemma.entry(4)["shards"][0]["sum"] = {"mb"};
  const char* const squares =
      R"({"op": "square", "in": ["x"], "out": ["o"]}, {"op": "square", "in": ["y"],
          "out": ["p"]})";  // two equal stages: one class
  const char* const results = R"("o": {"shape": [4]}, "p": {"shape": [4]})";
  Draft twice =
      test::oneRank(R"("x": {"shape": [4], "kind": "input"}, "y": {"shape": [4], "kind": "input"})",
                    results, squares, results, squares);
  twice.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "p", "role": "cut_point", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "p"}]}]})"));
  for (const Draft& d : {test::pipeline(), wrong, lemma, twice, undecidable()}) {
    VerifyOptions each = quick();
    each.shareClasses = false;
    const Report shared = verified(d), separate = verified(d, each);
    EXPECT_EQ(shared.verdict, separate.verdict);
    EXPECT_EQ(shared.outputsProved, separate.outputsProved);
    ASSERT_EQ(shared.stages.size(), separate.stages.size());
    for (std::size_t i = 0; i < shared.stages.size(); ++i) {
      EXPECT_EQ(shared.stages[i].verdict, separate.stages[i].verdict);
      EXPECT_EQ(shared.stages[i].method, separate.stages[i].method);
    }
    EXPECT_LE(shared.statistics.classes, separate.statistics.classes);
  }
  EXPECT_EQ(verified(twice).statistics.classes, 1u);
  EXPECT_EQ(verified(twice).stages.size(), 2u);
}

// relu(h) > 0 exactly where h > 0: a gradient may take its mask from either, behind several layers.
TEST(Verify, GradientMaskFromTheResult) {
  const auto nodes = [](const std::string& mask) {
    return R"({"op": "linear", "in": ["x", "w"], "out": ["h"]},
               {"op": "relu", "in": ["h"], "out": ["a"]},
              {"op": "linear", "in": ["a", "w"], "out": ["k"]},
               {"op": "relu", "in": ["k"], "out": ["b"]},
              {"op": "relu_backward", "in": ["b", ")" +
           std::string(mask == "h" ? "k" : "b") +
           R"("], "out": ["e"]}, {"op": "matmul", "in": ["e", "w"], "out": ["f"]},
              {"op": "relu_backward", "in": ["f", ")" +
           mask + R"("], "out": ["o"]})";
  };
  const std::string inputs =
      R"("x": {"shape": [2, 3], "kind": "input"}, "w": {"shape": [3, 3], "kind": "parameter"})";
  const std::string made =
      R"("h": {"shape": [2, 3]}, "a": {"shape": [2, 3]}, "k": {"shape": [2, 3]},
         "b": {"shape": [2, 3]}, "e": {"shape": [2, 3]}, "f": {"shape": [2, 3]},
          "o": {"shape": [2, 3]})";
  const Report report = verified(test::oneRank(inputs, made, nodes("h"), made, nodes("a")));
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  // The mask of the other layer.
  const Report wrong = verified(test::oneRank(inputs, made, nodes("h"), made, nodes("x")));
  EXPECT_EQ(wrong.verdict, Verdict::kNotEquivalent) << wrong.reason;
}

TEST(Verify, EverythingByZ3) {
  VerifyOptions options = quick();
  options.checker = Checker::kZ3;
  const Report report = verified(test::pipeline(), options);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
  for (const StageReport& s : report.stages) EXPECT_EQ(s.method, Method::kSolver);
}

TEST(Verify, Cancelled) {
  const std::atomic<bool> cancel{true};
  VerifyOptions options = quick();
  options.cancel = &cancel;
  const Report report = verified(test::pipeline(), options);
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  EXPECT_EQ(report.reason, "the run was interrupted");
  EXPECT_EQ(report.outputsProved, 0u);
  for (const StageReport& s : report.stages) EXPECT_EQ(s.verdict, StageVerdict::kUndecided);
}

// Entries that are in no class, of a plan of which something is known of an input: each of them is
// looked at all the same.
TEST(Verify, CancelledBeforeStagesAreClassified) {
  const std::atomic<bool> cancel{true};
  VerifyOptions options = quick();
  options.cancel = &cancel;
  Draft d = test::oneRank(R"("x": {"shape": [2], "kind": "input"})", R"("o": {"shape": [2]})",
                          R"({"op": "exp", "in": ["x"], "out": ["o"]})", R"("o": {"shape": [2]})",
                          R"({"op": "exp", "in": ["x"], "out": ["o"]})");
  d.model["tensors"]["x"]["known"] = {{"numbers", {0.1, 0.3}}};
  const Report report = verified(d, options);
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  ASSERT_EQ(report.stages.size(), 1u);
  EXPECT_EQ(report.stages[0].reason, "not decided before the run ended");
}

TEST(Verify, CancelledInTheMiddle) {
  std::atomic<bool> cancel{false};
  VerifyOptions options = quick();
  options.cancel = &cancel;
  options.progress = [&](std::size_t done, std::size_t, const char*) { cancel = done >= 1; };
  const Report report = verified(test::pipeline(), options);
  EXPECT_TRUE(report.interrupted);
  EXPECT_NE(report.verdict, Verdict::kNotEquivalent);
}

TEST(Verify, ReportsProgress) {
  VerifyOptions options = quick();
  std::size_t last = 0, total = 0;
  options.progress = [&](std::size_t done, std::size_t all, const char*) {
    last = done, total = all;
  };
  const Report report = verified(test::pipeline(), options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, report.statistics.classes);
}

}  // namespace
}  // namespace shardproof
