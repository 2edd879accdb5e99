// SPDX-License-Identifier: Apache-2.0
// Executing an unreduced stage: right ones agree, wrong ones are found whatever the proofs'
// machinery would say, and nothing is called a difference that is none.
#include "unreduced/sample.h"

#include <cmath>

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof::unreduced {
namespace {

using test::Draft;
using test::Json;
using test::oneRank;

SampleOutcome sample(const Draft& d, std::int32_t entry, SampleOptions options = {}) {
  CutOptions cut;
  cut.collapse = false;
  const auto c = test::cut(d, entry, cut);
  return sampleStage(c.stage, options);
}
SampleOutcome sample(const Draft& d) { return sample(d, test::lastEntry(d)); }

void expectAgreement(const SampleOutcome& o) {
  EXPECT_FALSE(o.difference) << o.difference->element << " " << o.difference->logical << " "
                             << o.difference->parallel;
  EXPECT_GT(o.asked, 0);
  EXPECT_EQ(o.agreed, o.asked) << o.reason;
  EXPECT_EQ(o.agreedInField, o.asked);
}

// o = x w^T in the model, w transposed and multiplied in the plan.
Draft product(const std::string& rows, const std::string& inner, const std::string& extra = "") {
  const std::string o = R"("o": {"shape": [)" + rows + R"(, 3000]})";
  return oneRank(
      R"("x": {"shape": [)" + rows + ", " + inner +
          R"(], "kind": "input"}, "w": {"shape": [3000, )" + inner + R"(], "kind": "parameter"})",
      o, R"({"op": "linear", "in": ["x", "w"], "out": ["o"]})",
      R"("wt": {"shape": [)" + inner + R"(, 3000]}, "p": {"shape": [)" + rows + R"(, 3000]}, )" + o,
      R"({"op": "transpose", "in": ["w"], "out": ["wt"], "attrs": {"dim0": 0, "dim1": 1}},
          {"op": "matmul", "in": ["x", "wt"], "out": ["p"]},
                    {"op": "mul", "in": ["p"], "out": ["o"], "attrs": {"scalar": )" +
          (extra.empty() ? "1" : extra) + "}}");
}

TEST(Sample, TensorsOfAnySizeNeedNoRoom) { expectAgreement(sample(product("1000000000", "5000"))); }

TEST(Sample, ADifferenceIsFoundAtFullSize) {
  const SampleOutcome o = sample(product("1000000000", "5000", "1.0001"));
  ASSERT_TRUE(o.difference);
  EXPECT_EQ(o.difference->claim, 0);
  EXPECT_EQ(o.difference->element.rfind("o[", 0), 0u);
  EXPECT_NEAR(o.difference->parallel / o.difference->logical, 1.0001, 1e-9);
}

TEST(Sample, WhatIsTooLargeIsLeftOutAndSaysSo) {
  const SampleOutcome o = sample(product("10", "4000000000"));
  EXPECT_EQ(o.agreed, 0);
  EXPECT_FALSE(o.difference);
  EXPECT_NE(o.reason.find("too many elements"), std::string::npos) << o.reason;
}

// Entries 2 to 5 of the pipeline: copies, messages, sums over ranks and microbatches that lineage
// splits, an all_reduce.
TEST(Sample, LineageBindsBothSides) {
  for (std::int32_t entry = 2; entry <= 5; ++entry)
    expectAgreement(sample(test::pipeline(), entry));
}

TEST(Sample, WrongCollectivesAndWrongBoxesDiffer) {
  Draft d = test::pipeline();
  d.node(1, 3)["attrs"] = {{"reduce", "mean"}};
  EXPECT_TRUE(sample(d).difference);
  d = test::pipeline();
  d.entry(2)["shards"][0]["box"] = {{4, 8}, {0, 3}};
  d.entry(2)["shards"][0]["step"] = {{"mb", {-4, 0}},
                                     {"tp", {0, 3}}};  // microbatches the wrong way round
  EXPECT_TRUE(sample(d, 2).difference);
}

// Three ranks that hold two rows each of x [6, 9], one collective, and what it gives them of
// `modelNode`'s o.
Draft collective(const std::string& node, const std::string& local, const std::string& modelNode,
                 const std::string& o, const std::string& shards) {
  return test::draft(
      R"({"tensors": {"x": {"shape": [6, 9], "kind": "input"}, "v": {"shape": [3, 2, 9]},
          "o": {"shape": )" +
          o + R"(}}, "nodes": [)" + modelNode + R"(], "outputs": ["o"]})",
      R"({"mesh": [["tp", 3]], "programs": [{"tensors": {"x": {"shape": [2, 9], "kind": "input"},
          "y": {"shape": )" +
          local + R"(}}, "nodes": [)" + node +
          R"(]}], "lineage": [{"tensor": "x", "role": "input",
              "shards": [{"box": [[0, 2], [0, 9]], "step": {"tp": [2, 0]},
              "parts": [{"local": "x"}]}]},
                        {"tensor": "o", "role": "output", "shards": )" +
          shards + "}]}");
}

TEST(Sample, EachCollective) {
  const std::string same =
      R"({"op": "view", "in": ["x"], "out": ["v"], "attrs": {"size": [3, 2, 9]}},
          {"op": "identity", "in": ["x"], "out": ["o"]})";
  const auto gathered = [&](const std::string& group) {
    return collective(R"({"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "c", )" + group +
                          R"(, "attrs": {"dim": 0}})",
                      "[6, 9]", same, "[6, 9]",
                      R"([{"box": [[0, 6], [0, 9]], "parts": [{"local": "y"}]}])");
  };
  expectAgreement(sample(gathered(R"("group": ["tp"])")));
  EXPECT_TRUE(sample(gathered(R"("group_at": [{"tp": 0}, {"tp": 2}, {"tp": 1}])")).difference);

  const auto exchanged = [&](int step) {
    return collective(
        R"({"op": "all_to_all", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
            "attrs": {"idim": 1, "odim": 0}})",
        "[6, 3]", same, "[6, 9]",
        R"([{"box": [[0, 6], [)" + std::to_string(step > 0 ? 0 : 6) + ", " +
            std::to_string(step > 0 ? 3 : 9) + R"(]], "step": {"tp": [0, )" + std::to_string(step) +
            R"(]}, "parts": [{"local": "y"}]}])");
  };
  expectAgreement(sample(exchanged(3)));
  EXPECT_TRUE(sample(exchanged(-3)).difference);

  const auto scattered = [&](const std::string& reduce, const std::string& op, int step) {
    return collective(
        R"({"op": "reduce_scatter", "in": ["x"], "out": ["y"], "comm": "c", 
                "group": ["tp"], "attrs": {"dim": 1, "reduce": ")" +
            reduce + R"("}})",
        "[2, 3]",
        R"({"op": "view", "in": ["x"], "out": ["v"], "attrs": {"size": [3, 2, 9]}}, {"op": ")" +
            op + R"(", "in": ["v"], "out": ["o"], "attrs": {"dim": 0}})",
        "[2, 9]",
        R"([{"box": [[0, 2], [)" + std::to_string(step > 0 ? 0 : 6) + ", " +
            std::to_string(step > 0 ? 3 : 9) + R"(]], "step": {"tp": [0, )" + std::to_string(step) +
            R"(]}, "parts": [{"local": "y"}]}])");
  };
  for (const auto& [reduce, op] : {std::pair("sum", "sum"), std::pair("mean", "mean"),
                                   std::pair("max", "amax"), std::pair("min", "amin")})
    expectAgreement(sample(scattered(reduce, op, 3)));
  EXPECT_TRUE(sample(scattered("sum", "mean", 3)).difference);
  EXPECT_TRUE(sample(scattered("sum", "sum", -3)).difference);
}

