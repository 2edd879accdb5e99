// SPDX-License-Identifier: Apache-2.0
// Doubles and fingerprints, and the true functions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

using ops::Function;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double value(Function f, std::vector<double> arguments, std::vector<std::int64_t> params = {}) {
  return ops::evaluate(f, params, arguments);
}

TEST(Functions, TrueValues) {
  EXPECT_DOUBLE_EQ(value(Function::kSigmoid, {0.3}), 1 / (1 + std::exp(-0.3)));
  EXPECT_EQ(value(Function::kSigmoid, {-1000}), 0);
  EXPECT_EQ(value(Function::kSigmoid, {1000}), 1);
  EXPECT_DOUBLE_EQ(value(Function::kTanh, {0.3}), std::tanh(0.3));
  EXPECT_DOUBLE_EQ(value(Function::kLog, {0.3}), std::log(0.3));
  EXPECT_DOUBLE_EQ(value(Function::kNormalCdf, {0}), 0.5);
  EXPECT_NEAR(value(Function::kNormalCdf, {1.96}), 0.9750021048517795, 1e-15);
  EXPECT_NEAR(value(Function::kNormalPdf, {1}), 0.24197072451914337, 1e-16);
  EXPECT_DOUBLE_EQ(value(Function::kSqrtTwoOverPi, {}), std::sqrt(2 / M_PI));
  EXPECT_EQ(value(Function::kStep, {0}), 0);
  EXPECT_EQ(value(Function::kStep, {1e-300}), 1);
  EXPECT_EQ(value(Function::kMaximum, {1, 3, 2}), 3);
  EXPECT_EQ(value(Function::kMinimum, {1, -3, 2}), -3);
  EXPECT_EQ(value(Function::kMaskEntry, {}, {0, 1, 0, 0, 0}), 0);  // offsets 1 and 0 in one piece
  EXPECT_EQ(value(Function::kMaskEntry, {}, {0, 0, 0, 1, 0}),
            -std::numeric_limits<double>::infinity());
  EXPECT_THROW(value(Function::kSigmoid, {1, 2}), std::invalid_argument);
  for (const Function f :
       {Function::kStep, Function::kMaximum, Function::kMinimum, Function::kSigmoid}) {
    EXPECT_TRUE(std::isnan(value(f, {std::nan("")}))) << ops::name(f);
  }
}

TEST(Functions, DropoutMasksAreFixedBits) {
  int kept = 0;
  for (int k = 0; k < 1000; ++k) {
    const double bit = value(Function::kDropoutMask, {}, {42, k});
    EXPECT_TRUE(bit == 0 || bit == 1);
    EXPECT_EQ(bit, value(Function::kDropoutMask, {}, {42, k}));
    kept += bit == 1;
  }
  EXPECT_GT(kept, 400);
  EXPECT_LT(kept, 600);
}

TEST(Functions, ChoiceOfExperts) {
  const std::vector<double> scores{0.1, 0.9, 0.5, 0.9, 0.3, 0.2, 0.8, 0.7};
  const auto choose = [&](std::int64_t slot, std::int64_t topk, std::int64_t groups,
                          std::int64_t topkGroups, std::int64_t two) {
    return value(Function::kGateChoice, scores, {slot, topk, groups, topkGroups, two});
  };
  // Equal scores keep their order.
  EXPECT_EQ(choose(0, 3, 1, 1, 0), 1);
  EXPECT_EQ(choose(1, 3, 1, 1, 0), 3);
  EXPECT_EQ(choose(2, 3, 1, 1, 0), 6);
  // Groups {0,1} {2,3} {4,5} {6,7} by maximum: 0.9 0.9 0.3 0.8.
  EXPECT_EQ(choose(0, 2, 4, 1, 0), 1);
  EXPECT_EQ(choose(1, 2, 4, 1, 0), 0);
  EXPECT_EQ(choose(2, 3, 4, 2, 0), 2);
  // By the sum of the two best: 1.0 1.4 0.5 1.5.
  EXPECT_EQ(choose(0, 2, 4, 1, 1), 6);
  EXPECT_EQ(choose(1, 2, 4, 1, 1), 7);
  EXPECT_EQ(choose(0, 2, 4, 2, 1), 3);
  EXPECT_THROW(choose(0, 3, 4, 1, 0), std::invalid_argument);
  EXPECT_THROW(choose(2, 2, 1, 1, 0), std::invalid_argument);
  EXPECT_THROW(choose(0, 2, 3, 1, 0), std::invalid_argument);
}

