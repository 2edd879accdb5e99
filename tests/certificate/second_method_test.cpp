// SPDX-License-Identifier: Apache-2.0
// Each method by itself: it proves what is true, where it can, and nothing else.
#include "certificate/second_method.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::oneRank;

constexpr SecondMethod kAll[] = {SecondMethod::kNormalForm, SecondMethod::kExpandedForm,
                                 SecondMethod::kZ3, SecondMethod::kCvc5};

SecondOutcome check(const Draft& d, SecondMethod method) {
  const auto c = test::cut(d, test::lastEntry(d));
  return checkStageBy(c.stage, method, {.seconds = 20});
}
bool proves(const Draft& d, SecondMethod method) {
  const SecondOutcome outcome = check(d, method);
  EXPECT_EQ(outcome.reason.empty(), outcome.proved) << toString(method) << ": " << outcome.reason;
  return outcome.proved;
}

// o = (a + b)^2 in the model; the plan multiplies it out, with `twice` a b.
Draft square(const std::string& twice) {
  const std::string t = R"({"shape": [5]})", given = R"({"shape": [5], "kind": "input"})";
  return oneRank(
      R"("a": )" + given + R"(, "b": )" + given, R"("s": )" + t + R"(, "o": )" + t,
      R"({"op": "add", "in": ["a", "b"], "out": ["s"]}, {"op": "square", "in": ["s"],
          "out": ["o"]})",
      R"("aa": )" + t + R"(, "ab": )" + t + R"(, "bb": )" + t + R"(, "u": )" + t + R"(, "o": )" + t,
      R"({"op": "square", "in": ["a"], "out": ["aa"]}, {"op": "mul", "in": ["a", "b"],
          "out": ["ab"]}, {"op": "square", "in": ["b"], "out": ["bb"]},
                    {"op": "add", "in": ["aa", "ab"], "out": ["u"], "attrs": {"alpha": )" +
          twice + R"(}}, {"op": "add", "in": ["u", "bb"], "out": ["o"]})");
}

TEST(SecondMethod, WhatNeedsMultiplyingOut) {
  EXPECT_FALSE(proves(square("2"), SecondMethod::kNormalForm));
  EXPECT_TRUE(proves(square("2"), SecondMethod::kExpandedForm));
  EXPECT_TRUE(proves(square("2"), SecondMethod::kZ3));
  EXPECT_TRUE(proves(square("2"), SecondMethod::kCvc5));
}

TEST(SecondMethod, AFalseStageIsProvedByNone) {
  for (const SecondMethod m : kAll) EXPECT_FALSE(proves(square("3"), m)) << toString(m);
}

// The middle stage sums over ranks and microbatches; one wrong reduction.
TEST(SecondMethod, CollectivesToo) {
  for (const SecondMethod m : kAll) EXPECT_TRUE(proves(test::pipeline(), m)) << toString(m);
  Draft d = test::pipeline();
  d.node(1, 3)["attrs"] = {{"reduce", "mean"}};
  for (const SecondMethod m : kAll) EXPECT_FALSE(proves(d, m)) << toString(m);
}

// x / x is 1 wherever it is defined; a solver is told to look only there, so each method asks for
// the plan's definedness besides.
TEST(SecondMethod, APlanThatIsDefinedAtFewerPointsIsProvedByNone) {
  const Draft d =
      oneRank(R"("x": {"shape": [3], "kind": "input"}, "y": {"shape": [3], "kind": "input"})",
              R"("o": {"shape": [3]})", R"({"op": "identity", "in": ["y"], "out": ["o"]})",
              R"("q": {"shape": [3]}, "o": {"shape": [3]})",
              R"({"op": "div", "in": ["x", "x"], "out": ["q"]}, {"op": "mul", "in": ["q", "y"],
          "out": ["o"]})");
  for (const SecondMethod m : kAll) EXPECT_FALSE(proves(d, m)) << toString(m);
}

TEST(SecondMethod, OthersThanTheOneThatProved) {
  for (const Method proved : {Method::kNormalForm, Method::kPolynomial, Method::kSolver}) {
    const auto others = methodsBesides(proved, Checker::kAuto);
    EXPECT_FALSE(others.empty());
    const SecondMethod same = proved == Method::kNormalForm   ? SecondMethod::kNormalForm
                              : proved == Method::kPolynomial ? SecondMethod::kExpandedForm
                                                              : SecondMethod::kZ3;
    EXPECT_EQ(std::count(others.begin(), others.end(), same), 0);
  }
  const auto besidesZ3 = methodsBesides(Method::kSolver, Checker::kZ3);
  EXPECT_EQ(std::count(besidesZ3.begin(), besidesZ3.end(), SecondMethod::kNormalForm), 1);
  EXPECT_EQ(std::count(besidesZ3.begin(), besidesZ3.end(), SecondMethod::kZ3), 0);
}

}  // namespace
}  // namespace shardproof
