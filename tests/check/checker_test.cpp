// SPDX-License-Identifier: Apache-2.0
// How one stage is decided: each method where it is the one that decides, counterexamples against
// numbers by hand, and the reasons of what stays undecided.
#include "check/checker.h"
#include "refute/stage_refuter.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "shape_reduction/reduction.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;
using test::oneRank;

StageOutcome check(const Draft& d, const CheckOptions& options = {}) {
  const auto c = test::cut(d, test::lastEntry(d));
  return checkStage(c.stage, options);
}
CheckOptions byZ3() {
  CheckOptions options;
  options.checker = Checker::kZ3;
  options.timeoutSeconds = 20;
  return options;
}
Shape reducedShape(const StageOutcome& outcome, const std::string& tensor) {
  for (const ReducedShape& s : outcome.reducedShapes) {
    if (s.tensor == tensor) return s.reduced;
  }
  throw std::logic_error("no such tensor in the outcome: " + tensor);
}

// o = (a + b)^2 in the model; the plan multiplies it out.
Draft square(const std::string& shape, const std::string& twice = "2") {
  const std::string t = R"({"shape": )" + shape + "}",
                    given = R"({"shape": )" + shape + R"(, "kind": "input"})";
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

// ---- methods ----

TEST(Checker, NormalForm) {
  const StageOutcome outcome = check(oneRank(
      R"("x": {"shape": [50, 70], "kind": "input"}, "w": {"shape": [30, 70], "kind": "parameter"})",
      R"("o": {"shape": [50, 30]})", R"({"op": "linear", "in": ["x", "w"], "out": ["o"]})",
      R"("wt": {"shape": [70, 30]}, "o": {"shape": [50, 30]})",
      R"({"op": "transpose", "in": ["w"], "out": ["wt"], "attrs": {"dim0": 0, "dim1": 1}},
          {"op": "matmul", "in": ["x", "wt"], "out": ["o"]})"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved);
  EXPECT_EQ(outcome.method(), Method::kNormalForm);
  EXPECT_EQ(reducedShape(outcome, "x"), (Shape{1, 3}));
  EXPECT_EQ(reducedShape(outcome, "local wt"), (Shape{3, 1}));
  EXPECT_FALSE(outcome.counterexample);
}

TEST(Checker, PolynomialOfScalars) {
  const StageOutcome outcome = check(square("[]"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved);
  EXPECT_EQ(outcome.method(), Method::kPolynomial);
}

// Multiplied out, a monomial may touch more positions than one summand of the stage did: proved
// again with more of them kept apart.
TEST(Checker, PolynomialIsConfirmedWithMorePositions) {
  StageOutcome outcome = check(square("[1000]"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved);
  EXPECT_EQ(outcome.method(), Method::kPolynomial);
  EXPECT_EQ(reducedShape(outcome, "a"), (Shape{2}));  // one would have done for the normal form
  // The square of a sum over a reduced dimension.
  const char* const inputs =
      R"("a": {"shape": [1000], "kind": "input"}, "b": {"shape": [1000], "kind": "input"})";
  outcome = check(oneRank(
      inputs, R"("s": {"shape": [1000]}, "t": {"shape": []}, "o": {"shape": []})",
      R"({"op": "add", "in": ["a", "b"], "out": ["s"]}, {"op": "sum", "in": ["s"], "out": ["t"]},
          {"op": "square", "in": ["t"], "out": ["o"]})",
      R"("sa": {"shape": []}, "sb": {"shape": []}, "d": {"shape": []}, "p": {"shape": []},
          "q": {"shape": []}, "dd": {"shape": []}, "o": {"shape": []})",
      R"({"op": "sum", "in": ["a"], "out": ["sa"]}, {"op": "sum", "in": ["b"], "out": ["sb"]},
          {"op": "sub", "in": ["sa", "sb"], "out": ["d"]},
                             {"op": "square", "in": ["d"], "out": ["dd"]},
                              {"op": "mul", "in": ["sa", "sb"], "out": ["p"]},
                              {"op": "mul", "in": ["p"], "out": ["q"], "attrs": {"scalar": 4}},
                             {"op": "add", "in": ["dd", "q"], "out": ["o"]})"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved) << outcome.reason;
  EXPECT_EQ(outcome.method(), Method::kPolynomial);
  EXPECT_EQ(reducedShape(outcome, "a"),
            (Shape{4}));  // two apart, one more for the second factor, and one for the other 997
}

// sqrt((exp(x) + 1)^2) = exp(x) + 1, because the sum is positive: no normal form knows that.
Draft root(const std::string& shape, const std::string& scalar = "1") {
  const std::string t = R"({"shape": )" + shape + "}",
                    given = R"({"shape": )" + shape + R"(, "kind": "input"})";
  return oneRank(
      R"("x": )" + given, R"("e": )" + t + R"(, "u": )" + t + R"(, "s": )" + t + R"(, "o": )" + t,
      R"({"op": "exp", "in": ["x"], "out": ["e"]}, {"op": "add", "in": ["e"], "out": ["u"],
          "attrs": {"scalar": 1}}, {"op": "square", "in": ["u"], "out": ["s"]},
          {"op": "sqrt", "in": ["s"], "out": ["o"]})",
      R"("e": )" + t + R"(, "o": )" + t,
      R"({"op": "exp", "in": ["x"], "out": ["e"]}, {"op": "add", "in": ["e"], "out": ["o"],
          "attrs": {"scalar": )" +
          scalar + "}}");
}

TEST(Checker, SolverForWhatNoNormalFormSettles) {
  const StageOutcome outcome = check(root("[]"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved) << outcome.reason;
  EXPECT_EQ(outcome.method(), Method::kSolver);
  EXPECT_EQ(check(root("[]", "1.00001")).verdict(), StageVerdict::kRefuted);
}

TEST(Checker, SolverGetsThePositionsThatItsVerdictNeeds) {
  const StageOutcome outcome = check(root("[500]"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved) << outcome.reason;
  EXPECT_EQ(outcome.method(), Method::kSolver);
  EXPECT_GT(reducedShape(outcome, "x").at(0), 1);
}

// ---- counterexamples ----

std::map<std::string, double> assignmentOf(const StageOutcome& outcome) {
  std::map<std::string, double> values;
  for (const Assignment& a : outcome.counterexample->assignment) values[a.element] = a.value;
  return values;
}

TEST(Checker, NumericRefutationWithTheRightValues) {
  const StageOutcome outcome = check(square("[3]", "3"));
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  EXPECT_EQ(outcome.method(), Method::kNumeric);
  EXPECT_EQ(outcome.claim, 0);
  ASSERT_TRUE(outcome.counterexample);
  const auto values = assignmentOf(outcome);
  ASSERT_EQ(values.size(), 2u);  // only what the element depends on
  const double a = values.at("a[0]"), b = values.at("b[0]");
  EXPECT_EQ(outcome.counterexample->element, "o[0]");
  EXPECT_DOUBLE_EQ(outcome.counterexample->logical, (a + b) * (a + b));
  EXPECT_DOUBLE_EQ(outcome.counterexample->parallel, a * a + 3 * a * b + b * b);
  EXPECT_EQ(outcome.counterexample->omitted, 0u);
}

// Reduced positions have one value: the sum counts it with its weight.
TEST(Checker, CounterexamplesAreOfTheFullSize) {
  const StageOutcome outcome =
      check(oneRank(R"("x": {"shape": [4096], "kind": "input"})", R"("o": {"shape": []})",
                    R"({"op": "sum", "in": ["x"], "out": ["o"]})", R"("o": {"shape": []})",
                    R"({"op": "mean", "in": ["x"], "out": ["o"]})"));
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  const auto values = assignmentOf(outcome);
  ASSERT_EQ(values.size(), 2u);
  const double sum = values.at("x[0]") + 4095 * values.at("x[1]");
  EXPECT_DOUBLE_EQ(outcome.counterexample->logical, sum);
  EXPECT_NEAR(outcome.counterexample->parallel, sum / 4096, 1e-12);
  EXPECT_EQ(outcome.counterexample->element, "o[]");
}

// A lookup that is wrong in one row of the table only.
TEST(Checker, IntegerInputs) {
  const char* const inputs =
      R"("i": {"shape": [2], "kind": "input", "dtype": "int64"},
          "w": {"shape": [10, 4], "kind": "parameter"})";
  const StageOutcome outcome = check(oneRank(
      inputs, R"("o": {"shape": [2, 4]})", R"({"op": "embedding", "in": ["i", "w"], "out": ["o"]})",
      R"("v": {"shape": [9, 4]}, "o": {"shape": [2, 4]})",
      R"({"op": "slice", "in": ["w"], "out": ["v"], "attrs": {"dim": 0, "start": 0, "stop": 9}},
          {"op": "embedding", "in": ["i", "v"], "out": ["o"], "attrs": {"start": 0, "stop": 9}})"));
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted) << outcome.reason;
  const auto values = assignmentOf(outcome);
  const std::string& element = outcome.counterexample->element;  // o[ROW, COLUMN]
  EXPECT_EQ(values.at("i" + element.substr(1, element.find(',') - 1) + "]"), 9);
  EXPECT_DOUBLE_EQ(outcome.counterexample->logical,
                   values.at("w[9" + element.substr(element.find(','))));
  EXPECT_EQ(outcome.counterexample->parallel, 0);
}

TEST(Checker, NamesLocalElementsWithRankAndMicrobatch) {
  Draft d = test::pipeline();
  d.node(1, 2)["in"] = {"t#0", "t#0"};
  const auto c = test::cut(d, 5);
  const StageOutcome outcome = checkStage(c.stage, {});
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  bool any = false;
  for (const Assignment& a : outcome.counterexample->assignment)
    any = any || a.element == "local t@rank 2 microbatch 0[]";
  EXPECT_TRUE(any);
}

// ---- only numbers ----

StageOutcome evaluated(const Draft& d, Masks masks) {
  return evaluateEndToEnd(test::cut(d, test::lastEntry(d)).stage, masks);
}

TEST(Checker, RefuteOnlyNeverProves) {
  StageOutcome outcome = evaluated(square("[3]"), Masks::kReduced);
  EXPECT_EQ(outcome.verdict(), StageVerdict::kUndecided);
  EXPECT_EQ(outcome.reason, kNoDifferenceFound);
  outcome = evaluated(square("[3]", "3"), Masks::kReduced);
  EXPECT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  ASSERT_EQ(outcome.differing.size(), 1u);
  EXPECT_EQ(outcome.differing[0].entry, EntryId(2));
}

// x times the number of positions that a causal mask leaves: the lower triangle's. Reduced, the
// mask leaves another number.
Draft countOfMask(const std::string& count) {
  const std::string x =
      R"("t": {"shape": [1, 64], "kind": "input", "dtype": "int64"},
          "x": {"shape": [], "kind": "input"})";
  return oneRank(
      x,
      R"("m": {"shape": [1, 1, 64, 64]}, "e": {"shape": [1, 1, 64, 64]}, "n": {"shape": []},
          "o": {"shape": []})",
      R"({"op": "create_mask", "in": ["t"], "out": ["m"]}, {"op": "exp", "in": ["m"], "out": ["e"]},
          {"op": "sum", "in": ["e"], "out": ["n"]},
                    {"op": "mul", "in": ["x", "n"], "out": ["o"]})",
      R"("o": {"shape": []})",
      R"({"op": "mul", "in": ["x"], "out": ["o"], "attrs": {"scalar": )" + count + "}}");
}

