// SPDX-License-Identifier: Apache-2.0
// Numbers as decimals, exactly.
#include <algorithm>
#include <optional>

#include "shardproof/error.h"
#include "writer/write_problem.h"

namespace shardproof {

namespace {

// The least power of ten that the denominator divides; none divides others.
std::optional<unsigned long> decimalDigits(const Rational& number) {
  mpz_class rest(number.denominatorString());
  unsigned long twos = 0, fives = 0;
  while (mpz_even_p(rest.get_mpz_t())) rest /= 2, ++twos;
  while (mpz_divisible_ui_p(rest.get_mpz_t(), 5)) rest /= 5, ++fives;
  if (rest != 1) return std::nullopt;
  return std::max(twos, fives);
}

}  // namespace

bool hasDecimal(const Rational& number) {
  return number.isInteger() || decimalDigits(number).has_value();
}

std::string decimalText(const Rational& number) {
  if (number.isInteger()) return number.numeratorString();
  const auto found = decimalDigits(number);
  if (!found)
    throw Unsupported("the number " + number.toString() +
                      " has no finite decimal, so no file can say it exactly");
  const unsigned long digits = *found;
  mpz_class factor;
  mpz_ui_pow_ui(factor.get_mpz_t(), 10, digits);
  const mpz_class scaled =
      mpz_class(number.numeratorString()) * (factor / mpz_class(number.denominatorString()));
  std::string text = mpz_class(abs(scaled)).get_str();
  constexpr unsigned long kMostZeros = 30;
  if (digits > text.size() + kMostZeros)
    return (sgn(scaled) < 0 ? "-" : "") + text + "e-" + std::to_string(digits);
  if (text.size() <= digits) text.insert(0, digits + 1 - text.size(), '0');
  text.insert(text.size() - digits, 1, '.');
  return (sgn(scaled) < 0 ? "-" : "") + text;
}

}  // namespace shardproof
