// SPDX-License-Identifier: Apache-2.0
// Mode::kFractions: sums over common denominators, and what is a quotient of exponentials as one.
#include <gtest/gtest.h>

#include <vector>

#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof {
namespace {

using ops::Function;

constexpr std::size_t kBudget = 100'000;

struct FractionsTest : ::testing::Test {
  TermAlgebra a{TermAlgebra::Mode::kFractions};
  Term x = a.variable(false), y = a.variable(false), z = a.variable(false);
  Term one = a.constant(1);

  Term sub(Term p, Term q) { return a.add(p, a.scale(-1, q)); }
  Term neg(Term t) { return a.scale(-1, t); }
  Term div(Term p, Term q) { return a.mul(p, a.power(q, -2)); }
  Term call(Function f, Term t) { return a.apply(f, {}, std::vector<Term>{t}); }
  Term sigmoid(Term t) { return call(Function::kSigmoid, t); }
  Term tanh(Term t) { return call(Function::kTanh, t); }
  Term log(Term t) { return call(Function::kLog, t); }
  bool equal(Term p, Term q) { return a.equalFractions(p, q, kBudget); }

  // Partial results of attention: products with values, and the logarithm of the sum.
  struct Part {
    Term out, lse;
  };
  std::vector<Term> scores, values;
  Part part(std::size_t first, std::size_t last) {
    while (scores.size() < last) {
      scores.push_back(a.variable(false));
      values.push_back(a.variable(false));
    }
    std::vector<Term> weights, weighted;
    for (std::size_t i = first; i < last; ++i) {
      weights.push_back(a.exp(scores[i]));
      weighted.push_back(a.mul(weights.back(), values[i]));
    }
    const Term total = a.sum(weights, {});
    return {div(a.sum(weighted, {}), total), log(total)};
  }
  Part merged(const Part& p, const Part& q) {
    return {sub(p.out, a.mul(sigmoid(sub(q.lse, p.lse)), sub(p.out, q.out))),
            sub(p.lse, log(sigmoid(sub(p.lse, q.lse))))};
  }
  Part mergedByLargest(const Part& p, const Part& q) {
    const Term largest = a.apply(Function::kMaximum, {}, std::vector<Term>{p.lse, q.lse});
    const Term v = a.exp(sub(p.lse, largest)), w = a.exp(sub(q.lse, largest));
    return {div(a.add(a.mul(v, p.out), a.mul(w, q.out)), a.add(v, w)),
            a.add(largest, log(a.add(v, w)))};
  }
};

TEST_F(FractionsTest, SigmoidAndTanhAreQuotients) {
  EXPECT_EQ(sigmoid(x), div(one, a.add(one, a.exp(neg(x)))));
  EXPECT_EQ(sigmoid(x), div(a.exp(x), a.add(one, a.exp(x))));
  EXPECT_EQ(sigmoid(neg(x)), sub(one, sigmoid(x)));
  EXPECT_EQ(tanh(x), sub(a.scale(2, sigmoid(a.scale(2, x))), one));
  EXPECT_EQ(tanh(x), div(sub(a.exp(x), a.exp(neg(x))), a.add(a.exp(x), a.exp(neg(x)))));
  EXPECT_EQ(tanh(neg(x)), neg(tanh(x)));
  EXPECT_NE(sigmoid(neg(x)), sigmoid(x));
  EXPECT_FALSE(equal(sigmoid(neg(x)), sub(a.constant(2), sigmoid(x))));
  EXPECT_FALSE(equal(tanh(x), sub(a.scale(2, sigmoid(x)), one)));
  EXPECT_FALSE(equal(tanh(x), sub(one, a.scale(2, sigmoid(a.scale(2, x))))));
}

TEST_F(FractionsTest, GradientsOfSigmoidAndTanh) {
  const Term s = sigmoid(x);
  const Term written = div(a.exp(neg(x)), a.power(a.add(one, a.exp(neg(x))), 4));
  EXPECT_TRUE(equal(a.mul(s, sub(one, s)), written));
  EXPECT_TRUE(equal(sub(s, a.power(s, 4)), written));
  EXPECT_FALSE(equal(a.mul(s, sub(one, s)), div(a.exp(x), a.add(one, a.exp(neg(x))))));
  EXPECT_TRUE(equal(sub(one, a.power(tanh(x), 4)),
                    a.scale(4, a.power(a.add(a.exp(x), a.exp(neg(x))), -4))));
  EXPECT_FALSE(equal(sub(one, tanh(x)), a.scale(4, a.power(a.add(a.exp(x), a.exp(neg(x))), -4))));
}

TEST_F(FractionsTest, LogarithmsOfPositiveFactors) {
  const auto softplus = [&](Term t) { return log(a.add(one, a.exp(t))); };
  EXPECT_EQ(log(sigmoid(x)), neg(softplus(neg(x))));
  EXPECT_EQ(softplus(x), a.add(x, softplus(neg(x))));
  EXPECT_EQ(log(sub(one, sigmoid(x))), neg(softplus(x)));
  EXPECT_EQ(log(sub(one, sigmoid(x))).condition, 0U);  // 1 - sigmoid(x) is positive
  EXPECT_NE(log(sigmoid(x)), softplus(neg(x)));
  // x y may be the product of two negative numbers.
  EXPECT_NE(log(a.mul(x, y)), a.add(log(x), log(y)));
  EXPECT_NE(log(div(x, y)), sub(log(x), log(y)));
  EXPECT_NE(log(a.power(x, 4)), a.scale(2, log(x)));
  EXPECT_NE(log(a.mul(x, sigmoid(y))).condition, 0U);
}

// What is divided by must not be zero, and a term that has lost its denominator says so still.
TEST_F(FractionsTest, ConditionsStay) {
  const Term quotient = a.add(div(x, a.add(x, y)), div(y, a.add(x, y)));
  EXPECT_EQ(quotient, one);
  EXPECT_NE(quotient.condition, 0U);
  EXPECT_NE(div(x, x).condition, 0U);
  EXPECT_EQ(sub(one, sigmoid(x)).condition, 0U);
  EXPECT_NE(a.exp(log(x)).condition, 0U);
}

TEST_F(FractionsTest, CommonDenominators) {
  const Term p = a.add(x, one), q = a.add(y, one);
  EXPECT_TRUE(equal(a.add(div(one, p), div(one, q)), div(a.add(p, q), a.mul(p, q))));
  EXPECT_FALSE(equal(a.add(div(one, p), div(one, q)), div(a.add(p, one), a.mul(p, q))));
  EXPECT_FALSE(equal(a.add(div(one, p), div(one, q)), div(a.constant(2), a.add(p, q))));
  // Partial fractions.
  EXPECT_TRUE(equal(div(one, a.mul(x, a.add(x, one))), sub(div(one, x), div(one, a.add(x, one)))));
  EXPECT_FALSE(equal(div(one, a.mul(x, a.add(x, one))), a.add(div(one, x), div(one, p))));
}

TEST_F(FractionsTest, MergesOfPartialAttention) {
  for (const std::size_t width : {1, 2, 5}) {
    for (const bool byLargest : {false, true}) {
      scores.clear(), values.clear();
      Part all = part(0, width);
      for (std::size_t k = 1; k < 4; ++k) {
        const Part next = part(k * width, (k + 1) * width);
        all = byLargest ? mergedByLargest(all, next) : merged(all, next);
      }
      const Part whole = part(0, 4 * width);
      EXPECT_EQ(all.lse, whole.lse);
      EXPECT_TRUE(equal(all.out, whole.out));
      EXPECT_LE(a.fractionSummands(), 4);
    }
  }
}

TEST_F(FractionsTest, WrongMergesDiffer) {
  const Part p = part(0, 3), q = part(3, 6), whole = part(0, 6);
  const Term weight = sigmoid(sub(q.lse, p.lse)), other = sigmoid(sub(p.lse, q.lse));
  const Term difference = sub(p.out, q.out);
  EXPECT_TRUE(equal(sub(p.out, a.mul(weight, difference)), whole.out));
  EXPECT_FALSE(equal(sub(p.out, a.mul(other, difference)), whole.out));     // exchanged
  EXPECT_FALSE(equal(a.add(p.out, a.mul(weight, difference)), whole.out));  // a sign
  EXPECT_FALSE(equal(sub(p.out, difference), whole.out));                   // no weight
  EXPECT_FALSE(equal(merged(merged(p, q), q).out, whole.out));              // twice
  EXPECT_FALSE(equal(a.add(p.lse, log(other)), whole.lse));                 // a sign
  EXPECT_FALSE(equal(sub(p.lse, log(weight)), whole.lse));                  // exchanged
}

// Sums over rows with a denominator each are no fraction of one denominator.
TEST_F(FractionsTest, DenominatorsOfDifferentRowsStayApart) {
  std::vector<Term> rows, same;
  for (int i = 0; i < 6; ++i) {
    const Term t = a.variable(false), v = a.variable(false);
    rows.push_back(a.mul(v, sigmoid(t)));
    same.push_back(a.mul(v, sub(one, sigmoid(neg(t)))));
  }
  EXPECT_EQ(a.sum(rows, {}), a.sum(same, {}));
  EXPECT_LE(a.fractionSummands(), 3);
}

// A number of summands that grows with the length of a sum is counted as such.
TEST_F(FractionsTest, DenominatorsThatAreMadeOneAreCounted) {
  std::vector<Term> rows;
  const Term shared = a.add(x, y);
  for (int i = 0; i < 6; ++i)
    rows.push_back(a.mul(a.power(shared, -2), a.power(a.add(shared, a.variable(false)), -2)));
  a.sum(rows, {});
  EXPECT_GE(a.fractionSummands(), 6);
}

TEST_F(FractionsTest, TooMuchIsRefused) {
  Term p = one;
  for (int i = 0; i < 12; ++i) p = a.mul(p, a.add(a.variable(false), a.variable(false)));
  EXPECT_THROW(a.equalFractions(p, x, 1000), Unsupported);
}

}  // namespace
}  // namespace shardproof