double dotOf(DoubleAlgebra& algebra, const std::vector<std::vector<double>>& rows) {
  std::vector<const double*> pointers;
  for (const auto& row : rows) pointers.push_back(row.data());
  return algebra.dot(std::span<const double* const>(pointers), rows[0].size());
}

TEST(Doubles, SumsOfProductsAreThoseOfTheirTerms) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> draw(-1, 1);
  for (std::size_t factors = 1; factors <= 4; ++factors) {
    for (const std::size_t n : {0, 1, 3, 4, 5, 130}) {
      std::vector<std::vector<double>> rows(factors, std::vector<double>(n));
      for (auto& row : rows) {
        for (double& x : row) x = draw(random);
      }
      DoubleAlgebra algebra;
      std::vector<double> terms(n, 1);
      for (std::size_t i = 0; i < n; ++i) {
        for (const auto& row : rows) terms[i] = algebra.mul(terms[i], row[i]);
      }
      EXPECT_NEAR(dotOf(algebra, rows), algebra.sum(terms, {}), 1e-15 * static_cast<double>(n))
          << factors << " factors, " << n << " terms";
    }
  }
  DoubleAlgebra algebra;
  EXPECT_EQ(dotOf(algebra, {{1e17, 1, -1e17}, {1, 1, 1}}), 1);  // compensated
  EXPECT_EQ(dotOf(algebra, {{1e17, 0, 0, 0, 1, -1e17}, {1, 1, 1, 1, 1, 1}}),
            1);  // also across lanes
  EXPECT_TRUE(std::isnan(dotOf(algebra, {{0, 2}, {-kInfinity, 3}})));
  EXPECT_EQ(dotOf(algebra, {{1, 2}, {-kInfinity, 3}}), -kInfinity);
  EXPECT_TRUE(std::isnan(dotOf(algebra, {{0, 2}, {std::nan(""), 3}})));
}

// An integer that only rounding made must not pass for an exact one: log(exp(1e-20)) is 1e-20 and
// not 0, and what comes of that 0 is no counterexample.
TEST(Doubles, NoiseChangesIntegersThatRoundingMade) {
  const auto moves = [](auto&& value) {
    DoubleAlgebra a(3), b(5);
    return value(a) != value(b);
  };
  EXPECT_TRUE(moves([](auto& d) { return d.exp(1e-20); }));
  EXPECT_TRUE(moves([](auto& d) { return d.add(1, 1e-20); }));
  EXPECT_TRUE(moves([](auto& d) { return d.mul(0.1, 10); }));
  EXPECT_TRUE(moves([](auto& d) { return d.power(1 + 0x1p-52, 1); }));
  EXPECT_TRUE(moves([](auto& d) { return d.power(1 + 0x1p-52, -1); }));
  EXPECT_TRUE(moves([](auto& d) { return d.sum(std::vector<double>{1, 1e-20, -0x1p-70}, {}); }));
  EXPECT_TRUE(moves([](auto& d) { return dotOf(d, {{1, 1e-20}, {1, 1}}); }));
  EXPECT_TRUE(moves([](auto& d) { return dotOf(d, {{1 + 0x1p-52}, {1 - 0x1p-52}}); }));
  EXPECT_TRUE(moves([](auto& d) { return d.apply(Function::kTanh, {}, std::vector<double>{40}); }));
  const auto stays = [&](auto&& value) { return !moves(value); };
  EXPECT_TRUE(stays([](auto& d) { return d.exp(0); }));
  EXPECT_TRUE(stays([](auto& d) { return d.add(1, 2); }));
  EXPECT_TRUE(stays([](auto& d) { return d.add(0.5, 0.5); }));
  EXPECT_TRUE(stays([](auto& d) { return d.mul(3, 5); }));
  EXPECT_TRUE(stays([](auto& d) { return d.mul(0.5, 4); }));
  EXPECT_TRUE(stays([](auto& d) { return d.power(9, 1); }));
  EXPECT_TRUE(stays([](auto& d) { return d.power(3, 4); }));
  EXPECT_TRUE(stays([](auto& d) { return d.power(0.25, -2); }));
  EXPECT_TRUE(stays([](auto& d) { return d.sum(std::vector<double>{1, 7, -3}, {}); }));
  EXPECT_TRUE(stays([](auto& d) { return dotOf(d, {{2, 3}, {5, 7}}); }));
  EXPECT_TRUE(
      stays([](auto& d) { return d.apply(Function::kStep, {}, std::vector<double>{0.5}); }));
}

