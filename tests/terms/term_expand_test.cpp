// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof {
namespace {

using ops::Function;

struct FullForm : ::testing::Test {
  TermAlgebra a;
  Term x = a.variable(false), y = a.variable(false), z = a.variable(false), w = a.variable(false);
  Term i = a.variable(true);

  Term full(Term t, std::size_t budget = 10000) { return a.expand(t, budget); }
  Term sub(Term p, Term q) { return a.add(p, a.scale(-1, q)); }
  Term inv(Term t) { return a.power(t, -2); }
};

TEST_F(FullForm, MultipliesOut) {
  EXPECT_EQ(full(a.mul(x, a.add(y, z))), a.add(a.mul(x, y), a.mul(x, z)));
  const Term square = a.power(a.add(x, y), 4);
  EXPECT_EQ(full(square), a.add(a.add(a.power(x, 4), a.power(y, 4)), a.scale(2, a.mul(x, y))));
  EXPECT_TRUE(a.isZero(full(sub(a.mul(a.add(x, y), sub(x, y)), sub(a.mul(x, x), a.mul(y, y))))));
  EXPECT_EQ(full(full(square)), full(square));
}

TEST_F(FullForm, WorksInsideArguments) {
  const Term left = a.apply(Function::kSigmoid, {}, std::vector<Term>{a.mul(x, a.add(y, z))});
  const Term right =
      a.apply(Function::kSigmoid, {}, std::vector<Term>{a.add(a.mul(x, y), a.mul(x, z))});
  EXPECT_NE(left, right);
  EXPECT_EQ(full(left), full(right));
  EXPECT_EQ(full(a.exp(a.mul(x, a.add(y, z)))), a.mul(a.exp(a.mul(x, y)), a.exp(a.mul(x, z))));
  EXPECT_EQ(full(a.power(a.mul(x, a.add(y, z)), 1)),
            full(a.power(a.add(a.mul(x, y), a.mul(x, z)), 1)));
}

TEST_F(FullForm, ReciprocalsCancel) {
  const Term s = a.add(x, y);
  EXPECT_EQ(full(a.mul(a.mul(z, s), inv(s))), z);
  EXPECT_EQ(full(a.mul(a.add(a.mul(z, x), a.mul(z, y)), inv(s))), z);
  EXPECT_EQ(full(inv(a.mul(z, s))), full(inv(a.add(a.mul(z, x), a.mul(z, y)))));
  EXPECT_EQ(full(inv(sub(y, x))), full(a.scale(-1, inv(sub(x, y)))));
  // Over one denominator fractions add up, although no factor cancels.
  EXPECT_EQ(full(a.add(a.mul(x, inv(s)), a.mul(y, inv(s)))), a.constant(1));
  EXPECT_EQ(full(a.mul(a.add(a.add(a.mul(x, z), a.mul(y, z)), w), inv(s))),
            full(a.add(z, a.mul(w, inv(s)))));
  const Term e = a.add(a.exp(x), a.exp(y));
  EXPECT_EQ(full(a.add(a.mul(a.exp(x), inv(e)), a.mul(a.exp(y), inv(e)))), a.constant(1));
  EXPECT_NE(full(a.add(a.mul(x, inv(s)), a.mul(y, inv(a.mul(s, s))))), a.constant(1));
}

// The gradient of softmax, S^-2 (g S - sum g e): S cancels as it stands, also where the division of
// polynomials cannot be used, and where it is not wanted.
TEST_F(FullForm, WhatCancelsInASummandIsNotMultipliedOut) {
  const auto atoms = [&](Term t) { return a.expand(t, 10000, TermAlgebra::Reciprocals::kAtoms); };
  const auto half = [&](Term t) { return a.exp(a.scale(Rational(1, 2), t)); };
  const Term s = a.add(half(x), half(y));
  const Term weighted = a.add(a.mul(z, half(x)), a.mul(w, half(y)));
  const Term together = a.mul(a.power(s, -4), sub(a.mul(z, s), weighted));
  const Term apart = sub(a.mul(z, inv(s)), a.mul(a.power(s, -4), weighted));
  EXPECT_EQ(full(together), full(apart));
  EXPECT_EQ(atoms(together), atoms(apart));
  EXPECT_NE(atoms(a.mul(a.power(s, -4), sub(a.mul(w, s), weighted))), atoms(apart));
  EXPECT_NE(atoms(a.mul(inv(s), sub(a.mul(z, s), weighted))), atoms(apart));
  // Not without a reciprocal, nor of another sum's.
  const Term other = a.add(half(x), half(w));
  EXPECT_NE(atoms(a.mul(inv(other), a.add(a.mul(z, s), w))), atoms(a.add(z, a.mul(w, inv(other)))));
  // Reciprocals as atoms: the division of polynomials is left out, and comes back.
  const Term sum = a.add(x, y), one = a.add(a.mul(x, inv(sum)), a.mul(y, inv(sum)));
  EXPECT_NE(atoms(one), a.constant(1));
  EXPECT_EQ(full(one), a.constant(1));
  EXPECT_NE(atoms(one), a.constant(1));
}

TEST_F(FullForm, IndicatorsSelect) {
  std::vector<Term> entries;
  for (int v = 0; v < 4; ++v) entries.push_back(a.mul(a.indicator(i, v), v % 2 == 0 ? x : y));
  const Term lookup = a.sum(entries, {});
  EXPECT_EQ(full(a.mul(a.indicator(i, 2), lookup)), a.mul(a.indicator(i, 2), x));
}

TEST_F(FullForm, RootsComeBack) {
  const Term r = a.power(a.add(x, y), 1);
  EXPECT_EQ(full(a.mul(a.add(r, z), sub(r, z))), sub(a.add(x, y), a.mul(z, z)));
}

TEST_F(FullForm, KeepsTheBudget) {
  Term t = a.constant(1);
  for (int k = 0; k < 20; ++k) t = a.mul(t, a.add(a.variable(false), a.variable(false)));
  try {
    full(t, 1000);
    FAIL() << "2^20 monomials fit a budget of 1000";
  } catch (const Unsupported& e) {
    EXPECT_NE(std::string(e.what()).find("budget"), std::string::npos);
  }
  EXPECT_THROW(full(a.power(a.add(x, y), 2'000'000), 1000), Unsupported);
}

TEST_F(FullForm, ReadsRawTerms) {
  TermAlgebra r(TermAlgebra::Mode::kRaw);
  const Term u = r.variable(false);
  const Term v = r.variable(false);
  const Term one = r.mul(r.add(u, v), r.add(v, u));
  const Term two = r.power(r.add(u, v), 4);
  EXPECT_NE(one, two);
  EXPECT_EQ(r.expand(one, 100), r.expand(two, 100));
  EXPECT_EQ(r.expand(r.mul(r.power(u, -1), r.power(u, 1)), 100), r.constant(1));
}

TEST_F(FullForm, DeepTermsNeedNoCallStack) {
  Term t = x;
  for (int k = 0; k < 200000; ++k) t = a.apply(Function::kTanh, {}, std::vector<Term>{a.add(t, y)});
  EXPECT_EQ(full(t, 10'000'000), t);
}

}  // namespace
}  // namespace shardproof
