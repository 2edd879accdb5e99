// SPDX-License-Identifier: Apache-2.0
#include "shardproof/rational.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

namespace shardproof {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::string parsed(std::string_view text) { return Rational::parse(text).toString(); }

TEST(Rational, ParsesJsonNumbersExactly) {
  EXPECT_EQ(parsed("0"), "0");
  EXPECT_EQ(parsed("-0"), "0");
  EXPECT_EQ(parsed("-0.0e5"), "0");
  EXPECT_EQ(parsed("1e-05"), "1/100000");
  EXPECT_EQ(parsed("1E+3"), "1000");
  EXPECT_EQ(parsed("0.125"), "1/8");
  EXPECT_EQ(parsed("-2.5e1"), "-25");
  EXPECT_EQ(parsed("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(parsed("-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(parsed("123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(parsed("1e-30"), "1/1000000000000000000000000000000");
  EXPECT_EQ(parsed("0.10000000000000000000000000000000000000"), "1/10");
  EXPECT_TRUE(Rational::parse("1e3").fitsInt64());
  EXPECT_EQ(Rational::parse("1e10000").toString().size(), 10001U);
}

TEST(Rational, RefusesWhatIsNoJsonNumber) {
  for (const char* text : {"", "-", "+1", "01", "1.", ".5", "1e", "1e+", "0x10", "1 ", " 1", "nan",
                           "inf", "1,0", "1e5.0", "--1", "00"}) {
    EXPECT_THROW(Rational::parse(text), std::invalid_argument) << text;
  }
  EXPECT_THROW(Rational::parse("1e10001"), std::out_of_range);
  EXPECT_THROW(Rational::parse("1e-99999999999999999999"), std::out_of_range);
}

TEST(Rational, KeepsLowestTermsAndSign) {
  EXPECT_EQ(Rational(6, -8).toString(), "-3/4");
  EXPECT_EQ(Rational(0, -5), Rational(0));
  EXPECT_THROW(Rational(1, 0), std::domain_error);
  EXPECT_EQ(Rational(kMin, kMin), Rational(1));
  EXPECT_EQ(Rational(kMin, -1).toString(), "9223372036854775808");
  EXPECT_EQ(Rational(1, kMin).toString(), "-1/9223372036854775808");
  EXPECT_EQ(Rational(kMin, 2).toString(), "-4611686018427387904");
}

TEST(Rational, LeavesAndReturnsTo64Bits) {
  const Rational big = Rational(kMax) + Rational(1);
  EXPECT_FALSE(big.fitsInt64());
  EXPECT_TRUE(big.isInteger());
  EXPECT_THROW(big.toInt64(), std::range_error);
  const Rational back = big - Rational(1);
  EXPECT_TRUE(back.fitsInt64());
  EXPECT_EQ(back, Rational(kMax));
  EXPECT_EQ(back.hash(), Rational(kMax).hash());
  EXPECT_EQ(-Rational(kMin), big);
  EXPECT_EQ(-big, Rational(kMin));
  EXPECT_TRUE((-big).fitsInt64());
  EXPECT_EQ(big.inverse().inverse(), big);
  EXPECT_EQ(Rational(kMin).inverse().toString(), "-1/9223372036854775808");
  EXPECT_EQ(Rational(kMin) * Rational(-1), big);
  EXPECT_EQ(Rational(kMin, 3) * Rational(3, kMin), Rational(1));
  EXPECT_EQ((big * big).toString(), "85070591730234615865843651857942052864");
  Rational copy = big * big;
  const Rational other = copy;
  copy = Rational(2);
  EXPECT_EQ(copy, Rational(2));
  EXPECT_EQ(other, big * big);
  copy = other;
  EXPECT_EQ(copy, other);
}

TEST(Rational, AgreesWithGmpOnRandomOperands) {
  std::mt19937_64 random(7);
  const auto operand = [&]() -> Rational {
    const auto integer = [&]() -> std::int64_t {
      switch (random() % 4) {
        case 0:
          return static_cast<std::int64_t>(random() % 21) - 10;
        case 1:
          return static_cast<std::int64_t>(random());
        case 2:
          return random() % 2 == 0 ? kMax : kMin;
        default:
          return static_cast<std::int64_t>(random() % 2000000) - 1000000;
      }
    };
    std::int64_t d = integer();
    if (d == 0) d = 1;
    Rational r(integer(), d);
    if (random() % 8 == 0) r = r * r;
    return r;
  };
  for (int i = 0; i < 20000; ++i) {
    const Rational a = operand();
    const Rational b = operand();
    EXPECT_EQ(a + b, Rational(mpq_class(a.toMpq() + b.toMpq())));
    EXPECT_EQ(a - b, Rational(mpq_class(a.toMpq() - b.toMpq())));
    EXPECT_EQ(a * b, Rational(mpq_class(a.toMpq() * b.toMpq())));
    if (!b.isZero()) {
      EXPECT_EQ(a / b, Rational(mpq_class(a.toMpq() / b.toMpq())));
    }
    EXPECT_EQ(a < b, a.toMpq() < b.toMpq());
    EXPECT_EQ(a.sign(), sgn(a.toMpq()));
    EXPECT_EQ((a + b).hash(), Rational(mpq_class(a.toMpq() + b.toMpq())).hash());
    EXPECT_EQ((a + b) - b, a);
    EXPECT_EQ(a.toString(), a.toMpq().get_str());
  }
}

TEST(Rational, ConvertsToAndFromDoubles) {
  EXPECT_EQ(Rational::fromDouble(0.5), Rational(1, 2));
  EXPECT_EQ(Rational::fromDouble(0.1).toString(), "3602879701896397/36028797018963968");
  EXPECT_EQ(Rational::fromDouble(-0.0), Rational(0));
  EXPECT_THROW(Rational::fromDouble(std::nan("")), std::invalid_argument);
  EXPECT_THROW(Rational::fromDouble(std::numeric_limits<double>::infinity()),
               std::invalid_argument);
  EXPECT_EQ(Rational::parse("0.1").toDouble(), 0.1);
  EXPECT_EQ(Rational::parse("1e-05").toDouble(), 1e-05);
  EXPECT_DOUBLE_EQ(Rational::parse("1e300").toDouble(), 1e300);
}

TEST(Rational, Powers) {
  EXPECT_EQ(Rational(2, 3).pow(3), Rational(8, 27));
  EXPECT_EQ(Rational(2, 3).pow(-2), Rational(9, 4));
  EXPECT_EQ(Rational(0).pow(0), Rational(1));
  EXPECT_THROW(Rational(0).pow(-1), std::domain_error);
  EXPECT_EQ(Rational(2).pow(100).toString(), "1267650600228229401496703205376");
  EXPECT_EQ(Rational(-1).pow(kMin), Rational(1));
}

TEST(Rational, ReducesModuloAPrime) {
  const std::uint64_t p = (std::uint64_t{1} << 61) - 1;
  EXPECT_EQ(Rational(5).modulo(p), 5U);
  EXPECT_EQ(Rational(-1).modulo(p), p - 1);
  EXPECT_EQ(Rational(1, 2).modulo(7), 4U);
  EXPECT_EQ(Rational(kMin).modulo(7), 6U);  // 2^63 = 1 modulo 7
  EXPECT_THROW(Rational(1, 7).modulo(7), std::domain_error);
  const Rational big = Rational(3).pow(80);
  EXPECT_EQ((big * Rational(1, 2)).modulo(101), (big.modulo(101) * 51) % 101);
}

TEST(Rational, ShowsNumeratorAndDenominator) {
  EXPECT_EQ(Rational(-3, 4).numeratorString(), "-3");
  EXPECT_EQ(Rational(-3, 4).denominatorString(), "4");
  EXPECT_EQ(Rational::parse("1e-30").denominatorString(), "1000000000000000000000000000000");
}

}  // namespace
}  // namespace shardproof
