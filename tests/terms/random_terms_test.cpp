// SPDX-License-Identifier: Apache-2.0
// Every normal form has the value of what it was made from, wherever that is defined.
#include <gtest/gtest.h>

#include <algorithm>

#include "expression.h"
#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "support/problems.h"
#include "terms/domain.h"

namespace shardproof::test {
namespace {

std::vector<std::optional<Rational>> randomPoint(Generator& g) {
  std::vector<std::optional<Rational>> point;
  for (int i = 0; i < kReals; ++i) point.push_back(Rational(g.below(19) - 9, g.below(5) + 1));
  for (int i = 0; i < kIntegers; ++i) point.push_back(Rational(g.below(4) - 1));
  return point;
}

TEST(RandomTerms, NormalFormsKeepExactValues) {
  Generator g(1);
  int compared = 0;
  int unsupported = 0;
  for (int round = 0; round < randomCases(4000); ++round) {
    TermAlgebra normal;
    TermAlgebra raw(TermAlgebra::Mode::kRaw);
    TermAlgebra fractions(TermAlgebra::Mode::kFractions);
    const std::vector<Term> variables = makeVariables(normal);
    const std::vector<Term> rawVariables = makeVariables(raw);
    const std::vector<Term> fractionVariables = makeVariables(fractions);
    const ExpressionPtr e = g.expression(2 + g.below(4));
    // Each of these may refuse an expression (a division by something that is zero or an
    // indicator); what they do not refuse must be right.
    std::vector<std::pair<const TermAlgebra*, Term>> forms;
    const auto attempt = [&](const TermAlgebra& a, const auto& make) {
      try {
        forms.emplace_back(&a, make());
      } catch (const Unsupported&) {
        ++unsupported;
      }
    };
    attempt(normal, [&] { return build(normal, e, variables); });
    attempt(normal, [&] { return normal.expand(build(normal, e, variables), 3000); });
    attempt(fractions, [&] { return build(fractions, e, fractionVariables); });
    attempt(raw, [&] { return build(raw, e, rawVariables); });
    attempt(raw, [&] { return raw.expand(build(raw, e, rawVariables), 3000); });
    for (int k = 0; k < 6; ++k) {
      const auto point = randomPoint(g);
      ExactAlgebra exact;
      const auto expected = build(exact, e, point);
      if (!expected) continue;
      for (const auto& [algebra, term] : forms) {
        const auto got = exactValue(*algebra, term, point);
        ASSERT_TRUE(got.has_value()) << algebra->toString(term, {}, 2000);
        ASSERT_EQ(*got, *expected) << algebra->toString(term, {}, 2000) << " gives "
                                   << got->toString() << ", not " << expected->toString();
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, randomCases(40000));
  EXPECT_LT(unsupported, 8000);
}

// What is known of signs, and what follows from it (steps and magnitudes), holds at each point.
TEST(RandomTerms, SignsHoldAtEveryPoint) {
  using Op = Expression::Op;
  Generator g(11);
  int known = 0, chosen = 0;
  for (int round = 0; round < randomCases(6000); ++round) {
    TermAlgebra a;
    const std::vector<Term> variables = makeVariables(a);
    const auto stepOf = [&](ExpressionPtr x) {
      auto scaled = Generator::node(Op::kScale, {std::move(x)});
      scaled->number = g.below(3) == 0 ? g.smallNumber() : Rational(g.below(2) == 0 ? 1 : -1);
      return Generator::node(Op::kFunction, {scaled});
    };
    // Bases that a step chooses, to some power; once in a while the step is of something else.
    const auto part = [&] {
      const ExpressionPtr base = g.expression(g.below(3));
      auto power = Generator::node(Op::kPower, {base});
      power->halves = 2 * (1 + g.below(3));
      return Generator::node(Op::kProduct,
                             {power, stepOf(g.below(8) == 0 ? g.expression(1) : base)});
    };
    auto e = Generator::node(Op::kSum, {part(), part()});
    if (g.below(2) == 0) e->operands.push_back(g.expression(1));
    for (std::size_t i = 0; i < e->operands.size(); ++i)
      e->weights.push_back(g.below(5) == 0 ? g.below(7) - 3 : (g.below(2) == 0 ? 1 : -1));
    const ExpressionPtr relu = Generator::node(Op::kProduct, {e, stepOf(e)});
    Term sum, magnitude;
    try {
      sum = build(a, e, variables);
      magnitude = build(a, relu, variables);
    } catch (const Unsupported&) {
      continue;
    }
    Domain domain(a);
    const Sign sign = domain.sign(sum);
    const bool never = domain.neverPositive(sum);
    known += sign != Sign::kUnknown || never ? 1 : 0;
    chosen += magnitude.id == sum.id || a.isZero(magnitude) ? 1 : 0;
    for (int k = 0; k < 12; ++k) {
      const auto point = randomPoint(g);
      ExactAlgebra exact;
      const auto value = build(exact, e, point);
      if (!value) continue;
      EXPECT_TRUE(sign != Sign::kPositive || value->sign() > 0) << describe(e);
      EXPECT_TRUE(sign != Sign::kNonNegative || value->sign() >= 0) << describe(e);
      EXPECT_TRUE(!never || value->sign() <= 0) << describe(e);
      const auto expected = build(exact, relu, point);
      ASSERT_EQ(exactValue(a, magnitude, point), expected) << describe(relu);
    }
  }
  EXPECT_GT(known, randomCases(1000));
  EXPECT_GT(chosen, randomCases(300));
}

// Expressions that are called equal once they are multiplied by their denominators have equal
// values.
TEST(RandomTerms, EqualFractionsHaveEqualValues) {
  Generator g(3);
  int equal = 0, different = 0;
  for (int round = 0; round < randomCases(20000); ++round) {
    TermAlgebra a(TermAlgebra::Mode::kFractions);
    const std::vector<Term> variables = makeVariables(a);
    const ExpressionPtr parts[4] = {g.expression(1 + g.below(2)), g.expression(1 + g.below(2)),
                                    g.expression(1), g.expression(1)};
    // p/q + r/s and (p s + r q)/(q s), or something like it.
    const auto fraction = [&](const ExpressionPtr& over, const ExpressionPtr& under) {
      auto inverse = Generator::node(Expression::Op::kPower, {under});
      inverse->halves = -2;
      return Generator::node(Expression::Op::kProduct, {over, inverse});
    };
    const auto sum = [](std::vector<ExpressionPtr> of) {
      return Generator::node(Expression::Op::kSum, std::move(of));
    };
    const auto product = [](std::vector<ExpressionPtr> of) {
      return Generator::node(Expression::Op::kProduct, std::move(of));
    };
    const bool changed = g.below(2) == 0;
    const ExpressionPtr left = sum({fraction(parts[0], parts[2]), fraction(parts[1], parts[3])});
    const ExpressionPtr right =
        fraction(sum({product({parts[0], parts[3]}), product({parts[1], parts[changed ? 3 : 2]})}),
                 product({parts[2], parts[3]}));
    bool same = false;
    try {
      same = a.equalFractions(build(a, left, variables), build(a, right, variables), 20000);
    } catch (const Unsupported&) {
      continue;
    }
    equal += same ? 1 : 0;
    different += same ? 0 : 1;
    if (!same) continue;
    for (int k = 0; k < 4; ++k) {
      const auto point = randomPoint(g);
      ExactAlgebra exact;
      const auto l = build(exact, left, point), r = build(exact, right, point);
      if (!l || !r) continue;
      ASSERT_EQ(*l, *r) << describe(left) << "\n" << describe(right);
    }
  }
  EXPECT_GT(equal, randomCases(4000));
  EXPECT_GT(different, randomCases(2000));
}

TEST(RandomTerms, NormalFormsKeepTrueFunctions) {
  Generator g(2, true);
  DoubleAlgebra doubles;
  int compared = 0;
  for (int round = 0; round < randomCases(6000); ++round) {
    TermAlgebra normal;
    TermAlgebra raw(TermAlgebra::Mode::kRaw);
    TermAlgebra fractions(TermAlgebra::Mode::kFractions);
    const std::vector<Term> variables = makeVariables(normal);
    const std::vector<Term> rawVariables = makeVariables(raw);
    const std::vector<Term> fractionVariables = makeVariables(fractions);
    const ExpressionPtr e = g.expression(2 + g.below(3));
    std::vector<std::pair<const TermAlgebra*, Term>> forms;
    const auto attempt = [&](const TermAlgebra& a, const auto& make) {
      try {
        forms.emplace_back(&a, make());
      } catch (const Unsupported&) {
      }
    };
    attempt(normal, [&] { return build(normal, e, variables); });
    attempt(normal, [&] { return normal.expand(build(normal, e, variables), 2000); });
    attempt(fractions, [&] { return build(fractions, e, fractionVariables); });
    attempt(raw, [&] { return build(raw, e, rawVariables); });
    attempt(raw, [&] { return raw.expand(build(raw, e, rawVariables), 2000); });
    if (forms.size() < 3) continue;
    for (int k = 0; k < 6; ++k) {
      std::vector<double> point;
      for (int i = 0; i < kReals; ++i)
        point.push_back((g.below(4001) - 2000) / 1000.0 + 1e-4 * M_PI);
      for (int i = 0; i < kIntegers; ++i) point.push_back(g.below(4) - 1);
      const double expected = build(doubles, e, point);
      if (!std::isfinite(expected)) continue;
      for (const auto& [algebra, term] : forms) {
        double largest = 1;
        const double got = doubleValue(*algebra, term, point, largest);
        // Where intermediate values are huge, rounding says nothing; where the direct evaluation
        // went through an infinity (1/0, exp of something large) it was not defined over the reals.
        if (!(largest < 1e5) || std::abs(expected) > 1e5) continue;
        const bool close = std::abs(got - expected) <= 1e-7 * largest * largest;
        if (!close) {
          // A discontinuity (step, indicator) or a root of rounding noise decides at the very edge:
          // not a counterexample unless a point nearby also disagrees.
          std::vector<double> nearby = point;
          for (int i = 0; i < kReals; ++i) nearby[static_cast<std::size_t>(i)] += 1e-3 * M_E;
          double again = 1;
          const double e2 = build(doubles, e, nearby);
          const double g2 = doubleValue(*algebra, term, nearby, again);
          if (std::isfinite(e2) && again < 1e5) {
            ASSERT_NEAR(g2, e2, 1e-7 * again * again)
                << algebra->toString(term, {}, 2000) << "\nfrom " << describe(e);
          }
          continue;
        }
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, randomCases(30000));
}

TEST(RandomTerms, RegroupingEndsInTheSameTerm) {
  Generator g(3, true);
  int compared = 0;
  for (int round = 0; round < randomCases(4000); ++round) {
    TermAlgebra a;
    const std::vector<Term> variables = makeVariables(a);
    const ExpressionPtr e = g.expression(2 + g.below(4));
    const ExpressionPtr f = g.regrouped(e);
    try {
      const Term x = build(a, e, variables);
      const Term y = build(a, f, variables);
      // A product that collapses to a sum on the way may be grouped differently (see primitive):
      // then only the full form agrees.
      if (x != y) {
        EXPECT_EQ(a.expand(x, 20000), a.expand(y, 20000)) << a.toString(x, {}, 1000) << "\n"
                                                          << a.toString(y, {}, 1000);
      } else {
        ++compared;
      }
    } catch (const Unsupported&) {
    }
  }
  EXPECT_GT(compared, randomCases(2500));
}

TEST(RandomTerms, DistributingEndsInTheSameExpansion) {
  Generator g(4);
  int compared = 0;
  int different = 0;
  for (int round = 0; round < randomCases(4000); ++round) {
    TermAlgebra a;
    const std::vector<Term> variables = makeVariables(a);
    // Polynomials and powers of them; sums of different fractions have no common form here.
    ExpressionPtr e = g.expression(2 + g.below(3));
    const auto polynomial = [](const auto& self, const Expression& x) -> bool {
      if (x.op == Expression::Op::kPower && x.halves < 0) return false;
      return std::all_of(x.operands.begin(), x.operands.end(),
                         [&](const ExpressionPtr& o) { return self(self, *o); });
    };
    if (!polynomial(polynomial, *e)) continue;
    const ExpressionPtr f = g.distributed(g.regrouped(e));
    try {
      const Term x = build(a, e, variables);
      const Term y = build(a, f, variables);
      const Term full = a.expand(x, 20000);
      EXPECT_EQ(full, a.expand(y, 20000)) << a.toString(x, {}, 1000) << "\n"
                                          << a.toString(y, {}, 1000);
      EXPECT_EQ(a.expand(full, 20000), full);
      ++compared;
      if (x != y) ++different;
    } catch (const Unsupported&) {
    }
  }
  EXPECT_GT(compared, randomCases(1000));
  EXPECT_GT(different, randomCases(50));
}

TEST(RandomTerms, MutationsAreToldApart) {
  Generator g(5);
  int apart = 0;
  for (int round = 0; round < randomCases(3000); ++round) {
    TermAlgebra a;
    const std::vector<Term> variables = makeVariables(a);
    const ExpressionPtr e = g.expression(2 + g.below(3));
    const ExpressionPtr f = g.mutated(e);
    try {
      const Term x = build(a, e, variables);
      const Term y = build(a, f, variables);
      bool differs = false;
      for (int k = 0; k < 8 && !differs; ++k) {
        const auto point = randomPoint(g);
        ExactAlgebra exact;
        const auto u = build(exact, e, point);
        const auto v = build(exact, f, point);
        differs = u && v && !(*u == *v);
      }
      if (!differs) continue;
      EXPECT_NE(x, y);
      EXPECT_NE(a.expand(x, 20000), a.expand(y, 20000));
      ++apart;
    } catch (const Unsupported&) {
    }
  }
  EXPECT_GT(apart, randomCases(1000));
}

// Without exp, roots and logarithms a fingerprint depends on the value only.
TEST(RandomTerms, FingerprintsOfRegroupedExpressionsAgree) {
  Generator g(6);
  ModularAlgebra m;
  int equal = 0;
  int mutantsApart = 0;
  for (int round = 0; round < randomCases(3000); ++round) {
    const ExpressionPtr e = g.expression(2 + g.below(3));
    std::vector<ModularAlgebra::Element> point;
    for (int i = 0; i < kReals; ++i) point.push_back({g.random() % ModularAlgebra::kPrime, false});
    for (int i = 0; i < kIntegers; ++i) point.push_back(m.constant(Rational(g.below(4) - 1)));
    try {
      const auto x = build(m, e, point);
      EXPECT_EQ(x, build(m, g.distributed(g.regrouped(e)), point));
      ++equal;
      if (!(x == build(m, g.mutated(e), point))) ++mutantsApart;
    } catch (const Unsupported&) {
    }
  }
  EXPECT_GT(equal, randomCases(2000));
  EXPECT_GT(mutantsApart, randomCases(1000));
}

}  // namespace
}  // namespace shardproof::test