TEST(Doubles, NoiseOfASumOfProductsIsThatOfItsTerms) {
  std::vector<double> a(100), b(100, 1.25);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = (i % 2 == 0 ? 1 : -1) * (1 + static_cast<double>(i) / 1024);
  double together = 0, apart = 0;
  DoubleAlgebra plain;
  const double exact = dotOf(plain, {a, b});
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    DoubleAlgebra first(seed * 77), second(seed * 99);
    together += std::pow(dotOf(first, {a, b}) - exact, 2);
    std::vector<double> terms;
    for (std::size_t i = 0; i < a.size(); ++i) terms.push_back(second.mul(a[i], b[i]));
    apart += std::pow(second.sum(terms, {}) - exact, 2);
  }
  EXPECT_GT(together, 0.5 * apart);
  EXPECT_LT(together, 2 * apart);
  DoubleAlgebra noisy(5);
  EXPECT_EQ(dotOf(noisy, {{3, 4}, {5, 6}}), 39);  // integers are exact
}

// sin^2 + cos^2 is 1 but for rounding: no choice is made by that.
TEST(Doubles, AnIndicatorOfWhatMayBeTheValueButForRounding) {
  DoubleAlgebra d;
  EXPECT_EQ(d.indicator(1, 1), 1);
  EXPECT_EQ(d.indicator(2, 1), 0);
  EXPECT_EQ(d.indicator(0.999, 1), 0);
  EXPECT_FALSE(d.wavered());
  EXPECT_TRUE(std::isnan(d.indicator(1 + 1e-15, 1)));
  EXPECT_TRUE(std::isnan(d.indicator(1e-17, 0)));
  EXPECT_TRUE(d.wavered());
}

TEST(Doubles, Arithmetic) {
  DoubleAlgebra d;
  const double inf = d.negativeInfinity();
  EXPECT_TRUE(
      std::isnan(d.mul(0, inf)));  // a mask's entry is no number: the model decides nothing there
  EXPECT_TRUE(std::isnan(d.mul(inf, 0)));
  EXPECT_TRUE(std::isnan(d.scale(Rational(0), inf)));
  EXPECT_EQ(d.select(0, inf), 0);  // what a lookup does not look up
  EXPECT_EQ(d.mul(2, inf), -kInfinity);
  EXPECT_TRUE(std::isnan(d.mul(-1, inf)));
  EXPECT_TRUE(std::isnan(d.mul(inf, inf)));
  EXPECT_TRUE(std::isnan(d.power(inf, 4)));
  EXPECT_TRUE(std::isnan(d.power(inf, -2)));
  EXPECT_TRUE(std::isnan(d.mul(0, kInfinity)));
  EXPECT_TRUE(std::isnan(d.mul(0, std::nan(""))));
  EXPECT_EQ(d.add(inf, 1), -kInfinity);
  EXPECT_EQ(d.exp(inf), 0);
  EXPECT_TRUE(std::isnan(d.exp(1e6)));
  EXPECT_EQ(d.sum(std::vector<double>{1, 1e100, 1, -1e100}, {}), 2);
  EXPECT_EQ(d.sum(std::vector<double>{1, inf, 2}, {}), -kInfinity);
  EXPECT_EQ(d.sum(std::vector<double>{1, 2}, std::vector<std::int64_t>{3, 4}), 11);
  EXPECT_EQ(d.power(3, 4), 9);
  EXPECT_EQ(d.power(4, -1), 0.5);
  EXPECT_EQ(d.power(4, 3), 8);
  EXPECT_EQ(d.power(4, -3), 0.125);
  EXPECT_EQ(d.power(2, -6), 0.125);
  EXPECT_EQ(d.power(0, 0), 1);
  EXPECT_TRUE(std::isnan(d.power(0, -2)));
  EXPECT_TRUE(std::isnan(d.power(-1, 1)));
  EXPECT_EQ(d.scale(Rational(1, 8), 4), 0.5);
  EXPECT_EQ(d.indicator(3, 3), 1);
  EXPECT_EQ(d.indicator(3, 2), 0);
  EXPECT_TRUE(std::isnan(d.indicator(std::nan(""), 2)));
}