// With an equation more than there are unknowns the values do not satisfy the assumptions, and
// different sides say nothing.
TEST(Sample, OverdeterminedLineageRefutesNothing) {
  Draft d = test::overDetermined();
  EXPECT_FALSE(sample(d).difference);
  d.node(1, 3)["attrs"] = {{"reduce", "mean"}};
  EXPECT_FALSE(sample(d).difference);
}

TEST(Sample, StagesWithCollapsedAxesAreLeftOut) {
  Draft d = test::pipeline();
  d.plan["microbatches"] = 2;
  auto c = test::cut(d, 5);
  c.stage.collapsedAxes.push_back(CollapsedAxis::whole(0, 8));
  const SampleOutcome o = sampleStage(c.stage, {});
  EXPECT_EQ(o.asked, 0);
  EXPECT_NE(o.reason.find("collapsed"), std::string::npos);
}

// A mask of 4 rows is not rows 4 to 8 of one of 8, though their entries stand at equal positions of
// their own tensors.
TEST(Sample, MaskEntriesAreThoseOfTheirPositions) {
  const auto masks = [](int start) {
    return oneRank(
        R"("t": {"shape": [1, 8], "dtype": "int64", "kind": "input"})",
        R"("m": {"shape": [1, 1, 8, 8]}, "r": {"shape": [1, 1, 4, 8]}, "c": {"shape": [1, 1, 4, 4]},
            "o": {"shape": [1, 1, 4, 4]})",
        R"({"op": "create_mask", "in": ["t"], "out": ["m"]},
            {"op": "slice", "in": ["m"], "out": ["r"], "attrs": {"dim": 2, "start": )" +
            std::to_string(start) + R"(, "stop": )" + std::to_string(start + 4) + R"(}},
                      {"op": "slice", "in": ["r"], "out": ["c"],
                       "attrs": {"dim": 3, "start": 0, "stop": 4}},
                       {"op": "exp", "in": ["c"], "out": ["o"]})",
        R"("u": {"shape": [1, 4], "dtype": "int64"}, "m": {"shape": [1, 1, 4, 4]},
            "o": {"shape": [1, 1, 4, 4]})",
        R"({"op": "slice", "in": ["t"], "out": ["u"], "attrs": {"dim": 1, "start": 0, "stop": 4}},
            {"op": "create_mask", "in": ["u"], "out": ["m"]},
            {"op": "exp", "in": ["m"], "out": ["o"]})");
  };
  expectAgreement(sample(masks(0)));
  EXPECT_TRUE(sample(masks(4)).difference);
}