TEST(Checker, WhatAReducedMaskShowsIsConfirmedWithAWholeOne) {
  for (const char* count : {"2080", "2081"}) {
    StageOutcome outcome = evaluated(countOfMask(count), Masks::kReduced);
    EXPECT_EQ(outcome.verdict(), StageVerdict::kRefuted) << count;
    EXPECT_TRUE(outcome.shortenedMask) << count;
    outcome = evaluated(countOfMask(count), Masks::kWhole);
    EXPECT_FALSE(outcome.shortenedMask) << count;
    EXPECT_EQ(outcome.verdict(),
              count == std::string("2081") ? StageVerdict::kRefuted : StageVerdict::kUndecided)
        << count;
  }
}

// The rows of x, added up; the plan multiplies each by a number and divides it by the same one,
// which takes nothing but that it is not 0. Of the masked scores e[i, j] it is `divisor`.
Draft dividedRows(const std::string& tensors, const std::string& divisor) {
  const std::string inputs =
                        R"("t": {"shape": [1, 64], "kind": "input", "dtype": "int64"},
              "x": {"shape": [64, 3], "kind": "input"}, "q": {"shape": [64, 3], "kind": "input"})",
                    sum = R"({"op": "sum", "in": ["z"], "out": ["o"], "attrs": {"dim": 0}})";
  return oneRank(
      inputs, R"("z": {"shape": [64, 3]}, "o": {"shape": [3]})",
      R"({"op": "identity", "in": ["x"], "out": ["z"]}, )" + sum,
      R"("m": {"shape": [1, 1, 64, 64]}, "n": {"shape": [64, 64]}, "s": {"shape": [64, 64]},
          "a": {"shape": [64, 64]}, "e": {"shape": [64, 64]}, "y": {"shape": [64, 3]},
          "z": {"shape": [64, 3]}, "o": {"shape": [3]}, )" +
          tensors,
      R"({"op": "create_mask", "in": ["t"], "out": ["m"]}, {"op": "view", "in": ["m"], "out": ["n"],
          "attrs": {"size": [64, 64]}},
         {"op": "einsum", "in": ["q", "q"], "out": ["s"], "attrs": {"equation": "id,jd->ij"}},
          {"op": "apply_mask", "in": ["s", "n"], "out": ["a"]},
         {"op": "exp", "in": ["a"], "out": ["e"]}, )" +
          divisor +
          R"(, {"op": "mul", "in": ["x", "d"], "out": ["y"]},
              {"op": "div", "in": ["y", "d"], "out": ["z"]}, )" +
          sum);
}

