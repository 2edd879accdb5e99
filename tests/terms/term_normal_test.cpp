// SPDX-License-Identifier: Apache-2.0
// The rules of the cheap normal form, one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof {
namespace {

using ops::Function;

struct NormalForm : ::testing::Test {
  TermAlgebra a;
  Term x = a.variable(false), y = a.variable(false), z = a.variable(false), w = a.variable(false);
  Term i = a.variable(true), j = a.variable(true);
  Term inf = a.negativeInfinity();

  Term c(std::int64_t n, std::int64_t d = 1) { return a.constant(Rational(n, d)); }
  Term sum(std::vector<Term> terms, std::vector<std::int64_t> weights = {}) {
    return a.sum(terms, weights);
  }
  Term mul(std::vector<Term> factors) {
    Term result = c(1);
    for (const Term f : factors) result = a.mul(result, f);
    return result;
  }
  Term sub(Term p, Term q) { return a.add(p, a.scale(-1, q)); }
  Term inv(Term t) { return a.power(t, -2); }
  Term sqrt(Term t) { return a.power(t, 1); }
  Term f(Function g, std::vector<Term> arguments, std::vector<std::int64_t> params = {}) {
    return a.apply(g, params, arguments);
  }
  std::string show(Term t) { return a.toString(t, {"x", "y", "z", "w", "i", "j"}); }
};

TEST_F(NormalForm, SumsAreFlatSortedAndMerged) {
  EXPECT_EQ(a.add(x, y), a.add(y, x));
  EXPECT_EQ(a.add(a.add(x, y), z), a.add(x, a.add(y, z)));
  EXPECT_EQ(sum({x, y, x}), sum({x, y}, {2, 1}));
  EXPECT_EQ(sub(a.add(x, y), y), x);
  EXPECT_TRUE(a.isZero(sub(x, x)));
  EXPECT_EQ(a.add(a.add(x, c(1, 2)), a.add(y, c(-1, 2))), a.add(x, y));
  EXPECT_EQ(a.add(x, c(0)), x);
  EXPECT_EQ(sum({}), c(0));
  EXPECT_EQ(sum({c(1), c(2)}), c(3));
  EXPECT_EQ(sum({x, y}, {0, 1}), y);
  EXPECT_EQ(a.kind(sum({x, c(3)})), TermKind::kSum);
  EXPECT_EQ(a.constantValue(sum({x, c(3)})), Rational(3));
}

TEST_F(NormalForm, ScalesMoveThroughSums) {
  EXPECT_EQ(a.scale(Rational(1, 8), sum({x, y}, {8, 8})), a.add(x, y));
  EXPECT_EQ(a.scale(2, sum({x, a.scale(Rational(1, 2), y), c(1)})), sum({x, y, c(2)}, {2, 1, 1}));
  EXPECT_EQ(a.scale(0, x), c(0));
  EXPECT_EQ(a.scale(Rational(1, 3), a.scale(3, x)), x);
  EXPECT_EQ(a.mul(c(2), x), a.scale(2, x));
}

TEST_F(NormalForm, LongSumsInAnyOrder) {
  std::vector<Term> terms;
  std::vector<std::int64_t> weights;
  for (int k = 0; k < 5000; ++k) {
    terms.push_back(a.variable(false));
    weights.push_back(k % 7 + 1);
  }
  const Term whole = a.sum(terms, weights);
  std::vector<std::size_t> order(terms.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<Term> parts;
  for (std::size_t k = 0; k < order.size(); k += 50) {
    std::vector<Term> t;
    std::vector<std::int64_t> v;
    for (std::size_t m = k; m < k + 50; ++m) {
      t.push_back(terms[order[m]]);
      v.push_back(weights[order[m]]);
    }
    parts.push_back(a.sum(t, v));
  }
  EXPECT_EQ(sum(parts), whole);
  EXPECT_EQ(a.parts(whole).size(), 5000U);
}

TEST_F(NormalForm, ProductsAreFlatSortedAndMerged) {
  EXPECT_EQ(a.mul(x, y), a.mul(y, x));
  EXPECT_EQ(a.mul(a.mul(x, y), z), a.mul(x, a.mul(y, z)));
  EXPECT_EQ(a.mul(x, x), a.power(x, 4));
  EXPECT_EQ(a.mul(x, inv(x)), c(1));
  EXPECT_EQ(mul({x, y, inv(x)}), y);
  EXPECT_EQ(a.power(a.mul(x, y), -4), a.mul(a.power(x, -4), a.power(y, -4)));
  EXPECT_EQ(inv(inv(x)), x);
  EXPECT_EQ(a.power(x, 0), c(1));
  EXPECT_EQ(a.power(x, 2), x);
  EXPECT_EQ(a.mul(c(0), x), c(0));
  EXPECT_EQ(a.mul(x, c(1)), x);
}

TEST_F(NormalForm, CoefficientsLeaveProducts) {
  EXPECT_EQ(a.mul(a.scale(2, x), a.scale(Rational(1, 3), y)), a.scale(Rational(2, 3), a.mul(x, y)));
  EXPECT_EQ(a.power(a.scale(2, x), 6), a.scale(8, a.power(x, 6)));
  EXPECT_EQ(a.power(a.scale(2, x), -4), a.scale(Rational(1, 4), a.power(x, -4)));
  EXPECT_EQ(a.mul(x, a.scale(Rational(1, 8), sum({y, z}, {8, 8}))), a.mul(x, a.add(y, z)));
  EXPECT_EQ(a.mul(x, sum({y, z}, {8, 8})), a.scale(8, a.mul(x, a.add(y, z))));
  EXPECT_EQ(a.mul(x, sub(y, z)), a.scale(-1, a.mul(x, sub(z, y))));
  EXPECT_EQ(inv(sum({y, z}, {2, 2})), a.scale(Rational(1, 2), inv(a.add(y, z))));
}

TEST_F(NormalForm, ProductsAreNeverDistributed) {
  EXPECT_NE(a.mul(x, a.add(y, z)), a.add(a.mul(x, y), a.mul(x, z)));
  EXPECT_EQ(a.kind(a.mul(x, a.add(y, z))), TermKind::kProduct);
}

TEST_F(NormalForm, CommonMonomialsLeaveFactors) {
  const Term s = a.add(a.mul(x, y), a.mul(x, z));
  EXPECT_EQ(a.mul(w, s), mul({w, x, a.add(y, z)}));
  EXPECT_EQ(inv(s), a.mul(inv(x), inv(a.add(y, z))));
  EXPECT_EQ(a.mul(s, inv(a.add(y, z))), x);
  // The divided entries are sums of their own and meet again.
  const Term t = a.add(a.mul(x, a.add(y, z)), a.mul(x, w));
  EXPECT_EQ(inv(t), a.mul(inv(x), inv(sum({y, z, w}))));
  const Term u = sub(a.mul(x, a.add(y, z)), a.mul(x, z));
  EXPECT_EQ(inv(u), inv(a.mul(x, y)));
  EXPECT_THROW(inv(sub(u, a.mul(x, y))), Unsupported) << "x(y+z) - xz - xy is zero";
  EXPECT_TRUE(a.isZero(a.mul(w, sub(u, a.mul(x, y)))));
  // A constant part has nothing in common with anything.
  EXPECT_EQ(a.kind(inv(a.add(x, c(1)))), TermKind::kProduct);
}

TEST_F(NormalForm, ExponentialsOfSumsSplit) {
  EXPECT_EQ(a.exp(a.add(x, y)), a.mul(a.exp(x), a.exp(y)));
  EXPECT_EQ(a.exp(a.scale(2, x)), a.power(a.exp(x), 4));
  EXPECT_EQ(a.exp(a.scale(Rational(1, 2), x)), sqrt(a.exp(x)));
  EXPECT_EQ(a.mul(a.exp(a.scale(Rational(1, 2), x)), a.exp(a.scale(Rational(-1, 2), x))), c(1));
  EXPECT_EQ(a.exp(c(0)), c(1));
  EXPECT_EQ(a.exp(inf), c(0));
  EXPECT_EQ(a.mul(a.exp(c(1)), a.exp(c(2))), a.exp(c(3)));
  EXPECT_EQ(a.mul(a.exp(sub(x, c(1))), a.exp(c(1))), a.exp(x));
}

TEST_F(NormalForm, SoftmaxDoesNotDependOnTheMaximumSubtracted) {
  const auto softmax = [&](Term m) {
    std::vector<Term> e;
    for (const Term t : {x, y, z}) e.push_back(a.exp(sub(t, m)));
    return a.mul(e[1], inv(sum(e)));
  };
  const Term plain = a.mul(a.exp(y), inv(sum({a.exp(x), a.exp(y), a.exp(z)})));
  EXPECT_EQ(softmax(f(Function::kMaximum, {x, y, z})), plain);
  EXPECT_EQ(softmax(f(Function::kMaximum, {x, w})), plain);
  // Masked entries vanish.
  const Term masked = sum({a.exp(a.add(x, inf)), a.exp(y), a.exp(z)});
  EXPECT_EQ(masked, a.add(a.exp(y), a.exp(z)));
}

TEST_F(NormalForm, LogSumExpDoesNotDependOnTheMaximumSubtracted) {
  const auto logSumExp = [&](Term m) {
    std::vector<Term> e;
    for (const Term t : {x, y, z}) e.push_back(a.exp(sub(t, m)));
    return a.add(f(Function::kLog, {sum(e)}), m);
  };
  const Term plain = f(Function::kLog, {sum({a.exp(x), a.exp(y), a.exp(z)})});
  EXPECT_EQ(logSumExp(f(Function::kMaximum, {x, y, z})), plain);
  EXPECT_EQ(logSumExp(w), plain);
  // Two halves merged by their logarithms.
  const Term left = f(Function::kLog, {a.add(a.exp(x), a.exp(y))});
  EXPECT_EQ(f(Function::kLog, {a.add(a.exp(left), a.exp(z))}), plain);
}

TEST_F(NormalForm, Logarithms) {
  const auto log = [&](Term t) { return f(Function::kLog, {t}); };
  EXPECT_EQ(log(c(1)), c(0));
  EXPECT_EQ(log(c(1, 3)), a.scale(-1, log(c(3))));
  EXPECT_EQ(log(a.exp(x)), x);
  EXPECT_EQ(a.exp(log(x)), x);
  EXPECT_EQ(a.exp(a.scale(-2, log(x))), a.power(x, -4));
  EXPECT_EQ(a.power(a.exp(a.scale(Rational(1, 2), log(x))), 4), x);
  EXPECT_EQ(log(a.scale(3, x)), a.add(log(c(3)), log(x)));
  EXPECT_EQ(log(a.scale(-1, x)), log(a.scale(-1, x)));
  EXPECT_NE(log(a.mul(x, y)), a.add(log(x), log(y))) << "both may be negative";
  EXPECT_NE(log(a.mul(x, x)), a.scale(2, log(x)));
  EXPECT_EQ(log(sum({x, y}, {-2, -2})), a.add(log(c(2)), log(a.scale(-1, a.add(x, y)))));
  EXPECT_THROW(log(c(0)), Unsupported);
  EXPECT_THROW(log(c(-2)), Unsupported);
  EXPECT_THROW(log(a.scale(-1, a.exp(x))), Unsupported);
  EXPECT_THROW(log(inf), Unsupported);
}

TEST_F(NormalForm, SquareRoots) {
  EXPECT_EQ(sqrt(c(9, 4)), c(3, 2));
  EXPECT_EQ(a.power(c(4), -1), c(1, 2));
  EXPECT_EQ(a.power(c(4), 3), c(8));
  EXPECT_EQ(a.mul(sqrt(x), sqrt(x)), x);
  EXPECT_EQ(a.power(sqrt(x), 6), a.mul(x, sqrt(x)));
  EXPECT_EQ(a.power(x, -1), a.mul(inv(x), sqrt(x)));
  EXPECT_EQ(a.mul(a.power(x, -1), sqrt(x)), c(1));
  EXPECT_EQ(a.power(a.power(x, -1), 4), inv(x));
  EXPECT_EQ(inv(sqrt(x)), a.power(x, -1));
  EXPECT_NE(sqrt(a.mul(x, x)), x) << "x may be negative";
  EXPECT_NE(sqrt(a.mul(x, y)), a.mul(sqrt(x), sqrt(y))) << "both may be negative";
  EXPECT_EQ(sqrt(a.scale(4, x)), a.scale(2, sqrt(x)));
  EXPECT_EQ(sqrt(c(8)), a.scale(2, sqrt(c(2))));
  EXPECT_EQ(a.mul(sqrt(c(2)), sqrt(c(3))), sqrt(c(6)));
  EXPECT_EQ(a.mul(sqrt(c(2)), sqrt(c(2))), c(2));
  EXPECT_EQ(a.mul(sqrt(c(1, 2)), sqrt(c(2))), c(1));
  EXPECT_EQ(sqrt(a.scale(-4, x)), a.scale(2, sqrt(a.scale(-1, x))));
  EXPECT_EQ(a.mul(sqrt(a.scale(-1, x)), sqrt(a.scale(-1, x))), a.scale(-1, x));
  EXPECT_EQ(sqrt(a.mul(a.exp(x), y)), a.mul(a.exp(a.scale(Rational(1, 2), x)), sqrt(y)));
  EXPECT_EQ(sqrt(c(0)), c(0));
  EXPECT_THROW(sqrt(c(-1)), Unsupported);
  EXPECT_THROW(sqrt(inf), Unsupported);
  // A root mean square over a reduced dimension.
  const Term reduced = a.power(
      a.add(a.scale(Rational(1, 8), sum({a.mul(x, x), a.mul(y, y)}, {4, 4})), c(1, 1000)), -1);
  const Term halved =
      a.power(a.add(a.scale(Rational(1, 2), sum({a.mul(x, x), a.mul(y, y)})), c(1, 1000)), -1);
  EXPECT_EQ(reduced, halved);
}

TEST_F(NormalForm, DivisionByZeroIsRefused) {
  EXPECT_THROW(inv(c(0)), Unsupported);
  EXPECT_THROW(inv(sub(x, x)), Unsupported);
  EXPECT_THROW(a.power(c(0), -1), Unsupported);
  EXPECT_EQ(a.power(c(0), 4), c(0));
}

TEST_F(NormalForm, MinusInfinityIsAbsorbedOrRefused) {
  EXPECT_EQ(a.add(x, inf), inf);
  EXPECT_EQ(sum({inf, c(2), inf, y}, {2, 1, 1, -1}), inf);
  EXPECT_EQ(a.scale(Rational(1, 8), inf), inf);
  EXPECT_EQ(a.mul(inf, c(3)), inf);
  EXPECT_FALSE(a.isZero(inf));
  EXPECT_THROW(a.scale(0, inf), Unsupported);
  EXPECT_THROW(a.scale(-1, inf), Unsupported);
  EXPECT_THROW(sum({inf, x}, {-1, 1}), Unsupported);
  EXPECT_THROW(sum({inf, x}, {0, 1}), Unsupported);
  EXPECT_THROW(a.mul(inf, x), Unsupported);
  EXPECT_THROW(a.mul(c(0), inf), Unsupported);
  EXPECT_THROW(a.mul(inf, inf), Unsupported);
  EXPECT_THROW(a.power(inf, 4), Unsupported);
  EXPECT_THROW(f(Function::kSigmoid, {inf}), Unsupported);
  EXPECT_THROW(f(Function::kMinimum, {inf, x}), Unsupported);
  EXPECT_THROW(a.indicator(inf, 0), Unsupported);
  EXPECT_EQ(f(Function::kMaximum, {inf, x}), x);
  EXPECT_EQ(f(Function::kMaximum, {inf, inf}), inf);
}

TEST_F(NormalForm, EntriesOfMasksMayBeInfinite) {
  const Term m = f(Function::kMaskEntry, {}, {0, 1});
  EXPECT_EQ(a.exp(a.add(x, m)), a.mul(a.exp(x), a.exp(m)));
  // exp(m) may be 0, so it stays under the root and the logarithm: sqrt(0 * y) is 0 even where
  // sqrt(y) is not defined.
  EXPECT_EQ(a.kind(sqrt(a.mul(a.exp(m), y))), TermKind::kSqrt);
  const Term inside = f(Function::kLog, {a.mul(a.exp(f(Function::kMaximum, {m, a.add(x, m)})), y)});
  EXPECT_EQ(a.kind(inside), TermKind::kFunction);
}

// 0 times minus infinity has no value, and minus infinity minus itself none either.
TEST_F(NormalForm, EntriesOfMasksNeitherVanishNorCancel) {
  const Term m = f(Function::kMaskEntry, {}, {0, 1});
  EXPECT_EQ(a.mul(m, c(2)), m);
  for (const Term masked : {m, a.add(x, m)}) {
    EXPECT_THROW(a.mul(c(0), masked), Unsupported);
    EXPECT_THROW(a.mul(masked, c(-1)), Unsupported);
    EXPECT_THROW(a.mul(masked, y), Unsupported);
    EXPECT_THROW(a.mul(masked, masked), Unsupported);
    for (const Function g : {Function::kSigmoid, Function::kTanh, Function::kStep, Function::kLog})
      EXPECT_THROW(a.apply(g, {}, std::span(&masked, 1)), Unsupported);
    for (const int halves : {-2, -1, 0, 1, 4}) EXPECT_THROW(a.power(masked, halves), Unsupported);
    EXPECT_EQ(a.power(masked, 2), masked);
    EXPECT_THROW(a.indicator(masked, 0), Unsupported);
  }
}

// Of a position that stands for several the entry with itself is a number; in every factor it has
// to be the same position of the same piece.
TEST_F(NormalForm, TheEntryOfAPositionWithItselfIsANumber) {
  const auto finite = [&](const std::vector<std::int64_t>& params) {
    const Term m = f(Function::kMaskEntry, {}, params);
    return f(Function::kLog, {a.exp(m)}) == m;
  };
  EXPECT_TRUE(finite({3, 1, 3, 1, 0}));
  EXPECT_TRUE(finite({3, 1, 3, 1, 0, 4, 0, 4, 0, 0}));
  EXPECT_FALSE(finite({3, 1, 3, 2, 0}));                 // another offset
  EXPECT_FALSE(finite({3, 1, 2, 1, 0}));                 // another class
  EXPECT_FALSE(finite({3, 1, 3, 1, 1}));                 // another piece
  EXPECT_FALSE(finite({3, 1, 3, 1, 0, 4, 0, 4, 1, 0}));  // in the inner factor only
  EXPECT_FALSE(finite({}));
  EXPECT_FALSE(finite({0, 1}));
  EXPECT_FALSE(finite({3, 1, 3, 1, 0, 4}));
}

TEST_F(NormalForm, MasksAddedToThemselvesAreTheSameMasks) {
  const Term m = f(Function::kMaskEntry, {}, {0, 1}), other = f(Function::kMaskEntry, {}, {1, 2});
  EXPECT_EQ(a.add(m, m), m);
  EXPECT_EQ(a.scale(Rational(1, 2), m), m);
  EXPECT_EQ(a.add(a.add(x, m), m), a.add(x, m));
  EXPECT_EQ(a.scale(3, a.add(x, m)), a.add(a.scale(3, x), m));
  EXPECT_NE(a.add(m, other), m);
  // It may be finite: what is added to it counts.
  EXPECT_NE(a.add(a.add(x, m), x), a.add(x, m));
}

TEST_F(NormalForm, Indicators) {
  const Term is2 = a.indicator(i, 2);
  EXPECT_EQ(a.indicator(a.add(i, c(3)), 5), is2);
  EXPECT_EQ(a.indicator(sub(i, c(3)), -1), is2);
  EXPECT_EQ(a.indicator(a.scale(2, i), 4), is2);
  EXPECT_EQ(a.indicator(a.scale(2, i), 3), c(0));
  EXPECT_EQ(a.indicator(a.add(i, c(1, 2)), 3), c(0));
  EXPECT_THROW(a.indicator(a.add(x, c(1, 2)), 3), Unsupported);
  EXPECT_EQ(a.indicator(c(2), 2), c(1));
  EXPECT_EQ(a.indicator(c(3), 2), c(0));
  EXPECT_EQ(a.indicator(c(1, 2), 0), c(0));
  EXPECT_EQ(a.mul(is2, is2), is2);
  EXPECT_EQ(a.power(is2, 6), is2);
  EXPECT_EQ(a.mul(a.mul(is2, x), a.mul(is2, y)), mul({is2, x, y}));
  EXPECT_EQ(a.mul(is2, a.indicator(i, 3)), c(0));
  EXPECT_EQ(mul({is2, x, a.indicator(i, 3)}), c(0));
  EXPECT_FALSE(a.isZero(a.mul(is2, a.indicator(j, 3))));
  EXPECT_EQ(a.mul(is2, inv(is2)), c(1));  // where 1 / [i = 2] exists
  EXPECT_EQ(a.power(is2, -6), inv(is2));
  EXPECT_EQ(a.indicator(sum({i, j, c(2)}), 5), a.indicator(a.add(i, j), 3));
  EXPECT_THROW(a.indicator(a.add(i, a.constant(Rational::parse("1e30"))), 0), Unsupported);
  const Term g = f(Function::kGateChoice, {x, y}, {0, 1, 1, 1, 0});
  EXPECT_EQ(a.indicator(a.add(g, c(1)), 1), a.indicator(g, 0));
  EXPECT_EQ(a.indicator(a.add(g, c(1, 2)), 1), c(0));
}

TEST_F(NormalForm, OpaqueFunctions) {
  EXPECT_EQ(f(Function::kMaximum, {x, y, x}), f(Function::kMaximum, {y, x}));
  EXPECT_EQ(f(Function::kMaximum, {f(Function::kMaximum, {x, z}), y}),
            f(Function::kMaximum, {x, y, z}));
  EXPECT_EQ(f(Function::kMaximum, {x}), x);
  EXPECT_EQ(f(Function::kMaximum, {c(1), x, c(2)}), f(Function::kMaximum, {x, c(2)}));
  EXPECT_EQ(f(Function::kMinimum, {c(1), c(-2)}), c(-2));
  EXPECT_NE(f(Function::kMaximum, {x, y}), f(Function::kMinimum, {x, y}));
  EXPECT_NE(f(Function::kMinimum, {f(Function::kMaximum, {x, z}), y}),
            f(Function::kMinimum, {x, y, z}));
  EXPECT_EQ(f(Function::kStep, {c(2)}), c(1));
  EXPECT_EQ(f(Function::kStep, {c(0)}), c(0));
  EXPECT_EQ(a.mul(f(Function::kStep, {x}), f(Function::kStep, {x})), f(Function::kStep, {x}));
  EXPECT_EQ(f(Function::kSigmoid, {c(0)}), c(1, 2));
  EXPECT_EQ(f(Function::kTanh, {c(0)}), c(0));
  EXPECT_EQ(a.kind(f(Function::kSigmoid, {c(1)})), TermKind::kFunction);
  EXPECT_EQ(f(Function::kSigmoid, {a.add(x, y)}), f(Function::kSigmoid, {a.add(y, x)}));
  EXPECT_NE(f(Function::kSigmoid, {x}), f(Function::kTanh, {x}));
  EXPECT_NE(f(Function::kGateChoice, {x, y}, {0, 1, 1, 1, 0}),
            f(Function::kGateChoice, {y, x}, {0, 1, 1, 1, 0}));
  EXPECT_NE(f(Function::kGateChoice, {x, y}, {0, 2, 1, 1, 0}),
            f(Function::kGateChoice, {x, y}, {1, 2, 1, 1, 0}));
  EXPECT_NE(f(Function::kDropoutMask, {}, {1, 2}), f(Function::kDropoutMask, {}, {1, 2, 0}));
  EXPECT_EQ(a.parameters(f(Function::kDropoutMask, {}, {1, -2})),
            (std::vector<std::int64_t>{1, -2}));
}

TEST_F(NormalForm, Inspection) {
  const Term t = sum({x, a.mul(x, y), c(5)}, {2, 3, 1});
  ASSERT_EQ(a.parts(t).size(), 2U);
  EXPECT_EQ(a.constantValue(t), Rational(5));
  EXPECT_EQ(a.parts(t)[0].term, x);
  EXPECT_EQ(a.parts(t)[0].factor, Rational(2));
  const Term p = a.mul(x, a.power(y, -4));
  EXPECT_EQ(a.parts(p)[1].factor, Rational(-2));
  EXPECT_EQ(a.arguments(f(Function::kSigmoid, {x})), std::vector<Term>{x});
  EXPECT_EQ(a.arguments(a.exp(x)), std::vector<Term>{x});
  EXPECT_EQ(a.parameters(a.indicator(i, -7)), std::vector<std::int64_t>{-7});
  EXPECT_EQ(a.variableCount(), 6U);
  EXPECT_TRUE(a.variableIsInteger(a.variableIndex(i)));
  EXPECT_FALSE(a.variableIsInteger(a.variableIndex(w)));
}

TEST_F(NormalForm, Rendering) {
  const Term xy = a.mul(x, y);  // the order of a sum is that of creation
  EXPECT_EQ(show(a.add(xy, a.scale(Rational(1, 2), a.exp(z)))), "x*y + 1/2*exp(z)");
  EXPECT_EQ(show(sub(c(1), x)), "-x + 1");
  EXPECT_EQ(show(a.mul(x, inv(a.add(y, c(1))))), "x*(y + 1)^-1");
  EXPECT_EQ(show(a.indicator(i, 3)), "[i = 3]");
  EXPECT_EQ(show(a.exp(a.scale(Rational(1, 2), x))), "exp(x)^(1/2)");
  EXPECT_EQ(show(f(Function::kDropoutMask, {}, {1, 2})), "dropout_mask<1,2>()");
  EXPECT_EQ(show(f(Function::kMaximum, {x, y})), "max(x, y)");
  EXPECT_EQ(show(inf), "-inf");
  std::vector<Term> many;
  for (int k = 0; k < 1000; ++k) many.push_back(a.variable(false));
  const std::string cut = a.toString(sum(many), {}, 50);
  EXPECT_EQ(cut.size(), 53U);
  EXPECT_EQ(cut.substr(50), "...");
}

TEST_F(NormalForm, BigCoefficientsStayExact) {
  const Rational tiny = Rational::parse("1e-30");
  EXPECT_EQ(a.scale(tiny.inverse(), a.scale(tiny, x)), x);
  EXPECT_EQ(sum({a.scale(Rational(INT64_MAX), x), x}),
            a.scale(Rational::parse("9223372036854775808"), x));
  EXPECT_EQ(a.power(c(2), 200), a.constant(Rational(2).pow(100)));
  EXPECT_THROW(a.power(c(3), 2'000'000'000), Unsupported);
}

// relu(t) > 0 exactly where t > 0, and what a step multiplies goes with it; other factors stay.
TEST_F(NormalForm, AStepOfWhatAStepMultiplies) {
  const auto step = [&](Term t) { return f(Function::kStep, {t}); };
  const auto relu = [&](Term t) { return a.mul(t, step(t)); };
  for (const Term t : {x, a.add(x, y), sum({x, y}, {3, 6}), sub(a.mul(x, y), z), mul({x, y, y}),
                       a.add(x, c(1)), a.mul(inv(x), y)})
    EXPECT_EQ(step(relu(t)), step(t)) << show(t);
  EXPECT_EQ(relu(relu(x)), relu(x));
  EXPECT_EQ(step(a.scale(2, relu(sub(x, y)))), a.mul(step(sub(x, y)), step(a.scale(2, sub(x, y)))));
  EXPECT_EQ(step(a.add(a.mul(step(x), y), a.mul(step(x), z))), a.mul(step(x), step(a.add(y, z))));
  // No rule where the step is not in all of it.
  EXPECT_NE(step(a.add(relu(x), y)), a.mul(step(x), step(a.add(x, y))));
  EXPECT_NE(step(a.add(relu(x), c(1))), step(x));
  EXPECT_NE(step(a.scale(-1, relu(x))), step(x));
  EXPECT_NE(step(a.mul(step(x), y)), step(x));
  EXPECT_NE(step(a.mul(step(x), y)), step(y));
}

TEST(TermStore, StopsAtTheLimit) {
  TermAlgebra a(TermAlgebra::Mode::kNormalized, 100);
  const Term x = a.variable(false);
  const Term y = a.variable(false);
  const Term xy = a.mul(x, y);
  try {
    for (int k = 0; k < 1000; ++k) a.add(x, a.constant(Rational(k + 2)));
    FAIL() << "the limit was not kept";
  } catch (const Unsupported& e) {
    EXPECT_NE(std::string(e.what()).find("memory"), std::string::npos);
  }
  EXPECT_LE(a.termCount(), 100U);
  EXPECT_EQ(a.mul(y, x), xy) << "what exists is still found";
  EXPECT_THROW(a.variable(false), Unsupported);
}

TEST(TermStore, MovesAndStaysSmall) {
  TermAlgebra a;
  std::vector<Term> v;
  for (int k = 0; k < 1000; ++k) v.push_back(a.variable(false));
  for (int k = 0; k < 1000; ++k) {
    for (int m = 0; m < 500; ++m)
      a.mul(v[static_cast<std::size_t>(k)], v[static_cast<std::size_t>(m)]);
  }
  EXPECT_LT(static_cast<double>(a.memoryBytes()) / static_cast<double>(a.termCount()), 60.0);
  const Term t = a.mul(v[3], v[700]);
  TermAlgebra b = std::move(a);
  EXPECT_EQ(b.mul(v[700], v[3]), t);
}

TEST(RawTerms, KeepTheirStructure) {
  TermAlgebra a(TermAlgebra::Mode::kRaw);
  const Term x = a.variable(false);
  const Term y = a.variable(false);
  EXPECT_NE(a.add(x, y), a.add(y, x));
  EXPECT_NE(a.mul(x, y), a.mul(y, x));
  EXPECT_EQ(a.add(x, y), a.add(x, y));
  EXPECT_EQ(a.kind(a.exp(a.add(x, y))), TermKind::kExp);
  EXPECT_EQ(a.add(a.constant(1), a.constant(2)), a.constant(3));
  EXPECT_EQ(a.power(a.constant(Rational(4, 9)), -1), a.constant(Rational(3, 2)));
  EXPECT_EQ(a.kind(a.power(a.constant(2), 1)), TermKind::kSqrt);
  const Term r = a.power(x, -1);
  ASSERT_EQ(a.kind(r), TermKind::kProduct);
  EXPECT_EQ(a.kind(a.parts(r)[0].term), TermKind::kSqrt);
  EXPECT_EQ(a.parts(r)[0].factor, Rational(-1));
  EXPECT_EQ(a.parts(a.sum(std::vector<Term>{x, x}, {})).size(), 2U);
  EXPECT_EQ(a.add(x, a.negativeInfinity()), a.negativeInfinity());
  EXPECT_TRUE(a.isZero(a.exp(a.negativeInfinity())));
  EXPECT_EQ(a.apply(Function::kMaximum, {}, std::vector<Term>{x, a.negativeInfinity()}), x);
  EXPECT_EQ(a.apply(Function::kMaximum, {}, std::vector<Term>{a.constant(3), a.constant(7)}),
            a.constant(7));
  EXPECT_EQ(a.apply(Function::kStep, {}, std::vector<Term>{a.constant(3)}), a.constant(1));
  EXPECT_THROW(a.power(a.constant(0), -2), Unsupported);
  EXPECT_THROW(a.power(a.constant(-1), 1), Unsupported);
  EXPECT_EQ(a.power(a.constant(0), 1), a.constant(0));
}

}  // namespace
}  // namespace shardproof
