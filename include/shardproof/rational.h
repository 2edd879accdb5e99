// SPDX-License-Identifier: Apache-2.0
// Exact rational numbers: 64-bit numerator and denominator while they fit, GMP beyond. Proofs use
// nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <gmpxx.h>

namespace shardproof {

class Rational {
 public:
  Rational() = default;
  Rational(std::int64_t n) : num_(n) {}      // NOLINT: an integer is a rational
  Rational(std::int64_t n, std::int64_t d);  // throws std::domain_error when d == 0
  explicit Rational(const mpq_class& q);
  Rational(const Rational& other);
  Rational(Rational&&) noexcept = default;
  Rational& operator=(const Rational& other);
  Rational& operator=(Rational&&) noexcept = default;
  ~Rational() = default;

  // The exact value of a JSON number's text ("1e-05" is 1/100000). Throws std::invalid_argument on
  // anything else, and std::out_of_range when the exponent's magnitude exceeds 10000.
  static Rational parse(std::string_view text);
  static Rational fromDouble(
      double value);  // exact; throws std::invalid_argument for nan and infinities

  bool isZero() const { return !big_ && num_ == 0; }
  bool isOne() const { return !big_ && num_ == 1 && den_ == 1; }
  bool isInteger() const;
  int sign() const;
  bool fitsInt64() const { return !big_ && den_ == 1; }  // then toInt64() is exact
  std::int64_t toInt64() const;  // throws std::range_error unless fitsInt64()
  double toDouble() const;
  mpq_class toMpq() const;
  std::string toString() const;  // "3", "-1/8"
  std::string numeratorString() const;
  std::string denominatorString() const;
  std::uint64_t hash() const;
  std::uint64_t modulo(std::uint64_t prime)
      const;  // num * den^-1 modulo prime; throws std::domain_error when prime divides den

  Rational operator-() const;
  Rational inverse() const;  // throws std::domain_error on zero
  Rational pow(std::int64_t exponent) const;
  friend Rational operator+(const Rational& a, const Rational& b);
  friend Rational operator-(const Rational& a, const Rational& b);
  friend Rational operator*(const Rational& a, const Rational& b);
  friend Rational operator/(const Rational& a, const Rational& b);
  friend bool operator==(const Rational& a, const Rational& b);
  friend bool operator<(const Rational& a, const Rational& b);
  Rational& operator+=(const Rational& o) { return *this = *this + o; }
  Rational& operator*=(const Rational& o) { return *this = *this * o; }

 private:
  static Rational lowest(std::int64_t num,
                         std::int64_t den) noexcept {  // the caller has reduced them, den > 0
    Rational r;
    r.num_ = num;
    r.den_ = den;
    return r;
  }

  std::int64_t num_ = 0;  // lowest terms, den_ > 0; meaningless when big_ is set
  std::int64_t den_ = 1;
  std::unique_ptr<mpq_class> big_;  // set only when the value does not fit 64 bits
};

}  // namespace shardproof
