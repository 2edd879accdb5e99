// SPDX-License-Identifier: Apache-2.0
#include "terms/size_symbol.h"

#include <algorithm>
#include <optional>
#include <string>

namespace shardproof {

namespace {

// What is read as constant + slope m has a constant of no more than so many slopes, and no more
// than such a share of the prime: a number that does not depend on the size is hardly ever read as
// one that does.
constexpr long kMostSlopes = 256, kLeastShare = 512;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t factor) {
  std::uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2))) * factor;
  return h ^ (h >> 29);
}

// The quotient by p^k, and k, of a number that is not zero.
std::pair<mpz_class, int> without(mpz_class number, std::int64_t prime) {
  int power = 0;
  while (mpz_divisible_ui_p(number.get_mpz_t(), static_cast<unsigned long>(prime)) != 0) {
    number /= prime;
    ++power;
  }
  return {number, power};
}

// What `number` is of the size: constant + slope m. Nothing: it is a constant.
std::optional<LinearNumber> linear(const mpz_class& number, std::int64_t prime,
                                   const std::vector<std::int64_t>& slopes) {
  const mpz_class bound = SizeSymbol::kMostConstant;
  if (abs(number) < bound) return LinearNumber{Rational(mpq_class(number)), Rational(0)};
  const mpz_class p = prime;
  // Many times a size less what is kept apart, where a common factor of a fraction may be missing
  // that it has at this prime only.
  constexpr long kMostApart = 12, kMostMissing = 64;
  mpz_class least = kMostMissing + 1;
  std::optional<LinearNumber> found;
  for (const std::int64_t own : slopes) {
    for (long apart = -kMostApart; apart <= kMostApart; ++apart) {
      const mpz_class sum = own * p + apart;
      const mpz_class missing = sum / gcd(number, sum);
      if (missing >= least) continue;
      least = missing;
      const Rational times = Rational(mpq_class(number)) / Rational(mpq_class(sum));
      found = LinearNumber{times * Rational(apart), times * Rational(own)};
    }
  }
  if (found) return found;
  // ... or with the constant nearest to zero.
  mpz_class slope, constant;
  mpz_fdiv_qr(slope.get_mpz_t(), constant.get_mpz_t(), number.get_mpz_t(), p.get_mpz_t());
  if (2 * constant > p) {
    constant -= p;
    slope += 1;
  }
  if (abs(constant) > kMostSlopes * abs(slope) || kLeastShare * abs(constant) > p)
    return std::nullopt;
  return LinearNumber{Rational(mpq_class(constant)), Rational(mpq_class(slope))};
}

}  // namespace

Rational SizedNumber::at(std::int64_t size) const {
  const Rational m(size);
  return (constant + slope * m) * m.pow(power) / (divisor.constant + divisor.slope * m);
}

SizeSymbol::SizeSymbol(std::int64_t prime, std::vector<Rational> constants,
                       std::vector<std::int64_t> slopes)
    : prime_(prime), constants_(std::move(constants)), slopes_(std::move(slopes)) {
  std::sort(constants_.begin(), constants_.end());
  slopes_.push_back(1);
  std::sort(slopes_.begin(), slopes_.end());
  slopes_.erase(std::unique(slopes_.begin(), slopes_.end()), slopes_.end());
}

SizedNumber SizeSymbol::read(const Rational& value) const {
  if (value.fitsInt64() && isSmall(value.toInt64())) return {value, Rational(0)};
  if (std::binary_search(constants_.begin(), constants_.end(), value)) return {value, Rational(0)};
  const mpq_class q = value.toMpq();
  const auto [numerator, up] = without(q.get_num(), prime_);
  const auto [denominator, down] = without(q.get_den(), prime_);
  auto above = linear(numerator, prime_, slopes_), below = linear(denominator, prime_, slopes_);
  // A large number beside a power of the size is a constant.
  if (!above && up != down) above = {Rational(mpq_class(numerator)), Rational(0)};
  if (!below && up != down) below = {Rational(mpq_class(denominator)), Rational(0)};
  // If it is another function of the size, it is another number at the other prime.
  if (!above || !below) return {value, Rational(0)};
  // Of equal fractions the one whose divisor has the slope 1: they reduce differently at two
  // primes.
  if (const Rational& own = below->slope; !own.isZero())
    return {
        above->constant / own, above->slope / own, up - down, {below->constant / own, Rational(1)}};
  return {above->constant / below->constant, above->slope / below->constant, up - down};
}

SizedNumber SizeSymbol::note(const Rational& value) {
  SizedNumber number = read(value);
  for (const std::uint64_t part :
       {number.constant.hash(), number.slope.hash(), static_cast<std::uint64_t>(number.power),
        number.divisor.constant.hash(), number.divisor.slope.hash()}) {
    trace_.first = mixed(trace_.first, part, 0xD6E8FEB86659FD93ULL);
    trace_.second = mixed(trace_.second, part, 0xA0761D6478BD642FULL);
  }
  return number;
}

}  // namespace shardproof