struct Fingerprints : ::testing::Test {
  ModularAlgebra m;
  using Element = ModularAlgebra::Element;
  Element c(std::int64_t n, std::int64_t d = 1) { return m.constant(Rational(n, d)); }
  Element x{123456789123456789U, false}, y{987654321987654321U, false};
  Element f(Function g, std::vector<Element> arguments, std::vector<std::int64_t> params = {}) {
    return m.apply(g, params, arguments);
  }
};

TEST_F(Fingerprints, Arithmetic) {
  EXPECT_EQ(m.mul(c(1, 3), c(3)), c(1));
  EXPECT_EQ(m.add(c(-1), c(1)), c(0));
  EXPECT_EQ(m.scale(Rational(-1, 8), c(8)), c(-1));
  EXPECT_EQ(m.mul(x, m.power(x, -2)), c(1));
  EXPECT_EQ(m.power(x, 6), m.mul(x, m.mul(x, x)));
  EXPECT_EQ(m.sum(std::vector<Element>{x, y}, std::vector<std::int64_t>{-2, 3}),
            m.add(m.scale(-2, x), m.scale(3, y)));
  EXPECT_EQ(m.mul(m.add(x, y), m.add(x, y)),
            m.sum(std::vector<Element>{m.mul(x, x), m.mul(x, y), m.mul(y, y)},
                  std::vector<std::int64_t>{1, 2, 1}));
  EXPECT_EQ(m.power(m.mul(x, y), 1), m.mul(m.power(x, 1), m.power(y, 1)));
  EXPECT_EQ(m.mul(m.power(x, 1), m.power(x, -1)), c(1));
  EXPECT_EQ(m.power(x, 0), c(1));
  EXPECT_THROW(m.power(c(0), -2), Unsupported);
  EXPECT_THROW(m.constant(Rational(1, static_cast<std::int64_t>(ModularAlgebra::kPrime))),
               Unsupported);
}

TEST_F(Fingerprints, FunctionsAndIndicators) {
  EXPECT_EQ(m.exp(c(0)), c(1));
  EXPECT_EQ(m.exp(m.negativeInfinity()), c(0));
  EXPECT_EQ(m.exp(x), m.exp(x));
  EXPECT_FALSE(m.exp(x) == m.exp(y));
  EXPECT_FALSE(f(Function::kSigmoid, {x}) == f(Function::kTanh, {x}));
  EXPECT_EQ(f(Function::kSigmoid, {c(0)}), c(1, 2));
  EXPECT_EQ(f(Function::kMaximum, {x, y, x}), f(Function::kMaximum, {y, x}));
  EXPECT_EQ(f(Function::kMaximum, {f(Function::kMaximum, {c(3), x}), y}),
            f(Function::kMaximum, {y, c(3), x}));
  EXPECT_EQ(f(Function::kMaximum, {c(-3), c(2)}), c(2));
  EXPECT_EQ(f(Function::kMinimum, {c(-3), c(2)}), c(-3));
  EXPECT_EQ(f(Function::kMaximum, {m.negativeInfinity(), c(2)}), c(2));
  EXPECT_EQ(f(Function::kStep, {c(-1)}), c(0));
  EXPECT_EQ(f(Function::kStep, {c(4)}), c(1));
  EXPECT_EQ(m.indicator(m.add(c(4), c(-2)), 2), c(1));
  EXPECT_EQ(m.indicator(c(-2), -2), c(1));
  EXPECT_EQ(m.indicator(c(3), 2), c(0));
  const Element chosen = f(Function::kGateChoice, {x, y}, {0, 2, 1, 1, 0});
  const Element second = f(Function::kGateChoice, {x, y}, {1, 2, 1, 1, 0});
  EXPECT_LT(chosen.value, 2U);
  EXPECT_LT(second.value, 2U);
  EXPECT_FALSE(chosen == second);
}