// z = (p + q)^2 - p^2 - q^2 - 2 p q is zero; doubles see what rounding leaves of it, and a z / z as
// a.
TEST(Sample, ADivisionByWhatIsAlwaysZeroIsNoValue) {
  const std::string shape = R"({"shape": [4]})";
  std::string tensors;
  for (const char* name : {"s", "s2", "p2", "q2", "pq", "d", "e", "z", "az", "o"})
    tensors += std::string(tensors.empty() ? "" : ", ") + "\"" + name + "\": " + shape;
  const auto quotient = [&](const std::string& alpha) {
    return oneRank(
        R"("a": {"shape": [4], "kind": "input"}, "p": {"shape": [4], "kind": "input"},
            "q": {"shape": [4], "kind": "input"})",
        R"("o": {"shape": [4]})", R"({"op": "identity", "in": ["a"], "out": ["o"]})", tensors,
        R"({"op": "add", "in": ["p", "q"], "out": ["s"]}, {"op": "square", "in": ["s"],
            "out": ["s2"]}, {"op": "square", "in": ["p"], "out": ["p2"]},
                      {"op": "square", "in": ["q"], "out": ["q2"]},
                       {"op": "mul", "in": ["p", "q"], "out": ["pq"]},
                       {"op": "sub", "in": ["s2", "p2"], "out": ["d"]},
                      {"op": "sub", "in": ["d", "q2"], "out": ["e"]},
                       {"op": "sub", "in": ["e", "pq"], "out": ["z"], "attrs": {"alpha": )" +
            alpha +
            R"(}}, {"op": "mul", "in": ["a", "z"], "out": ["az"]},
                {"op": "div", "in": ["az", "z"], "out": ["o"]})");
  };
  const SampleOutcome o = sample(quotient("2"));
  ASSERT_TRUE(o.difference);
  EXPECT_TRUE(std::isfinite(o.difference->logical));
  EXPECT_TRUE(std::isnan(o.difference->parallel));
  EXPECT_FALSE(sample(quotient("3")).difference);  // z is zero at some points only: not what two
                                                   // sides that agree elsewhere are refuted by
}

