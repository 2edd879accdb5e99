// SPDX-License-Identifier: Apache-2.0
// The solver's three verdicts, its models, and the ways in which it must not prove anything.
#include "smt/solver.h"

#include <cmath>

#include <gtest/gtest.h>

#include "numbers/double_algebra.h"

namespace shardproof {
namespace {

using Pairs = std::vector<std::pair<Term, Term>>;

class Solver : public testing::Test {
 protected:
  Term real() { return terms.variable(false); }
  Term integer() { return terms.variable(true); }
  Term number(std::int64_t n, std::int64_t d = 1) { return terms.constant(Rational(n, d)); }
  Term difference(Term a, Term b) { return terms.add(a, terms.scale(Rational(-1), b)); }
  SmtResult solve(const Pairs& pairs, unsigned milliseconds = 20000) {
    return findDifference(terms, pairs, milliseconds, 2048);
  }
  bool equal(Term a, Term b, Laws laws = Laws::kAll) {
    return findDifference(terms, {{a, b}}, 20000, 2048, laws).verdict == SmtVerdict::kUnsat;
  }

  TermAlgebra terms{TermAlgebra::Mode::kRaw};
};

// (a + b)^2 = a^2 + 2 a b + b^2, on terms that nothing has normalised.
TEST_F(Solver, UnsatWhereAllPairsAreEqual) {
  const Term a = real(), b = real();
  const Term left = terms.power(terms.add(a, b), 4);
  const Term right = terms.add(
      terms.add(terms.power(a, 4), terms.scale(Rational(2), terms.mul(a, b))), terms.power(b, 4));
  ASSERT_NE(left, right);
  EXPECT_EQ(solve({{left, right}}).verdict, SmtVerdict::kUnsat);
  EXPECT_EQ(solve({{a, a}, {left, right}}).verdict, SmtVerdict::kUnsat);
  EXPECT_EQ(solve({}).verdict, SmtVerdict::kUnsat);
}

TEST_F(Solver, SatWithAModelThatReallyMakesThePairDiffer) {
  const Term a = real(), b = real(), i = integer();
  const Term left = terms.add(terms.mul(a, b), terms.indicator(i, 3));
  const Term right = terms.add(a, b);
  const SmtResult result = solve({{a, a}, {left, right}});
  ASSERT_EQ(result.verdict, SmtVerdict::kSat);
  DoubleAlgebra doubles;
  const auto value = [&](std::uint32_t v) {
    return result.model.contains(v) ? result.model.at(v) : 1.0;
  };
  const double x = value(0), y = value(1), k = value(2);
  EXPECT_EQ(k, std::floor(k));
  EXPECT_NE(doubles.add(doubles.mul(x, y), doubles.indicator(k, 3)), doubles.add(x, y));
}

// Without laws two sides are equal only if they are the same polynomials of the same functions.
TEST_F(Solver, WithoutLaws) {
  const Term a = real(), b = real(), i = integer();
  const auto f = [&](Term x) { return terms.apply(ops::Function::kSigmoid, {}, std::span(&x, 1)); };
  const auto largest = [&](Term x, Term y) {
    return terms.apply(ops::Function::kMaximum, {}, std::vector<Term>{x, y});
  };
  EXPECT_TRUE(
      equal(f(terms.add(a, terms.mul(b, b))), f(terms.add(terms.power(b, 4), a)), Laws::kNone));
  EXPECT_TRUE(equal(terms.mul(terms.power(terms.add(a, b), -2), a),
                    terms.mul(a, terms.power(terms.add(b, a), -2)), Laws::kNone));
  const std::vector<std::pair<Term, Term>> byLaws{
      {terms.mul(a, terms.power(a, -2)), number(1)},
      {terms.power(terms.power(a, 1), 4), a},
      {terms.mul(terms.indicator(i, 1), terms.indicator(i, 2)), number(0)},
      {terms.indicator(terms.exp(a), 0), number(0)},
      {terms.mul(difference(largest(a, b), a), difference(largest(a, b), b)), number(0)},
      {f(number(0)), number(1, 2)}};
  for (const auto& [left, right] : byLaws) {
    EXPECT_TRUE(equal(left, right)) << "with laws";
    if (left != right) {
      EXPECT_FALSE(equal(left, right, Laws::kNone));
    }
  }
}

// What is not chosen need not be defined: nothing follows from it.
TEST_F(Solver, WhatAnIndicatorDoesNotChooseHasNoFacts) {
  const Term x = real(), chosen = terms.indicator(integer(), 1);
  const Term other = terms.add(number(1), terms.scale(Rational(-1), chosen));
  for (const Term part : {terms.power(x, -2), terms.power(x, 1), terms.power(x, -1)}) {
    const Term model = terms.select(chosen, part);
    const Term step = terms.scale(Rational(-1), x);
    const Term outside = terms.power(x, 1) == part || terms.power(x, -1) == part
                             ? terms.apply(ops::Function::kStep, {}, std::span(&step, 1))
                             : terms.indicator(x, 0);
    EXPECT_FALSE(equal(model, terms.add(model, terms.mul(other, outside))));
    EXPECT_TRUE(equal(terms.add(model, terms.mul(other, x)),
                      terms.add(terms.mul(x, other), terms.mul(part, chosen))));
  }
}

TEST_F(Solver, TheExponentialOfAMaskedScoreMayBeZero) {
  const Term masked = terms.variable(false, {.total = true, .mayBeInfinite = true});
  EXPECT_FALSE(equal(terms.indicator(terms.exp(terms.add(masked, real())), 0), number(0)));
  EXPECT_TRUE(equal(terms.indicator(terms.exp(real()), 0), number(0)));
}

TEST_F(Solver, AlgebraicModelValues) {
  const Term a = real();  // [a^2 = 2] is not 0 at an irrational number only
  const SmtResult result = solve({{terms.indicator(terms.power(a, 4), 2), number(0)}});
  ASSERT_EQ(result.verdict, SmtVerdict::kSat);
  EXPECT_NEAR(std::abs(result.model.at(0)), std::sqrt(2.0), 1e-12);
}

TEST_F(Solver, IntegersAreIntegers) {
  const Term i = integer(), x = real();
  const Term twice = terms.scale(Rational(2), i);
  EXPECT_EQ(solve({{terms.indicator(twice, 1), number(0)}}).verdict, SmtVerdict::kUnsat);
  EXPECT_EQ(solve({{terms.indicator(terms.scale(Rational(2), x), 1), number(0)}}).verdict,
            SmtVerdict::kSat);
}

// Z3 4.8.12 reads the text "1e-05" as 1/0: everything would be provable.
TEST_F(Solver, SmallRationals) {
  const Term x = real(), epsilon = number(1, 100000);
  EXPECT_EQ(solve({{epsilon, number(0)}}).verdict, SmtVerdict::kSat);
  EXPECT_EQ(solve({{terms.add(x, epsilon), x}}).verdict, SmtVerdict::kSat);
  EXPECT_EQ(solve({{terms.mul(number(100000), terms.mul(x, epsilon)), x}}).verdict,
            SmtVerdict::kUnsat);
  EXPECT_EQ(solve({{terms.add(x, epsilon), terms.add(x, number(1, 100001))}}).verdict,
            SmtVerdict::kSat);
}

TEST_F(Solver, OpaqueFunctionsAreFunctions) {
  const Term a = real(), b = real();
  const auto tanh = [&](Term t) {
    return terms.apply(ops::Function::kTanh, {}, std::vector<Term>{t});
  };
  EXPECT_EQ(solve({{tanh(terms.add(a, b)),
                    tanh(difference(terms.scale(Rational(2), b), difference(b, a)))}})
                .verdict,
            SmtVerdict::kUnsat);
  EXPECT_EQ(solve({{tanh(a), tanh(b)}}).verdict, SmtVerdict::kSat);
}

TEST_F(Solver, FactsAboutExpRootsAndReciprocals) {
  const Term a = real();
  EXPECT_EQ(solve({{terms.mul(a, terms.power(a, -2)), number(1)}}).verdict,
            SmtVerdict::kUnsat);  // where 1/a is defined
  const Term root = terms.power(a, 1);
  EXPECT_EQ(solve({{terms.mul(root, root), a}}).verdict, SmtVerdict::kUnsat);
  const Term e = terms.exp(a);
  EXPECT_EQ(solve({{terms.mul(e, terms.power(e, -2)), number(1)}}).verdict, SmtVerdict::kUnsat);
}

TEST_F(Solver, BeyondTheNormalForms) {
  const Term a = real(), b = real();
  // sqrt(a) sqrt(b) = sqrt(a b), where the roots are defined.
  EXPECT_EQ(
      solve({{terms.mul(terms.power(a, 1), terms.power(b, 1)), terms.power(terms.mul(a, b), 1)}})
          .verdict,
      SmtVerdict::kUnsat);
}

// x > 0 and -x > 0: an unsatisfiable domain would make every claim provable.
TEST_F(Solver, ContradictorySideConditionsProveNothing) {
  const Term x = real();
  const Term left = terms.add(terms.power(x, 1),
                              terms.power(terms.add(number(-1), terms.scale(Rational(-1), x)), 1));
  const SmtResult result = solve({{left, number(7)}});
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_NE(result.reason.find("no input satisfies the side conditions"), std::string::npos)
      << result.reason;
}

// The sums of hundreds of exponentials, each with its reciprocal, as in a cross entropy: that all
// of them can be defined at once is found with time to spare.
TEST_F(Solver, SideConditionsOfManyReciprocalsAreSatisfiable) {
  Pairs pairs;
  for (int row = 0; row < 8; ++row) {
    std::vector<Term> exps;
    for (int i = 0; i < 40; ++i) exps.push_back(terms.exp(real()));
    const Term inverse = terms.power(terms.sum(exps, {}), -2);
    pairs.emplace_back(terms.mul(exps[0], inverse), terms.mul(inverse, exps[0]));
    pairs.emplace_back(terms.power(inverse, -1),
                       terms.power(terms.power(terms.sum(exps, {}), -2), -1));
  }
  EXPECT_EQ(solve(pairs, 10000).verdict, SmtVerdict::kUnsat);
}

TEST_F(Solver, KnownValuesOfFunctions) {
  const Term x = real(), zero = difference(x, x);
  const auto of = [&](ops::Function f, Term t) { return terms.apply(f, {}, std::vector<Term>{t}); };
  EXPECT_EQ(solve({{terms.exp(zero), number(1)},
                   {of(ops::Function::kSigmoid, zero), number(1, 2)},
                   {of(ops::Function::kTanh, zero), zero},
                   {of(ops::Function::kNormalCdf, zero), number(1, 2)},
                   {of(ops::Function::kLog, terms.add(zero, number(1))), number(0)}})
                .verdict,
            SmtVerdict::kUnsat);
  EXPECT_EQ(solve({{of(ops::Function::kStep, terms.mul(x, x)), number(0)}}).verdict,
            SmtVerdict::kSat);
  EXPECT_EQ(
      solve({{of(ops::Function::kStep, terms.scale(Rational(-1), terms.mul(x, x))), number(0)}})
          .verdict,
      SmtVerdict::kUnsat);
}

TEST_F(Solver, UnknownHasAReason) {
  const Term a = real();
  SmtResult result = solve({{terms.negativeInfinity(), a}});
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_NE(result.reason.find("minus infinity"), std::string::npos) << result.reason;
  result = solve({{terms.power(a, 2 * 65), a}});
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_NE(result.reason.find("power above 64"), std::string::npos) << result.reason;
}

// The sum of three cubes is 114: nobody knows a solution, so no time limit suffices.
TEST_F(Solver, TimeOut) {
  const Term a = integer(), b = integer(), c = integer();
  const auto cube = [&](Term t) { return terms.power(t, 6); };
  const Term sum = terms.add(terms.add(cube(a), cube(b)), cube(c));
  const SmtResult result = solve({{terms.indicator(sum, 114), number(0)}}, 300);
  EXPECT_EQ(result.verdict, SmtVerdict::kUnknown);
  EXPECT_EQ(result.reason, "Z3: timeout");
  // What is asked next is not interrupted.
  EXPECT_EQ(solve({{terms.add(a, b), terms.add(b, a)}}).verdict, SmtVerdict::kUnsat);
}

}  // namespace
}  // namespace shardproof
