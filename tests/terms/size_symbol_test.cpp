// SPDX-License-Identifier: Apache-2.0
#include "terms/size_symbol.h"

#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof {
namespace {

constexpr std::int64_t kPrime = SizeSymbol::kPrimes[0], kOther = SizeSymbol::kPrimes[1];

SizedNumber read(const Rational& value, std::int64_t prime = kPrime) {
  return SizeSymbol(prime, {}).read(value);
}

TEST(SizeSymbol, ReadsWhatNumbersAreOfTheSize) {
  EXPECT_EQ(read(Rational(7)), (SizedNumber{Rational(7), Rational(0)}));
  EXPECT_EQ(read(Rational(kPrime - 2)), (SizedNumber{Rational(-2), Rational(1)}));
  EXPECT_EQ(read(Rational(4 * kPrime)), (SizedNumber{Rational(4), Rational(0), 1}));
  EXPECT_EQ(read(Rational(33'538'048 * kPrime)),
            (SizedNumber{Rational(33'538'048), Rational(0), 1}));
  EXPECT_EQ(read(Rational(1, 8 * kPrime)), (SizedNumber{Rational(1, 8), Rational(0), -1}));
  EXPECT_EQ(read(Rational(3 * kPrime + 4, 2)), (SizedNumber{Rational(2), Rational(3, 2)}));
  EXPECT_EQ(read(Rational(kPrime - 2, kPrime)), (SizedNumber{Rational(-2), Rational(1), -1}));
  const std::int64_t large = 1'048'303'485;
  EXPECT_EQ(read(Rational(large * (kPrime - 2))),
            (SizedNumber{Rational(-2 * large), Rational(large)}));
  const SizedNumber divided = read(Rational(3, kPrime - 2));
  EXPECT_EQ(divided.divisor, (LinearNumber{Rational(-2), Rational(1)}));
  EXPECT_EQ(divided.at(5), Rational(1));
}

TEST(SizeSymbol, WhatItReadsIsTheNumberAtThePrime) {
  for (const std::int64_t prime : SizeSymbol::kPrimes)
    for (const std::int64_t a : {-200, -3, 0, 1, 17})
      for (const std::int64_t b : {1, 4, 65536})
        for (const std::int64_t c : {1, 3, 4096}) {
          const Rational value = Rational(a + b * prime, c);
          EXPECT_EQ(read(value, prime).at(prime), value) << a << " " << b << " " << c;
          if (c == 1) {
            EXPECT_EQ(read(value, prime).at(10), Rational(a + b * 10));
          }
        }
}

// What is no linear function of the size is one number at one prime, and another at the other.
TEST(SizeSymbol, TracesDifferWhereANumberIsNoSimpleFunction) {
  const auto same = [](auto&& number) {
    SizeSymbol first(kPrime, {}), second(kOther, {});
    first.note(number(kPrime));
    second.note(number(kOther));
    return first.trace() == second.trace();
  };
  EXPECT_TRUE(same([](std::int64_t m) { return Rational(4 * m - 6); }));
  EXPECT_TRUE(same([](std::int64_t m) { return Rational(1, m); }));
  EXPECT_TRUE(same([](std::int64_t) { return Rational(1, 100'000'000); }));
  EXPECT_FALSE(same([](std::int64_t m) { return Rational(m / 16); }));
  EXPECT_FALSE(same([](std::int64_t m) { return Rational(m % 1000); }));
  EXPECT_FALSE(same([](std::int64_t m) { return Rational(m * m + 7); }));
  EXPECT_FALSE(same([](std::int64_t) { return Rational(4 * kPrime - 6); }));
  EXPECT_FALSE(same([](std::int64_t) { return Rational(kPrime); }));
}

TEST(SizeSymbol, ConstantsOfAStageAreConstantsHoweverLarge) {
  const Rational large(4 * kPrime - 2);
  EXPECT_FALSE(SizeSymbol(kPrime, {large}).read(large).dependsOnSize());
  EXPECT_TRUE(SizeSymbol(kPrime, {}).read(large).dependsOnSize());
}

class SizedTerms : public testing::Test {
 protected:
  SizeSymbol size_{kPrime, {}};
  TermAlgebra terms_;
  SizedTerms() { terms_.readNumbersBy(size_); }
  Term number(std::int64_t n, std::int64_t d = 1) { return terms_.constant(Rational(n, d)); }
};

TEST_F(SizedTerms, SumsOverAllPositionsAreTheSize) {
  const Term x = terms_.variable(false);
  const std::vector<Term> same(3, x);
  const std::vector<std::int64_t> weights{1, 1, kPrime - 2};
  EXPECT_EQ(terms_.sum(same, weights), terms_.scale(Rational(kPrime), x));
  EXPECT_EQ(terms_.scale(Rational(1, kPrime), terms_.sum(same, weights)), x);
  EXPECT_NE(terms_.scale(Rational(1, kPrime), x), x);
  EXPECT_NE(terms_.scale(Rational(kPrime), x), terms_.scale(Rational(kOther), x));
}

TEST_F(SizedTerms, PolynomialsOfTheSizeStandOutsideOfProducts) {
  const Term x = terms_.variable(false), y = terms_.variable(false), z = terms_.variable(false);
  const Rational w(kPrime - 2);
  const Term sum = terms_.add(x, y);
  EXPECT_EQ(terms_.mul(terms_.scale(w, sum), z), terms_.scale(w, terms_.mul(sum, z)));
  EXPECT_EQ(terms_.scale(Rational(1, kPrime - 2), terms_.scale(w, terms_.mul(sum, z))),
            terms_.mul(sum, z));
  EXPECT_EQ(terms_.scale(Rational(1, kPrime - 2), terms_.mul(terms_.scale(w, sum), z)),
            terms_.mul(sum, z));
}

TEST_F(SizedTerms, ADivisionThatLeavesARemainderIsRefused) {
  const Term x = terms_.variable(false);
  EXPECT_THROW(terms_.scale(Rational(1, kPrime - 2), x), Unsupported);
  EXPECT_THROW(terms_.scale(Rational(1, kPrime - 2), terms_.scale(Rational(kPrime - 3), x)),
               Unsupported);
  EXPECT_THROW(terms_.indicator(terms_.variable(true), kPrime - 1), Unsupported);
}

TEST(SizeSymbol, OnlyTheNormalFormReadsNumbers) {
  SizeSymbol size(kPrime, {});
  TermAlgebra raw(TermAlgebra::Mode::kRaw);
  EXPECT_THROW(raw.readNumbersBy(size), std::logic_error);
}

}  // namespace
}  // namespace shardproof