TEST_F(Fingerprints, MinusInfinity) {
  const Element inf = m.negativeInfinity();
  EXPECT_EQ(m.add(inf, x), inf);
  EXPECT_EQ(m.scale(2, inf), inf);
  EXPECT_FALSE(m.isZero(inf));
  EXPECT_THROW(m.scale(-1, inf), Unsupported);
  EXPECT_THROW(m.mul(c(0), inf), Unsupported);
  EXPECT_THROW(f(Function::kTanh, {inf}), Unsupported);
}

// What is nothing but rounding has another size with noise: neither its reciprocal nor what follows
// is to be believed. Ordinary numbers, exact powers of two among them, keep theirs.
TEST(DoubleAlgebra, NoiseShowsWhatVanishesWhereItIsDividedBy) {
  const auto wavers = [](std::uint64_t seed, double b, int halves) {
    const auto evaluate = [&](DoubleAlgebra& algebra) {
      const double square = algebra.power(0.1, 4);
      return algebra.power(algebra.add(square, algebra.scale(Rational(-1), algebra.mul(0.1, b))),
                           halves);
    };
    DoubleAlgebra plain, noisy(seed);
    plain.recordDecisions();
    noisy.follow(plain);
    evaluate(plain);
    const double result = evaluate(noisy);
    EXPECT_EQ(std::isnan(result), noisy.wavered());  // what comes of it has no value
    EXPECT_FALSE(noisy.strayed());
    return noisy.wavered();
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_TRUE(wavers(seed, 0.1 + 1e-17, -2));
    EXPECT_FALSE(wavers(seed, 0.05, -2));
    EXPECT_FALSE(wavers(seed, 0.05, 1));
    EXPECT_FALSE(wavers(seed, 0.1, 4));  // a square exists everywhere
    DoubleAlgebra plain, noisy(seed);
    plain.recordDecisions();
    noisy.follow(plain);
    for (const double x : {0.25, 0.5, 1.0, 2.0}) {
      plain.power(plain.mul(x, 0.5), -2);
      noisy.power(noisy.mul(x, 0.5), -2);
    }
    EXPECT_FALSE(noisy.wavered());
    plain.power(3, -2);
    EXPECT_TRUE(noisy.strayed());  // a decision fewer
  }
}

// Neither a maximum nor a change of sign is rounded: the largest element is no larger than itself,
// and what is compared with it decides the same. A sum is.
TEST(DoubleAlgebra, NoiseLeavesWhatIsNotRounded) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    DoubleAlgebra noisy(seed);
    const double a = noisy.mul(0.1, 0.7), b = noisy.mul(-0.3, 0.9);
    for (const Function f : {Function::kMaximum, Function::kMinimum}) {
      const double largest = noisy.apply(f, {}, std::vector<double>{a, b});
      EXPECT_EQ(largest, f == Function::kMaximum ? a : b);
      EXPECT_EQ(noisy.add(largest, noisy.scale(Rational(-1), largest)), 0);
    }
    EXPECT_EQ(noisy.scale(Rational(1), a), a);
    EXPECT_NE(noisy.add(a, b), a + b);
    EXPECT_NE(noisy.scale(Rational(-3), a), -3 * a);
    EXPECT_TRUE(std::isnan(noisy.scale(Rational(-1), noisy.negativeInfinity())));
  }
}

// A tie takes the value of what comes of it, and of nothing else.
TEST(DoubleAlgebra, ATieHasNoValueAndLeavesOthersAlone) {
  const auto evaluate = [](DoubleAlgebra& algebra) {
    const double root = algebra.power(algebra.mul(0.3, algebra.power(0.3, -2)), 1);  // 1, rounded
    const double tie = algebra.add(root, -1);
    const std::vector<double> at{tie}, beside{algebra.add(root, 0.5)};
    return std::pair{algebra.mul(tie, algebra.apply(ops::Function::kStep, {}, at)),
                     algebra.apply(ops::Function::kStep, {}, beside)};
  };
  int ties = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    DoubleAlgebra plain, noisy(seed);
    plain.recordDecisions();
    noisy.follow(plain);
    evaluate(plain);
    const auto [at, beside] = evaluate(noisy);
    ties += std::isnan(at) ? 1 : 0;
    EXPECT_EQ(std::isnan(at), noisy.wavered());
    EXPECT_EQ(beside, 1);
  }
  EXPECT_GT(ties, 0);
}

}  // namespace
}  // namespace shardproof