// In a piece that is reduced each row has its own entry, also that of a position that stands for
// several; what else it has is not known.
TEST(Checker, ARowUnderACausalMaskHasItsOwnEntry) {
  const std::string rows =
      R"({"op": "sum", "in": ["e"], "out": ["d"], "attrs": {"dim": 1, "keepdim": true}})";
  EXPECT_EQ(check(dividedRows(R"("d": {"shape": [64, 1]})", rows)).verdict(),
            StageVerdict::kProved);
  // Those of columns, too.
  const std::string columns =
      R"({"op": "sum", "in": ["e"], "out": ["c"], "attrs": {"dim": 0}},
          {"op": "view", "in": ["c"], "out": ["d"], "attrs": {"size": [64, 1]}})";
  EXPECT_EQ(
      check(dividedRows(R"("c": {"shape": [64]}, "d": {"shape": [64, 1]})", columns)).verdict(),
      StageVerdict::kProved);
  // Without its own entry the first row has none, though e[i, i] is no entry of e by its form.
  const std::string others =
      R"({"op": "sum", "in": ["e"], "out": ["r"], "attrs": {"dim": 1, "keepdim": true}},
          {"op": "mul", "in": ["q", "q"], "out": ["qq"]},
         {"op": "sum", "in": ["qq"], "out": ["l"], "attrs": {"dim": 1, "keepdim": true}},
          {"op": "exp", "in": ["l"], "out": ["own"]}, {"op": "sub", "in": ["r", "own"],
          "out": ["d"]})";
  const StageOutcome without = check(dividedRows(
      R"("r": {"shape": [64, 1]}, "qq": {"shape": [64, 3]}, "l": {"shape": [64, 1]},
          "own": {"shape": [64, 1]}, "d": {"shape": [64, 1]})",
      others));
  EXPECT_NE(without.verdict(), StageVerdict::kProved);
  EXPECT_NE(without.reason.find("the plan divides by"), std::string::npos) << without.reason;
  // A number of entries is not told by those of one position: there are 2080, and 2080 is 0 then.
  const std::string count =
      R"({"op": "exp", "in": ["n"], "out": ["f"]}, {"op": "sum", "in": ["f"], "out": ["r"]},
          {"op": "add", "in": ["r"], "out": ["d"], "attrs": {"scalar": -2080}})";
  const StageOutcome counted = check(
      dividedRows(R"("f": {"shape": [64, 64]}, "r": {"shape": []}, "d": {"shape": []})", count));
  EXPECT_NE(counted.verdict(), StageVerdict::kProved);
  EXPECT_NE(counted.reason.find("the plan divides by"), std::string::npos) << counted.reason;
}

