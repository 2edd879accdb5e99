// SPDX-License-Identifier: Apache-2.0
// The text of a query: what it looks like, and that a solver that reads it is asked what the solver
// that is called is asked.
#include "obligations/smtlib.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>
#include <z3++.h>

#include "shardproof/error.h"
#include "smt/solver.h"

namespace shardproof {
namespace {

using Pairs = std::vector<std::pair<Term, Term>>;

class SmtLib : public testing::Test {
 protected:
  Term real() { return terms.variable(false); }
  Term integer() { return terms.variable(true); }
  Term number(std::int64_t n, std::int64_t d = 1) { return terms.constant(Rational(n, d)); }
  Term function(ops::Function f, std::vector<Term> arguments,
                std::vector<std::int64_t> parameters = {}) {
    return terms.apply(f, parameters, arguments);
  }
  std::string text(const Pairs& pairs, const SmtLibNotes& notes = {},
                   std::size_t most = 1'000'000) {
    return smtLibText(buildQuery(terms, pairs), notes, most);
  }

  // The answer of a solver that has nothing but the text.
  static z3::check_result answer(const std::string& script) {
    z3::context context;
    z3::solver solver(context);
    solver.from_string(script.c_str());
    return solver.check();
  }

  TermAlgebra terms{TermAlgebra::Mode::kRaw};
};

TEST_F(SmtLib, Script) {
  const Term a = real(), i = integer();
  const Term half = terms.scale(Rational(-1, 2), a), root = terms.power(terms.add(a, number(3)), 1);
  SmtLibNotes notes;
  notes.head = {"what it is"};
  notes.status = "sat";
  notes.variable = [](std::uint32_t v) { return "variable " + std::to_string(v); };
  notes.claim = [](std::size_t c) { return "claim " + std::to_string(c); };
  EXPECT_EQ(text({{terms.mul(half, root), terms.indicator(i, -2)}, {half, root}}, notes),
            "; what it is\n"
            "(set-info :smt-lib-version 2.6)\n"
            "(set-info :status sat)\n"
            "(set-logic QF_UFNIRA)\n"
            "(declare-const x0 Real)  ; variable 0\n"
            "(declare-const x1 Int)  ; variable 1\n"
            "(declare-fun f_sqrt (Real) Real)\n"
            "(define-fun t2 () Real (+ 3.0 x0))\n"
            "(define-fun t3 () Real (f_sqrt t2))\n"
            "(define-fun t10 () Real (* (- (/ 1.0 2.0)) x0))\n"
            "; what holds wherever both sides are defined\n"
            "(assert (>= t2 0.0))\n"
            "(assert (>= t3 0.0))\n"
            "(assert (= (* t3 t3) t2))\n"
            "; the negated claim: some two sides differ\n"
            "(assert (or false\n"
            "  (distinct (* t10 t3) (ite (= x1 (- 2)) 1.0 0.0))  ; claim 0\n"
            "  (distinct t10 t3)  ; claim 1\n"
            "))\n"
            "(check-sat)\n"
            "(exit)\n");
}

TEST_F(SmtLib, LogicWithoutIntegers) {
  const Term a = real();
  EXPECT_NE(text({{a, terms.mul(a, a)}}).find("(set-logic QF_UFNRA)"), std::string::npos);
}

// Both back ends say the same of claims that hold, that do not, and that hold only because of a
// fact.
TEST_F(SmtLib, ASolverThatReadsTheTextSaysWhatTheOneThatIsCalledSays) {
  const Term a = real(), b = real(), i = integer();
  const Term e = terms.exp(terms.add(a, b)), sum = terms.add(a, b);
  const auto tanh = [&](Term t) { return function(ops::Function::kTanh, {t}); };
  const auto choice = [&](std::int64_t slot) {
    return function(ops::Function::kGateChoice, {a, b}, {slot, 2, 1, 1, 0});
  };
  const Term root = terms.power(a, 1);
  struct Case {
    const char* name;
    Pairs pairs;
    SmtVerdict expected;
  };
  const std::vector<Case> cases{
      {"nothing", {}, SmtVerdict::kUnsat},
      {"binomial",
       {{terms.power(sum, 4),
         terms.add(terms.add(terms.power(a, 4), terms.scale(Rational(2), terms.mul(a, b))),
                   terms.power(b, 4))}},
       SmtVerdict::kUnsat},
      {"wrong binomial",
       {{terms.power(sum, 4), terms.add(terms.power(a, 4), terms.power(b, 4))}},
       SmtVerdict::kSat},
      {"one of two", {{a, a}, {a, b}}, SmtVerdict::kSat},
      {"small rational", {{terms.scale(Rational(1, 100000), a), number(0)}}, SmtVerdict::kSat},
      {"large rational",
       {{terms.scale(Rational(mpq_class("123456789012345678901234567890/7")), a),
         terms.scale(Rational(mpq_class("123456789012345678901234567890/7")), a)}},
       SmtVerdict::kUnsat},
      {"reciprocal", {{terms.mul(a, terms.power(a, -2)), number(1)}}, SmtVerdict::kUnsat},
      {"root", {{terms.mul(root, root), a}}, SmtVerdict::kUnsat},
      {"exp is positive",
       {{terms.mul(e, terms.power(e, -4)), terms.power(e, -2)}},
       SmtVerdict::kUnsat},
      {"functions are functions", {{tanh(sum), tanh(terms.add(b, a))}}, SmtVerdict::kUnsat},
      {"of equal arguments only", {{tanh(a), tanh(b)}}, SmtVerdict::kSat},
      {"parity",
       {{terms.indicator(terms.scale(Rational(2), i), 1), number(0)}},
       SmtVerdict::kUnsat},
      {"choice",
       {{terms.indicator(choice(0), 1), terms.indicator(choice(0), 1)}},
       SmtVerdict::kUnsat},
      {"other slot",
       {{terms.indicator(choice(0), 1), terms.indicator(choice(1), 1)}},
       SmtVerdict::kSat},
      {"integer against real",
       {{i, terms.scale(Rational(1, 2), terms.scale(Rational(2), i))}},
       SmtVerdict::kUnsat},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(findDifference(terms, c.pairs, 20000, 2048).verdict, c.expected) << c.name;
    EXPECT_EQ(answer(text(c.pairs)), c.expected == SmtVerdict::kSat ? z3::sat : z3::unsat)
        << c.name << "\n"
        << text(c.pairs);
  }
}

// A chain as deep as a long plan's: readers of SMT-LIB recurse.
TEST_F(SmtLib, DeepTermsAreCutIntoDefinitions) {
  const Term a = real();
  Term left = a, right = a;
  for (int i = 0; i < 300; ++i) {
    left = function(ops::Function::kSigmoid, {terms.add(left, number(1))});
    right = function(ops::Function::kSigmoid, {terms.add(number(1), right)});
  }
  const std::string script = text({{left, right}});
  int nesting = 0, deepest = 0;
  for (const char c : script) {
    nesting += c == '(' ? 1 : c == ')' ? -1 : 0;
    deepest = std::max(deepest, nesting);
  }
  EXPECT_EQ(nesting, 0);
  EXPECT_LT(deepest, 40);
  EXPECT_EQ(answer(script), z3::unsat);
}

TEST_F(SmtLib, SharedSubtermsAreWrittenOnce) {
  Term t = real();
  for (int i = 0; i < 60; ++i) t = terms.mul(t, t);
  EXPECT_LT(text({{t, t}}).size(), 5000u);
}

// Names come from files.
TEST_F(SmtLib, NoNameEndsItsComment) {
  const Term a = real();
  SmtLibNotes notes;
  notes.head = {"x\n(assert false)"};
  notes.variable = [](std::uint32_t) { return std::string("y\r\n(assert false)\0z", 19); };
  notes.claim = [](std::size_t) { return "w\n)) (check-sat)\n(assert false)"; };
  const std::string script = text({{a, number(1)}}, notes);
  EXPECT_EQ(answer(script), z3::sat) << script;
  EXPECT_EQ(script.find('\r'), std::string::npos);
}

TEST_F(SmtLib, WhatIsTooLongIsRefused) {
  const Term a = real();
  EXPECT_THROW(text({{a, number(1)}}, {}, 50), Unsupported);
}

TEST_F(SmtLib, WhatNoSolverCanBeToldIsRefused) {
  EXPECT_THROW(text({{terms.negativeInfinity(), real()}}), Unsupported);
  EXPECT_THROW(text({{terms.power(real(), 2 * 65), number(1)}}), Unsupported);
}

TEST_F(SmtLib, CommentsAreTheOnlyThingThatNotesChange) {
  const Term a = real();
  SmtLibNotes notes;
  notes.head = {"head"};
  notes.variable = [](std::uint32_t) { return "variable"; };
  const auto withoutComments = [](const std::string& script) {
    std::string kept;
    for (std::size_t i = 0; i < script.size(); ++i) {
      if (script[i] == ';') {
        while (i < script.size() && script[i] != '\n') ++i;
      } else if (script[i] != ' ' && script[i] != '\n') {
        kept += script[i];
      }
    }
    return kept;
  };
  EXPECT_EQ(withoutComments(text({{a, number(1)}}, notes)),
            withoutComments(text({{a, number(1)}})));
}

}  // namespace
}  // namespace shardproof
