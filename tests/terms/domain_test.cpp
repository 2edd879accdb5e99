// SPDX-License-Identifier: Apache-2.0
// Where the plan divides, takes a root or a logarithm: at a place where the model does not, it may
// have no value where the model has one.
#include "terms/domain.h"

#include <gtest/gtest.h>

#include <functional>

#include "terms/term_algebra.h"

namespace shardproof {
namespace {

using Use = std::function<Term(TermAlgebra&, Term, Term)>;

// Is what the plan does covered by what the model does, for variables x and y?
bool covered(const Use& model, const Use& plan) {
  TermAlgebra a(TermAlgebra::Mode::kNormalized);
  const Term x = a.variable(false), y = a.variable(false);
  const ConditionSet given = model(a, x, y).condition;
  std::vector<std::pair<Term, Term>> expanded;
  return !uncovered(a, given, plan(a, x, y).condition, 10'000, expanded);
}
const Use kNothing = [](TermAlgebra& a, Term, Term) { return a.constant(Rational(1)); };
Term c(TermAlgebra& a, std::int64_t n) { return a.constant(Rational(n)); }
Term minus(TermAlgebra& a, Term x, Term y) { return a.add(x, a.scale(Rational(-1), y)); }
Term log(TermAlgebra& a, Term x) { return a.apply(ops::Function::kLog, {}, std::span(&x, 1)); }
Term sigmoid(TermAlgebra& a, Term x) {
  return a.apply(ops::Function::kSigmoid, {}, std::span(&x, 1));
}
Term inverse(TermAlgebra& a, Term x) { return a.power(x, -2); }
Term root(TermAlgebra& a, Term x) { return a.power(x, 1); }

// 1/x where i is 1 and 2: never needed, so it is no condition, and excuses nothing.
TEST(Domain, WhatIsChosenByIndicatorsThatExcludeEachOther) {
  const auto chosen = [](std::int64_t second) -> Use {
    return [second](TermAlgebra& a, Term x, Term) {
      const Term i = a.variable(true);
      return a.select(a.indicator(i, 1), a.select(a.indicator(i, second), inverse(a, x)));
    };
  };
  const Use byX = [](TermAlgebra& a, Term x, Term) { return inverse(a, x); };
  EXPECT_FALSE(covered(chosen(2), byX));
  EXPECT_FALSE(covered(chosen(1), byX));
  EXPECT_TRUE(covered(kNothing, chosen(2)));
  EXPECT_FALSE(covered(kNothing, chosen(1)));
}

TEST(Domain, WhatTheModelDividesByThePlanMayDivideBy) {
  const Use byX = [](TermAlgebra& a, Term x, Term) { return inverse(a, x); };
  EXPECT_TRUE(covered(
      byX, [](TermAlgebra& a, Term x, Term) { return inverse(a, a.scale(Rational(-2), x)); }));
  EXPECT_TRUE(covered(byX, [](TermAlgebra& a, Term x, Term) { return a.power(x, -4); }));
  EXPECT_FALSE(covered(byX, [](TermAlgebra& a, Term, Term y) { return inverse(a, y); }));
  EXPECT_FALSE(
      covered(byX, [](TermAlgebra& a, Term x, Term y) { return inverse(a, a.mul(x, y)); }));
  EXPECT_FALSE(covered(kNothing, byX));
  EXPECT_TRUE(covered([](TermAlgebra& a, Term x, Term y) { return inverse(a, a.mul(x, y)); }, byX));
  const Use byDifference = [](TermAlgebra& a, Term x, Term y) {
    return inverse(a, minus(a, x, y));
  };
  EXPECT_TRUE(covered(byDifference, [](TermAlgebra& a, Term x, Term y) {
    return inverse(a, minus(a, a.scale(Rational(3), y), a.scale(Rational(3), x)));
  }));
  EXPECT_FALSE(covered(byDifference,
                       [](TermAlgebra& a, Term x, Term y) { return inverse(a, a.add(x, y)); }));
}

// |x| = x step(x) - x step(-x), and what is weighed by positive numbers, is never below 0; other
// steps say nothing of x, and with the signs exchanged it is never above.
TEST(Domain, WhatAStepChoosesHasItsSign) {
  const auto step = [](TermAlgebra& a, Term x) {
    return a.apply(ops::Function::kStep, {}, std::span(&x, 1));
  };
  const auto chosen = [&](TermAlgebra& a, Term x, Term by) { return a.mul(x, step(a, by)); };
  const auto magnitude = [&](TermAlgebra& a, Term x) {
    const Term negative = a.scale(Rational(-1), x);
    return a.add(chosen(a, x, x), chosen(a, negative, negative));
  };
  const auto over = [](TermAlgebra& a, Term x) { return inverse(a, a.add(c(a, 1), x)); };
  const auto alone = [](const Use& plan) { return covered(kNothing, plan); };
  EXPECT_TRUE(alone([&](TermAlgebra& a, Term x, Term) { return over(a, magnitude(a, x)); }));
  EXPECT_TRUE(alone([&](TermAlgebra& a, Term x, Term y) {
    return over(a, a.add(magnitude(a, x), a.scale(Rational(1, 3), magnitude(a, y))));
  }));
  EXPECT_TRUE(
      alone([&](TermAlgebra& a, Term x, Term y) { return over(a, magnitude(a, minus(a, x, y))); }));
  EXPECT_TRUE(alone([&](TermAlgebra& a, Term x, Term) {
    return over(a, a.mul(a.power(x, 6), step(a, a.scale(Rational(2), x))));
  }));
  EXPECT_TRUE(alone([&](TermAlgebra& a, Term x, Term y) {
    return over(
        a, a.mul(chosen(a, x, a.scale(Rational(-1), x)), chosen(a, y, a.scale(Rational(-3), y))));
  }));
  EXPECT_FALSE(alone([&](TermAlgebra& a, Term x, Term) {
    return over(a, a.scale(Rational(-1), magnitude(a, x)));
  }));
  EXPECT_FALSE(alone([&](TermAlgebra& a, Term x, Term) {
    return over(a, chosen(a, x, a.scale(Rational(-1), x)));
  }));
  EXPECT_FALSE(alone([&](TermAlgebra& a, Term x, Term y) { return over(a, chosen(a, x, y)); }));
  EXPECT_FALSE(alone([&](TermAlgebra& a, Term x, Term y) {
    return over(a, chosen(a, minus(a, x, y), a.add(x, y)));
  }));
  EXPECT_FALSE(alone(
      [&](TermAlgebra& a, Term x, Term) { return over(a, chosen(a, x, a.add(x, c(a, 1)))); }));
  EXPECT_FALSE(
      alone([&](TermAlgebra& a, Term x, Term y) { return over(a, a.mul(chosen(a, x, x), y)); }));
  EXPECT_FALSE(alone([&](TermAlgebra& a, Term x, Term) { return inverse(a, magnitude(a, x)); }));
}

TEST(Domain, WhatIsPositiveNeedsNoModel) {
  const auto alone = [](const Use& plan) { return covered(kNothing, plan); };
  EXPECT_TRUE(alone([](TermAlgebra& a, Term x, Term y) {
    return inverse(a, a.add(c(a, 1), a.add(a.mul(x, x), a.exp(y))));
  }));
  EXPECT_TRUE(alone([](TermAlgebra& a, Term x, Term) { return inverse(a, sigmoid(a, x)); }));
  EXPECT_TRUE(alone([](TermAlgebra& a, Term x, Term y) {
    return log(a, a.mul(sigmoid(a, x), a.add(c(a, 2), a.mul(y, y))));
  }));
  EXPECT_TRUE(alone(
      [](TermAlgebra& a, Term x, Term y) { return root(a, a.add(a.mul(x, x), a.mul(y, y))); }));
  EXPECT_TRUE(alone([](TermAlgebra& a, Term x, Term) {
    return inverse(a, minus(a, c(a, -1), a.mul(x, x)));
  }));  // always negative
  EXPECT_FALSE(
      alone([](TermAlgebra& a, Term x, Term) { return inverse(a, a.add(c(a, -1), a.mul(x, x))); }));
  EXPECT_FALSE(alone(
      [](TermAlgebra& a, Term x, Term y) { return inverse(a, a.add(a.mul(x, x), a.mul(y, y))); }));
  EXPECT_FALSE(alone([](TermAlgebra& a, Term x, Term) { return inverse(a, a.add(c(a, 1), x)); }));
  EXPECT_FALSE(alone(
      [](TermAlgebra& a, Term x, Term) { return inverse(a, minus(a, c(a, 1), sigmoid(a, x))); }));
  EXPECT_FALSE(
      alone([](TermAlgebra& a, Term x, Term) { return log(a, a.mul(x, x)); }));  // not where x is 0
}

TEST(Domain, RootsAndLogarithmsKeepTheirSign) {
  const Use rootOfDifference = [](TermAlgebra& a, Term x, Term y) {
    return root(a, minus(a, x, y));
  };
  EXPECT_TRUE(covered(rootOfDifference, [](TermAlgebra& a, Term x, Term y) {
    return root(a, a.scale(Rational(2), minus(a, x, y)));
  }));
  EXPECT_FALSE(covered(rootOfDifference,
                       [](TermAlgebra& a, Term x, Term y) { return root(a, minus(a, y, x)); }));
  EXPECT_FALSE(covered(rootOfDifference, [](TermAlgebra& a, Term x, Term y) {
    return a.power(minus(a, x, y), -1);
  }));  // not where x = y
  EXPECT_FALSE(covered([](TermAlgebra& a, Term x, Term) { return inverse(a, x); },
                       [](TermAlgebra& a, Term x, Term) { return root(a, x); }));
  const Use logOfX = [](TermAlgebra& a, Term x, Term) { return log(a, x); };
  EXPECT_TRUE(covered(logOfX, [](TermAlgebra& a, Term x, Term) {
    return a.add(a.add(log(a, a.scale(Rational(2), x)), root(a, x)),
                 a.add(inverse(a, x), a.power(x, -1)));
  }));
  EXPECT_FALSE(covered(
      logOfX, [](TermAlgebra& a, Term x, Term) { return log(a, a.scale(Rational(-1), x)); }));
  EXPECT_FALSE(covered([](TermAlgebra& a, Term x, Term) { return root(a, x); }, logOfX));
}

TEST(Domain, ConditionsAreComparedMultipliedOut) {
  const Use factored = [](TermAlgebra& a, Term x, Term y) {
    return inverse(a, a.add(c(a, -3), a.mul(x, a.add(x, y))));
  };
  EXPECT_TRUE(covered(factored, [](TermAlgebra& a, Term x, Term y) {
    return inverse(a, a.add(c(a, -3), a.add(a.mul(x, x), a.mul(x, y))));
  }));
  EXPECT_FALSE(covered(factored, [](TermAlgebra& a, Term x, Term y) {
    return inverse(a, a.add(c(a, -3), a.add(a.mul(y, y), a.mul(x, y))));
  }));
}

}  // namespace
}  // namespace shardproof