// One element stands for all those that permutations of positions turn it into, and for no others:
// what is right on the diagonal only, or in one of two pieces, is not proved.
TEST(Checker, OneElementOfEachOrbitIsCompared) {
  const std::string x = R"("x": {"shape": [64, 3], "kind": "input"})",
                    o = R"("o": {"shape": [64, 64]})";
  const auto products = [&](const std::string& equation) {
    return R"({"op": "einsum", "in": ["x", "x"], "out": ["o"], "attrs": {"equation": ")" +
           equation + "\"}}";
  };
  EXPECT_EQ(check(oneRank(x, o, products("id,jd->ij"), o, products("jd,id->ij"))).verdict(),
            StageVerdict::kProved);
  const StageOutcome diagonal = check(oneRank(
      x, o, products("id,jd->ij"), R"("s": {"shape": [64, 1]}, "y": {"shape": [64, 3]}, )" + o,
      R"({"op": "mul", "in": ["x", "x"], "out": ["y"]}, {"op": "sum", "in": ["y"], "out": ["s"],
          "attrs": {"dim": 1, "keepdim": true}}, {"op": "expand", "in": ["s"], "out": ["o"],
          "attrs": {"size": [64, 64]}})"));
  EXPECT_EQ(diagonal.verdict(), StageVerdict::kRefuted) << diagonal.reason;
  for (const std::string scalar : {"1", "2"}) {
    const std::string all = R"("o": {"shape": [64, 3]})";
    const StageOutcome pieces = check(oneRank(
        x, all, R"({"op": "identity", "in": ["x"], "out": ["o"]})",
        R"("a": {"shape": [40, 3]}, "b": {"shape": [24, 3]}, "c": {"shape": [24, 3]}, )" + all,
        R"({"op": "slice", "in": ["x"], "out": ["a"], "attrs": {"dim": 0, "start": 0, "stop": 40}},
            {"op": "slice", "in": ["x"], "out": ["b"], "attrs": {"dim": 0, "start": 40,
            "stop": 64}},
           {"op": "mul", "in": ["b"], "out": ["c"], "attrs": {"scalar": )" +
            scalar + R"(}}, {"op": "cat", "in": ["a", "c"], "out": ["o"], "attrs": {"dim": 0}})"));
    EXPECT_EQ(pieces.verdict(), scalar == "1" ? StageVerdict::kProved : StageVerdict::kRefuted);
  }
}

