// SPDX-License-Identifier: Apache-2.0
// What is written of a stage for other solvers. That the text means what Z3 is asked is shown in
// tests/obligations/smtlib_test.cpp.
#include "obligations/written_obligation.h"
#include "prover/obligation.h"

#include <gtest/gtest.h>

#include "check/checker.h"
#include "prover/stage_interpreter.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::oneRank;

constexpr std::size_t kMemory = 1024, kBytes = 1'000'000;

// o = op(a + b) in the model, op(b + a) or something else in the plan.
Draft sumOf(const std::string& op, const std::string& ofPlan) {
  const std::string t = R"({"shape": [5, 7]})", given = R"({"shape": [5, 7], "kind": "input"})";
  return oneRank(R"("a": )" + given + R"(, "b": )" + given, R"("s": )" + t + R"(, "o": )" + t,
                 R"({"op": "add", "in": ["a", "b"], "out": ["s"]}, {"op": ")" + op +
                     R"(", "in": ["s"], "out": ["o"]})",
                 R"("s": )" + t + R"(, "o": )" + t,
                 R"({"op": ")" + ofPlan + R"(", "in": ["b", "a"], "out": ["s"]}, {"op": ")" + op +
                     R"(", "in": ["s"], "out": ["o"]})");
}

WrittenObligation write(const Draft& d, const ObligationNotes& notes = {},
                        std::size_t mostBytes = kBytes) {
  const auto c = test::cut(d, test::lastEntry(d));
  return writeObligation(c.stage, notes, kMemory, mostBytes);
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ObligationOfAStage, SaysWhatItIsAbout) {
  ObligationNotes notes;
  notes.head = {"class 3"};
  notes.proved = true;
  const WrittenObligation w = write(sumOf("sigmoid", "add"), notes);
  EXPECT_EQ(w.missing, "");
  EXPECT_EQ(w.status, "unsat");
  EXPECT_EQ(w.logic, "QF_UFNRA");
  EXPECT_TRUE(w.conclusive);
  EXPECT_EQ(w.pairs, 1u);  // one position stands for all of either dimension
  EXPECT_EQ(w.identical, 0u);
  EXPECT_TRUE(w.functions.empty());
  for (const char* part :
       {"; class 3\n", "; unsat: the equation holds at the full size", "  ; a[0, 0]\n",
        "  ; b[0, 0]\n", "  ; o[0, 0]\n", "(set-info :status unsat)", "(f_sigmoid/1 (+ x0 x1))",
        "(f_sigmoid/1 (+ x1 x0))"})
    EXPECT_TRUE(has(w.text, part)) << part << "\n" << w.text;
}

TEST(ObligationOfAStage, StatusIsWhatIsKnown) {
  ObligationNotes proved, refuted;
  proved.proved = true;
  refuted.refuted = true;
  EXPECT_EQ(write(sumOf("tanh", "add")).status, "unknown");
  EXPECT_EQ(write(sumOf("tanh", "sub"), refuted).status, "sat");
  // Normal forms know that exp(a + b) = exp(a) exp(b); the script does not say so.
  const WrittenObligation e = write(sumOf("exp", "add"), proved);
  EXPECT_EQ(e.status, "unknown");
  EXPECT_EQ(e.functions, std::vector<std::string>{"f_exp"});
  EXPECT_TRUE(has(e.text, "more holds for these functions than is said here: f_exp")) << e.text;
}

TEST(ObligationOfAStage, WhatIsTooLongIsMissingWithItsReason) {
  const WrittenObligation w = write(sumOf("tanh", "add"), {}, 200);
  EXPECT_EQ(w.text, "");
  EXPECT_TRUE(has(w.missing, "longer than")) << w.missing;
}

TEST(ObligationOfAStage, TheSameStageGivesTheSameText) {
  EXPECT_EQ(write(sumOf("silu", "add")).text, write(sumOf("silu", "add")).text);
  EXPECT_NE(write(sumOf("silu", "add")).text, write(sumOf("silu", "sub")).text);
}

// Three factors over one summed dimension: four positions beyond those of the normal form.
TEST(ObligationOfAStage, KeepsAsManyPositionsApartAsAProofMayMultiply) {
  const std::string inputs =
      R"("x": {"shape": [2, 900], "kind": "input"}, "w": {"shape": [900], "kind": "input"})";
  const std::string
      tensors = R"("o": {"shape": [2, 900]})",
      nodes = R"({"op": "rms_norm", "in": ["x", "w"], "out": ["o"], "attrs": {"eps": 0.5}})";
  const Draft d = oneRank(inputs, tensors, nodes, tensors, nodes);
  const auto c = test::cut(d, test::lastEntry(d));
  std::map<std::string, double> seconds;
  Obligation o = buildObligation(c.stage, {}, Positions::kConclusive, mostTerms(kMemory), seconds);
  std::vector<std::pair<Term, Term>> pairs;
  for (const auto& p : o.pairs) pairs.emplace_back(p.logical, p.parallel);
  EXPECT_TRUE(o.conclusive);
  EXPECT_GT(o.reduction.extraSummands, 0);
  EXPECT_LE(extraSummandsFor(pairs, o.terms, c.stage, o.reduced), o.reduction.extraSummands);
}

