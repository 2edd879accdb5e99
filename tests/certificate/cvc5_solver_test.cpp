// SPDX-License-Identifier: Apache-2.0
// cvc5 gives the verdicts that Z3 gives on the same questions, proves nothing from contradictory
// side conditions, and keeps to its time.
#include "certificate/cvc5_solver.h"

#include <chrono>

#include <gtest/gtest.h>

#include "smt/decide.h"

namespace shardproof {
namespace {

using Pairs = std::vector<std::pair<Term, Term>>;

class Cvc5 : public testing::Test {
 protected:
  Term real() { return terms.variable(false); }
  Term integer() { return terms.variable(true); }
  Term number(std::int64_t n, std::int64_t d = 1) { return terms.constant(Rational(n, d)); }
  SmtResult solve(const Pairs& pairs, unsigned milliseconds = 20000) {
    return findDifferenceByCvc5(terms, pairs, milliseconds);
  }
  // Both solvers say this.
  void expectBoth(const Pairs& pairs, SmtVerdict verdict) {
    const SmtResult here = solve(pairs), there = findDifference(terms, pairs, 20000, 2048);
    EXPECT_EQ(here.verdict, verdict) << here.reason;
    EXPECT_EQ(there.verdict, verdict) << there.reason;
  }

  TermAlgebra terms{TermAlgebra::Mode::kRaw};
};

TEST_F(Cvc5, EqualAndUnequalPolynomials) {
  const Term a = real(), b = real();
  const Term left = terms.power(terms.add(a, b), 4), crossed = terms.mul(a, b);
  const auto right = [&](std::int64_t twice) {
    return terms.add(terms.add(terms.power(a, 4), terms.scale(Rational(twice), crossed)),
                     terms.power(b, 4));
  };
  expectBoth({{left, right(2)}}, SmtVerdict::kUnsat);
  expectBoth({{left, right(3)}}, SmtVerdict::kSat);
  expectBoth({{a, a}, {left, right(3)}}, SmtVerdict::kSat);
  expectBoth({}, SmtVerdict::kUnsat);
}

TEST_F(Cvc5, IntegersAndIndicators) {
  const Term i = integer(), x = real();
  expectBoth({{terms.indicator(terms.scale(Rational(2), i), 1), number(0)}}, SmtVerdict::kUnsat);
  expectBoth({{terms.indicator(terms.scale(Rational(2), x), 1), number(0)}}, SmtVerdict::kSat);
  expectBoth({{i, terms.add(i, number(0))}}, SmtVerdict::kUnsat);
}

TEST_F(Cvc5, SmallRationals) {
  const Term x = real(), epsilon = number(1, 100000);
  expectBoth({{epsilon, number(0)}}, SmtVerdict::kSat);
  expectBoth({{terms.mul(number(100000), terms.mul(x, epsilon)), x}}, SmtVerdict::kUnsat);
  expectBoth({{terms.add(x, epsilon), terms.add(x, number(1, 100001))}}, SmtVerdict::kSat);
}

TEST_F(Cvc5, FactsAboutFunctions) {
  const Term a = real(), b = real();
  const auto tanh = [&](Term t) {
    return terms.apply(ops::Function::kTanh, {}, std::vector<Term>{t});
  };
  expectBoth({{tanh(terms.add(a, b)), tanh(terms.add(b, a))}}, SmtVerdict::kUnsat);
  expectBoth({{tanh(a), tanh(b)}}, SmtVerdict::kSat);
  expectBoth({{terms.mul(a, terms.power(a, -2)), number(1)}}, SmtVerdict::kUnsat);
  const Term root = terms.power(a, 1);
  expectBoth({{terms.mul(root, root), a}}, SmtVerdict::kUnsat);
  const Term most[] = {a, b};
  expectBoth({{terms.apply(ops::Function::kMaximum, {}, most), a}}, SmtVerdict::kSat);
}

// x > 0 and -x > 0: an unsatisfiable domain would make every claim provable.
TEST_F(Cvc5, ContradictorySideConditionsProveNothing) {
  const Term x = real();
  const Term left = terms.add(terms.power(x, 1),
                              terms.power(terms.add(number(-1), terms.scale(Rational(-1), x)), 1));
  const SmtResult result = solve({{left, number(7)}});
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_NE(result.reason.find("no input satisfies the side conditions"), std::string::npos)
      << result.reason;
}

TEST_F(Cvc5, UnknownHasAReason) {
  const SmtResult result = solve({{terms.negativeInfinity(), real()}});
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_NE(result.reason.find("for cvc5: minus infinity"), std::string::npos) << result.reason;
}

// The sum of three cubes is 114: nobody knows a solution, so no time limit suffices.
TEST_F(Cvc5, TimeOut) {
  const Term a = integer(), b = integer(), c = integer();
  const auto cube = [&](Term t) { return terms.mul(t, terms.mul(t, t)); };
  const Term sum = terms.add(terms.add(cube(a), cube(b)), cube(c));
  const auto start = std::chrono::steady_clock::now();
  const SmtResult result = solve({{terms.indicator(sum, 114), number(0)}}, 500);
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_NE(result.reason.find("cvc5"), std::string::npos);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);
}

// decide() itself, with a solver that answers as it is told.
class Told : public SolverQuestions {
 public:
  SolverAnswer difference, facts;
  int asked = 0;
  SolverAnswer ask(bool different, const std::vector<Pinned>&, unsigned) override {
    ++asked;
    return different ? difference : facts;
  }
};

TEST(Decide, UnsatCountsOnlyWhereTheFactsCanBeMet) {
  TermAlgebra terms(TermAlgebra::Mode::kRaw);
  const Term x = terms.variable(false);
  const SmtQuery query = buildQuery(terms, {{terms.power(x, 1), x}});
  ASSERT_FALSE(query.facts.empty());
  Told told;
  told.difference.verdict = SmtVerdict::kUnsat;
  for (const SmtVerdict facts : {SmtVerdict::kSat, SmtVerdict::kUnsat, SmtVerdict::kUnknown}) {
    told.facts.verdict = facts;
    EXPECT_EQ(decide(query, told, "it", 1000).verdict,
              facts == SmtVerdict::kSat ? SmtVerdict::kUnsat : SmtVerdict::kUnknown);
  }
  told.difference = {SmtVerdict::kUnknown, "tired", {}};
  EXPECT_EQ(decide(query, told, "it", 1000).reason, "it: tired");
  told.asked = 0;
  EXPECT_EQ(decide(query, told, "it", 0).verdict, SmtVerdict::kUnknown);
  EXPECT_EQ(told.asked, 0);
}

}  // namespace
}  // namespace shardproof