// ---- everything by the solver ----

TEST(Checker, EverythingByZ3) {
  StageOutcome outcome = check(square("[4]"), byZ3());
  EXPECT_EQ(outcome.verdict(), StageVerdict::kProved) << outcome.reason;
  EXPECT_EQ(outcome.method(), Method::kSolver);
  outcome = check(oneRank(R"("x": {"shape": [4], "kind": "input"})", R"("o": {"shape": [4]})",
                          R"({"op": "neg", "in": ["x"], "out": ["o"]})", R"("o": {"shape": [4]})",
                          R"({"op": "neg", "in": ["x"], "out": ["o"]})"),
                  byZ3());
  EXPECT_EQ(outcome.method(), Method::kSolver);  // even what is the same term
  outcome = check(square("[4]", "3"), byZ3());
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  EXPECT_EQ(outcome.method(), Method::kSolver);
  const std::string place = outcome.counterexample->element.substr(1);  // "[0]"
  const double a = assignmentOf(outcome).at("a" + place), b = assignmentOf(outcome).at("b" + place);
  EXPECT_DOUBLE_EQ(outcome.counterexample->logical, (a + b) * (a + b));
  EXPECT_DOUBLE_EQ(outcome.counterexample->parallel, a * a + 3 * a * b + b * b);
}

// Every input that makes a difference is listed, whatever value it was given. (-1/2 was once taken
// for one that changes nothing.)
TEST(Checker, NoInputThatMattersIsLeftOut) {
  const StageOutcome outcome = check(square("[4]", "3"), byZ3());
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  EXPECT_EQ(outcome.counterexample->assignment.size(), 2u);
}

// ---- undecided, and why ----

// erf is odd, but for the proof it is any function: the numbers agree, Z3's counterexample is
// none.
Draft oddFunction() {
  return oneRank(
      R"("x": {"shape": [], "kind": "input"})", R"("o": {"shape": []})",
      R"({"op": "erf", "in": ["x"], "out": ["o"]})",
      R"("n": {"shape": []}, "t": {"shape": []}, "o": {"shape": []})",
      R"({"op": "neg", "in": ["x"], "out": ["n"]}, {"op": "erf", "in": ["n"], "out": ["t"]},
          {"op": "neg", "in": ["t"], "out": ["o"]})");
}

TEST(Checker, ADifferenceForOtherFunctionsOnlyIsUndecided) {
  for (const CheckOptions& options : {CheckOptions{}, byZ3()}) {
    const StageOutcome outcome = check(oddFunction(), options);
    EXPECT_EQ(outcome.verdict(), StageVerdict::kUndecided);
    EXPECT_EQ(outcome.method(), Method::kNone);
    EXPECT_NE(outcome.reason.find("only for other functions than the real ones"), std::string::npos)
        << outcome.reason;
  }
}