// Where reciprocals are atoms the summands that are multiplied count, not their atoms: an
// exponential of a score is as many as there are features, a power of a sum is as many sums.
TEST(ObligationOfAStage, CountsSummandsWhereReciprocalsAreAtoms) {
  const std::string inputs =
      R"("q": {"shape": [7, 900], "kind": "input"}, "k": {"shape": [900, 800], "kind": "input"},
          "v": {"shape": [800, 3], "kind": "input"})";
  const auto counted = [&](const std::string& tensors, const std::string& nodes) {
    const Draft d = oneRank(inputs, tensors, nodes, tensors, nodes);
    const auto c = test::cut(d, test::lastEntry(d));
    const ReducedStage reduced = reduceStage(c.stage, {});
    TermAlgebra algebra;
    StageInterpreter<TermAlgebra> interpreter(c.stage, reduced, algebra);
    interpreter.run([&](StageTensorId, std::int64_t) { return algebra.variable(false); });
    std::vector<std::pair<Term, Term>> pairs;
    for (const auto& p : interpreter.pairs()) pairs.emplace_back(p.logical, p.parallel);
    const auto of = [&](Counting counting) {
      return extraSummandsFor(pairs, algebra, c.stage, reduced, counting);
    };
    return std::pair(of(Counting::kFactors), of(Counting::kSummands));
  };
  const std::string scores = R"({"op": "matmul", "in": ["q", "k"], "out": ["s"]})",
                    s = R"("s": {"shape": [7, 800]})";
  const auto product =
      counted(s + R"(, "p": {"shape": [7, 800]}, "o": {"shape": [7, 3]})",
              scores +
                  R"(, {"op": "softmax", "in": ["s"], "out": ["p"], "attrs": {"dim": 1}},
              {"op": "matmul", "in": ["p", "v"], "out": ["o"]})");
  EXPECT_GT(product.first, 20);  // or as many as are not asked for any more
  EXPECT_EQ(product.second, 1);
  const auto power =
      counted(s + R"(, "o": {"shape": [7, 800]})",
              scores + R"(, {"op": "pow", "in": ["s"], "out": ["o"], "attrs": {"scalar": 4}})");
  EXPECT_EQ(power.first, 7);
  EXPECT_EQ(power.second, 5);
  // exp(lse - x) is a sum over what x divides by; a product over 7 rows has as many.
  const std::string lse = scores + R"(,
              {"op": "logsumexp", "in": ["s"], "out": ["l"], "attrs": {"dim": 1, "keepdim": true}},)";
  const auto share = counted(s + R"(, "l": {"shape": [7, 1]}, "d": {"shape": [7, 800]},
                                    "o": {"shape": [7, 800]})",
                             lse + R"({"op": "sub", "in": ["l", "s"], "out": ["d"]},
              {"op": "exp", "in": ["d"], "out": ["o"]})");
  const auto rows = counted(s + R"(, "l": {"shape": [7, 1]}, "d": {"shape": [1, 1]},
                                   "o": {"shape": [1, 1]})",
                            lse + R"({"op": "sum", "in": ["l"], "out": ["d"],
               "attrs": {"dim": 0, "keepdim": true}},
              {"op": "exp", "in": ["d"], "out": ["o"]})");
  EXPECT_GE(share.second, 1);
  EXPECT_LT(share.second, 4);
  EXPECT_GE(rows.first, 6);
  EXPECT_GE(rows.second, 6);
  // What else an exponential may make of logarithms is not counted.
  const char* const exponential = R"(, {"op": "exp", "in": ["d"], "out": ["o"]})";
  for (const char* hidden : {R"({"op": "mul", "in": ["l", "l"], "out": ["d"]})",
                             R"({"op": "sqrt", "in": ["l"], "out": ["d"]})"}) {
    EXPECT_THROW(counted(s + R"(, "l": {"shape": [7, 1]}, "d": {"shape": [7, 1]},
                                 "o": {"shape": [7, 1]})",
                         lse + hidden + exponential),
                 Unsupported);
  }
}

// A power so high that no reduction is wide enough: what the normal form compares is written, and
// that it is no more than that.
TEST(ObligationOfAStage, WhereTooManyPositionsWereNeededItIsNotConclusive) {
  const std::string t = R"({"shape": [4]})",
                    nodes =
                        R"({"op": "matmul", "in": ["x", "w"], "out": ["m"]},
              {"op": "pow", "in": ["m"], "out": ["o"], "attrs": {"scalar": 40}})";
  const std::string
      inputs =
          R"("x": {"shape": [4, 900], "kind": "input"}, "w": {"shape": [900], "kind": "input"})",
      tensors = R"("m": )" + t + R"(, "o": )" + t;
  ObligationNotes notes;
  notes.proved = true;
  const WrittenObligation w = write(oneRank(inputs, tensors, nodes, tensors, nodes), notes);
  EXPECT_EQ(w.missing, "");
  EXPECT_FALSE(w.conclusive);
  EXPECT_EQ(w.status, "unsat");
  EXPECT_TRUE(has(w.text, "That it holds at full size does not follow")) << w.text;
}

TEST(ObligationOfAStage, AsAMessage) {
  ObligationNotes notes;
  notes.proved = true;
  const WrittenObligation w = write(sumOf("exp", "add"), notes),
                          r = deserializeObligation(serialize(w));
  EXPECT_EQ(r.text, w.text);
  EXPECT_EQ(r.missing, w.missing);
  EXPECT_EQ(r.status, w.status);
  EXPECT_EQ(r.logic, w.logic);
  EXPECT_EQ(r.conclusive, w.conclusive);
  EXPECT_EQ(r.pairs, w.pairs);
  EXPECT_EQ(r.identical, w.identical);
  EXPECT_EQ(r.functions, w.functions);
}

}  // namespace
}  // namespace shardproof
