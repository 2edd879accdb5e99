// SPDX-License-Identifier: Apache-2.0
// Decimal texts of floating-point numbers as simple rationals.
#include <gmpxx.h>

#include "reader/hlo/scalars.h"

namespace shardproof::hlo {
namespace {

mpq_class powerOfTwo(long exponent) {
  mpz_class p = 1;
  p <<= static_cast<unsigned long>(exponent < 0 ? -exponent : exponent);
  return exponent < 0 ? mpq_class(1, p) : mpq_class(p);
}

// floor(log2(x)) of x > 0
long exponentOf(const mpq_class& x) {
  long e = static_cast<long>(mpz_sizeinbase(x.get_num_mpz_t(), 2)) -
           static_cast<long>(mpz_sizeinbase(x.get_den_mpz_t(), 2));
  while (powerOfTwo(e) > x) --e;
  while (powerOfTwo(e + 1) <= x) ++e;
  return e;
}

mpz_class floorOf(const mpq_class& x) {
  mpz_class q;
  mpz_fdiv_q(q.get_mpz_t(), x.get_num_mpz_t(), x.get_den_mpz_t());
  return q;
}

// The rational with the least denominator strictly between low and high, 0 <= low < high, by
// continued fractions.
mpq_class simplestBetween(const mpq_class& low, const mpq_class& high) {
  const mpz_class whole = floorOf(low);
  if (mpq_class(whole + 1) < high) return mpq_class(whole + 1);
  const mpq_class a = low - whole, b = high - whole;  // 0 <= a < b <= 1
  if (a == 0) {
    // whole + 1/n with 1/n < b
    const mpz_class n = floorOf(1 / b) + 1;
    return whole + mpq_class(1, n);
  }
  mpq_class rest = 1 / simplestBetween(1 / b, 1 / a);
  return whole + rest;
}

}  // namespace

Rational simplestRounding(const Rational& value, int bits) {
  if (value.isZero()) return value;
  const mpq_class magnitude = abs(value.toMpq());
  const long e = exponentOf(magnitude);
  mpq_class ulp = powerOfTwo(e - bits + 1);
  const mpz_class steps = floorOf(magnitude / ulp + mpq_class(1, 2));
  const mpq_class nearest = steps * ulp;
  const bool negative = value.sign() < 0;
  const auto signedValue = [&](const mpq_class& q) {
    return Rational(negative ? mpq_class(-q) : q);
  };
  if (nearest.get_den() == 1) return signedValue(nearest);
  const mpq_class below = nearest == powerOfTwo(exponentOf(nearest)) ? ulp / 4 : ulp / 2;
  return signedValue(simplestBetween(nearest - below, nearest + ulp / 2));
}

}  // namespace shardproof::hlo