TEST(Checker, TooLargeIsUndecided) {
  const StageOutcome outcome = check(
      oneRank(R"("x": {"shape": [70000], "kind": "input"})", R"("o": {"shape": [35000]})",
              R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "step": 2}})",
              R"("o": {"shape": [35000]})",
              R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "step": 2}})"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kUndecided);
  EXPECT_NE(outcome.reason.find("would have to be kept whole"), std::string::npos)
      << outcome.reason;
}

TEST(Checker, DropoutOnARankThatNoLineagePlacesIsUndecided) {
  const char* const node =
      R"({"op": "dropout", "in": ["x"], "out": ["o"], "attrs": {"p": 0.5, "seed": 1}})";
  const StageOutcome outcome = check(oneRank(
      R"("x": {"shape": [4], "kind": "input"})", R"("o": {"shape": [4]})", node,
      R"("y": {"shape": [4]}, "z": {"shape": [4]}, "o": {"shape": [4]})",
      R"({"op": "identity", "in": ["x"], "out": ["y"]}, {"op": "dropout", "in": ["y"], "out": ["z"],
          "attrs": {"p": 0.5, "seed": 1}}, {"op": "identity", "in": ["z"], "out": ["o"]})"));
  EXPECT_EQ(outcome.verdict(), StageVerdict::kUndecided);
  EXPECT_NE(outcome.reason.find("dropout on a rank follows the logical position"),
            std::string::npos)
      << outcome.reason;
}

// A refutation must not rest on values that the assumed lineage excludes.
TEST(Checker, DroppedAssumptionsForbidRefutation) {
  Draft d = test::overDetermined();
  d.node(1, 2)["in"] = {"t#0", "t#0"};
  const auto c = test::cut(d, 6);
  const StageOutcome outcome = checkStage(c.stage, {});
  EXPECT_EQ(outcome.verdict(), StageVerdict::kUndecided);
  EXPECT_NE(outcome.reason.find("over-determined"), std::string::npos) << outcome.reason;
}

TEST(Checker, CollapsedAxesThatAreNoSymmetryAreTheCallersBusiness) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [8], "kind": "input"}, "c": {"shape": [8], "kind": "constant",
          "value": [1, 1, 1, 1, 1, 1, 1, 2]}, "o": {"shape": [8]}},
                            "nodes": [{"op": "add", "in": ["x", "c"], "out": ["o"]}],
                             "outputs": ["o"]})",
      R"({"mesh": [["dp", 8]], "programs": [{"tensors": {"x": {"shape": [1], "kind": "input"},
          "o": {"shape": [1]}}, "nodes": [{"op": "add", "in": ["x"], "out": ["o"],
          "attrs": {"scalar": 1}}]}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                             "parts": [{"local": "x"}]}]},
                                        {"tensor": "o", "role": "output",
                                         "shards": [{"box": [[0, 1]], "step": {"dp": [1]},
                                         "parts": [{"local": "o"}]}]}]})");
  const StageOutcome outcome = check(d);
  EXPECT_TRUE(outcome.needsRefinement);
  EXPECT_EQ(outcome.verdict(), StageVerdict::kUndecided);
  EXPECT_FALSE(outcome.reason.empty());
}

// ---- messages between processes ----

TEST(Checker, OutcomesSurviveSerialisation) {
  StageOutcome outcome = check(square("[3]", "3"));
  outcome.counterexample->parallel = -std::numeric_limits<double>::infinity();
  outcome.needsRefinement = outcome.shortenedMask = true;
  outcome.differing = {{EntryId(1), 0, Rank(3)}, {EntryId(5), 2, Rank(0)}};
  const StageOutcome again = deserialize(serialize(outcome));
  EXPECT_EQ(again.verdict(), outcome.verdict());
  EXPECT_EQ(again.method(), outcome.method());
  EXPECT_EQ(again.claim, outcome.claim);
  EXPECT_TRUE(again.needsRefinement);
  EXPECT_TRUE(again.shortenedMask);
  EXPECT_EQ(again.differing, outcome.differing);
  ASSERT_TRUE(again.counterexample);
  EXPECT_EQ(again.counterexample->element, outcome.counterexample->element);
  EXPECT_EQ(again.counterexample->parallel, outcome.counterexample->parallel);
  EXPECT_EQ(again.counterexample->assignment.size(), 2u);
  EXPECT_EQ(again.reducedShapes.size(), outcome.reducedShapes.size());
  EXPECT_EQ(deserialize(serialize(check(oddFunction()))).reason, check(oddFunction()).reason);
}

}  // namespace
}  // namespace shardproof
