// SPDX-License-Identifier: Apache-2.0
// Inputs of which more is known than their shapes: a proof knows nothing of it, and what is refuted
// is refuted at values of which it is true.
#include "refute/known_inputs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "check/checker.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;
using test::oneRank;

constexpr int kPositions = 400;

std::string given(const std::string& shape, const std::string& dtype = "float32") {
  return R"({"shape": )" + shape + R"(, "kind": "input", "dtype": ")" + dtype + R"("})";
}

Json table(double (*f)(double), int period = kPositions) {
  Json numbers = Json::array();
  for (int i = 0; i < kPositions; ++i) numbers.push_back(f(0.25 * (i % period)));
  return {{"numbers", numbers}};
}

// o = x in the model, x (c c + twice s s) in the plan.
Draft circle(const char* twice) {
  const std::string t = R"({"shape": [400]})";
  return oneRank(
      R"("x": )" + given("[400]") + R"(, "c": )" + given("[400]") + R"(, "s": )" + given("[400]"),
      R"("o": )" + t, R"({"op": "identity", "in": ["x"], "out": ["o"]})",
      R"("cc": )" + t + R"(, "ss": )" + t + R"(, "u": )" + t + R"(, "o": )" + t,
      R"({"op": "square", "in": ["c"], "out": ["cc"]}, {"op": "square", "in": ["s"], "out": ["ss"]},
                    {"op": "add", "in": ["cc", "ss"], "out": ["u"], "attrs": {"alpha": )" +
          std::string(twice) + R"(}}, {"op": "mul", "in": ["x", "u"], "out": ["o"]})");
}

StageVerdict verdict(const Draft& d) {
  const auto c = test::cut(d, test::lastEntry(d));
  return checkStage(c.stage, {}).verdict();
}

TEST(KnownInputs, WhatHoldsForTheirNumbersOnlyIsNotRefuted) {
  Draft d = circle("1");
  EXPECT_EQ(verdict(d), StageVerdict::kRefuted);  // of any numbers
  d.model["tensors"]["c"]["known"] = table(std::cos);
  d.model["tensors"]["s"]["known"] = table(std::sin);
  EXPECT_EQ(verdict(d), StageVerdict::kUndecided);
  Draft wrong = circle("2");
  wrong.model["tensors"]["c"]["known"] = table(std::cos);
  wrong.model["tensors"]["s"]["known"] = table(std::sin);
  EXPECT_EQ(verdict(wrong), StageVerdict::kRefuted);
}

TEST(KnownInputs, NothingIsRefutedWithNumbersThatAreNotKnown) {
  Draft d = circle("2");
  d.model["tensors"]["c"]["known"] = {{"numbers", nullptr}};
  EXPECT_EQ(verdict(d), StageVerdict::kUndecided);
}

// All positions count, not only those that a reduced stage keeps.
TEST(KnownInputs, PositionsAreTheTrueOnes) {
  const std::string t = R"({"shape": [400]})", half = R"({"shape": [200]})";
  const auto swapped = [&](int period) {
    Draft d =
        oneRank(R"("x": )" + given("[400]") + R"(, "c": )" + given("[400]"), R"("o": )" + t,
                R"({"op": "mul", "in": ["x", "c"], "out": ["o"]})",
                R"("a": )" + half + R"(, "b": )" + half + R"(, "d": )" + t + R"(, "o": )" + t,
                R"({"op": "slice", "in": ["c"], "out": ["a"], "attrs": {"dim": 0, "stop": 200}},
            {"op": "slice", "in": ["c"], "out": ["b"], "attrs": {"dim": 0, "start": 200}},
           {"op": "cat", "in": ["b", "a"], "out": ["d"], "attrs": {"dim": 0}},
            {"op": "mul", "in": ["x", "d"], "out": ["o"]})");
    d.model["tensors"]["c"]["known"] = table(std::cos, period);
    return verdict(d);
  };
  EXPECT_EQ(swapped(kPositions), StageVerdict::kRefuted);
  EXPECT_EQ(swapped(200), StageVerdict::kUndecided);  // both halves are alike
}

// o = x n in the model; in the plan n is looked up in a table of 0, 1, 2.
Draft looked(const std::string& first) {
  return oneRank(R"("x": )" + given("[3]") + R"(, "n": )" + given("[3]") + R"(, "i": )" +
                     given("[3]", "int64") +
                     R"(, "w": {"shape": [3, 1], "kind": "constant", "value": [[)" + first +
                     R"(], [1], [2]]})",
                 R"("o": {"shape": [3]})", R"({"op": "mul", "in": ["x", "n"], "out": ["o"]})",
                 R"("r": {"shape": [3, 1]}, "m": {"shape": [3]}, "o": {"shape": [3]})",
                 R"({"op": "embedding", "in": ["i", "w"], "out": ["r"]},
          {"op": "view", "in": ["r"], "out": ["m"], "attrs": {"size": [3]}},
         {"op": "mul", "in": ["x", "m"], "out": ["o"]})");
}

TEST(KnownInputs, ANumberIsThatOfItsInteger) {
  for (const char* first : {"0", "3"}) {
    Draft d = looked(first);
    EXPECT_EQ(verdict(d), StageVerdict::kRefuted);
    d.model["tensors"]["n"]["known"] = {{"number_of", "i"}};
    EXPECT_EQ(verdict(d),
              first == std::string("0") ? StageVerdict::kUndecided : StageVerdict::kRefuted);
    d.model["tensors"]["n"]["known"]["plus"] = 1;
    EXPECT_EQ(verdict(d), StageVerdict::kRefuted);
    d.model["tensors"]["n"]["known"]["plus"] = 0;
    d.model["tensors"]["i"]["known"] = {{"within", {{1, 3}}}};  // no 0
    EXPECT_EQ(verdict(d), StageVerdict::kUndecided);
  }
}

}  // namespace
}  // namespace shardproof