// exp and roots have no counterpart in the prime field that keeps their laws, so only doubles
// agree; cancellation leaves rounding, which is no difference.
TEST(Sample, RoundingIsNoDifference) {
  const std::string t = R"({"shape": [64]})";
  const SampleOutcome o = sample(oneRank(
      R"("x": {"shape": [64], "kind": "input"}, "y": {"shape": [64], "kind": "input"})",
      R"("a": )" + t + R"(, "b": )" + t + R"(, "c": )" + t + R"(, "o": )" + t,
      R"({"op": "exp", "in": ["x"], "out": ["a"]}, {"op": "exp", "in": ["y"], "out": ["b"]},
          {"op": "mul", "in": ["a", "b"], "out": ["c"]},
          {"op": "sub", "in": ["c", "c"], "out": ["o"]})",
      R"("s": )" + t + R"(, "a": )" + t + R"(, "b": )" + t + R"(, "c": )" + t + R"(, "d": )" + t +
          R"(, "o": )" + t,
      R"({"op": "add", "in": ["x", "y"], "out": ["s"]}, {"op": "exp", "in": ["s"], "out": ["d"]},
          {"op": "exp", "in": ["x"], "out": ["a"]}, {"op": "exp", "in": ["y"], "out": ["b"]},
                                            {"op": "mul", "in": ["a", "b"], "out": ["c"]},
                                             {"op": "sub", "in": ["d", "c"], "out": ["o"]})"));
  EXPECT_FALSE(o.difference);
  EXPECT_EQ(o.agreed, o.asked);
  EXPECT_EQ(o.agreedInField, 0);
}

// Rows of a table that no token names are zero on both sides whatever the plan does: some positions
// must be those of tokens.
TEST(Sample, RowsAreLookedAtWhereTokensAre) {
  const auto gradient = [](const std::string& factor) {
    return oneRank(
        R"("ids": {"shape": [200], "dtype": "int64", "kind": "input"},
            "w": {"shape": [100000, 8], "kind": "parameter"},
            "g": {"shape": [200, 8], "kind": "input"})",
        R"("o": {"shape": [100000, 8]})",
        R"({"op": "embedding_backward", "in": ["g", "ids", "w"], "out": [null, "o"]})",
        R"("h": {"shape": [200, 8]}, "o": {"shape": [100000, 8]})",
        R"({"op": "mul", "in": ["g"], "out": ["h"], "attrs": {"scalar": )" + factor +
            R"(}}, {"op": "embedding_backward", "in": ["h", "ids", "w"], "out": [null, "o"]})");
  };
  expectAgreement(sample(gradient("1")));
  EXPECT_TRUE(sample(gradient("2")).difference);
}

TEST(Sample, TheSameSeedFindsTheSame) {
  const SampleOutcome a = sample(product("100", "50", "1.5")),
                      b = sample(product("100", "50", "1.5"));
  ASSERT_TRUE(a.difference && b.difference);
  EXPECT_EQ(a.difference->element, b.difference->element);
  EXPECT_EQ(a.difference->logical, b.difference->logical);
}

}  // namespace
}  // namespace shardproof::unreduced
