// SPDX-License-Identifier: Apache-2.0
// Fingerprints. Sums, products, reciprocals, indicators, maxima and step functions respect every
// identity of the cheap normal form exactly; exp, logarithms and roots do so only in part, see the
// header.
#include "numbers/modular_algebra.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "shardproof/error.h"

namespace shardproof {
namespace {

__extension__ typedef unsigned __int128 UInt128;
constexpr std::uint64_t kPrime = ModularAlgebra::kPrime;
using Element = ModularAlgebra::Element;

std::uint64_t reduce(std::uint64_t v) {  // v < 2^64
  v = (v & kPrime) + (v >> 61);
  return v >= kPrime ? v - kPrime : v;
}

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t s = a + b;
  return s >= kPrime ? s - kPrime : s;
}

std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  // 2^61 = 1 modulo the prime: the high part is simply added to the low one.
  const UInt128 p = static_cast<UInt128>(a) * b;
  return plus(static_cast<std::uint64_t>(p) & kPrime, static_cast<std::uint64_t>(p >> 61));
}

std::uint64_t toPower(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = times(result, base);
    base = times(base, base);
  }
  return result;
}

std::uint64_t fromInteger(std::int64_t v) {
  if (v >= 0) return reduce(static_cast<std::uint64_t>(v));
  const std::uint64_t m = reduce(std::uint64_t{0} - static_cast<std::uint64_t>(v));
  return m == 0 ? 0 : kPrime - m;
}

// The residue nearest to zero: integers that a model can hold keep their sign and order.
std::int64_t centred(std::uint64_t v) {
  return v > kPrime / 2 ? static_cast<std::int64_t>(v) - static_cast<std::int64_t>(kPrime)
                        : static_cast<std::int64_t>(v);
}

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL;
  h *= 0xbf58476d1ce4e5b9ULL;
  h ^= h >> 29;
  h *= 0x94d049bb133111ebULL;
  return h ^ (h >> 32);
}

[[noreturn]] void infinityMet(const char* what) {
  throw Unsupported(std::string("minus infinity ") + what);
}

}  // namespace

Element ModularAlgebra::constant(const Rational& value) {
  try {
    return {value.modulo(kPrime), false};
  } catch (const std::domain_error&) {
    throw Unsupported("the constant " + value.toString() + " has no fingerprint");
  }
}

Element ModularAlgebra::add(Element a, Element b) {
  if (a.negativeInfinity || b.negativeInfinity) return negativeInfinity();
  return {plus(a.value, b.value), false};
}

Element ModularAlgebra::mul(Element a, Element b) {
  if (a.negativeInfinity || b.negativeInfinity) {
    // Signs do not survive the modulus, so any factor but zero is taken for a positive one; the
    // terms algebra judges.
    if ((a.negativeInfinity && b.negativeInfinity) || isZero(a) || isZero(b))
      infinityMet("times zero or itself");
    return negativeInfinity();
  }
  return {times(a.value, b.value), false};
}

Element ModularAlgebra::scale(const Rational& factor, Element a) {
  if (a.negativeInfinity) {
    if (factor.sign() <= 0) infinityMet("scaled by a number that is not positive");
    return a;
  }
  return mul(constant(factor), a);
}

Element ModularAlgebra::sum(std::span<const Element> terms, std::span<const std::int64_t> weights) {
  std::uint64_t total = 0;
  bool infinity = false;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    if (terms[i].negativeInfinity) {
      if (!weights.empty() && weights[i] <= 0)
        infinityMet("scaled by a number that is not positive");
      infinity = true;
    } else {
      total = plus(
          total, weights.empty() ? terms[i].value : times(terms[i].value, fromInteger(weights[i])));
    }
  }
  return infinity ? negativeInfinity() : Element{total, false};
}

Element ModularAlgebra::power(Element base, int halves) {
  if (halves == 0) return {1, false};
  if (base.negativeInfinity) infinityMet("raised to a power");
  if (halves < 0 && base.value == 0) throw Unsupported("division by a term that is zero");
  // The prime is 3 modulo 4, so x^((p+1)/4) is a root of x or of -x, and the map respects products.
  std::uint64_t value = halves % 2 == 0 ? base.value : toPower(base.value, (kPrime + 1) / 4);
  const std::int64_t exponent = halves % 2 == 0 ? halves / 2 : halves;
  value = toPower(value, static_cast<std::uint64_t>(exponent < 0 ? -exponent : exponent));
  return {exponent < 0 ? toPower(value, kPrime - 2) : value, false};
}

Element ModularAlgebra::exp(Element a) {
  if (a.negativeInfinity) return {0, false};
  if (a.value == 0) return {1, false};
  return {reduce(mix(0x6578705f61746f6dULL, a.value)), false};
}

Element ModularAlgebra::apply(ops::Function f, std::span<const std::int64_t> params,
                              std::span<const Element> arguments) {
  using ops::Function;
  if (f == Function::kMaximum || f == Function::kMinimum) {
    // The extremum in the order of the centred residues: associative, commutative and idempotent
    // like the true one, and right for integers.
    Element result = negativeInfinity();
    for (const Element x : arguments) {
      if (x.negativeInfinity) {
        if (f == Function::kMinimum) infinityMet("in a minimum");
      } else if (result.negativeInfinity ||
                 (f == Function::kMaximum) == (centred(x.value) > centred(result.value))) {
        result = x;
      }
    }
    return result;
  }
  for (const Element x : arguments) {
    if (x.negativeInfinity) infinityMet("as the argument of a function");
  }
  const std::uint64_t half = (kPrime + 1) / 2;
  const std::uint64_t first = arguments.empty() ? 0 : arguments[0].value;
  switch (f) {
    case Function::kStep:
      return {centred(first) > 0 ? std::uint64_t{1} : std::uint64_t{0}, false};
    case Function::kSigmoid:
    case Function::kNormalCdf:
      if (first == 0) return {half, false};
      break;
    case Function::kTanh:
      if (first == 0) return {0, false};
      break;
    case Function::kLog:
      if (first == 1) return {0, false};
      break;
    default:
      break;
  }
  std::uint64_t h = mix(0x66756e6374696f6eULL, static_cast<std::uint64_t>(f));
  const bool choice = f == Function::kGateChoice && !params.empty() && !arguments.empty();
  for (const std::int64_t p : choice ? params.subspan(1) : params)
    h = mix(h, static_cast<std::uint64_t>(p));
  for (const Element x : arguments) h = mix(h, x.value);
  // A choice must be the index of some expert, another for each slot: otherwise all indicators of
  // it would vanish and every plan would look alike.
  if (choice)
    return {(h % arguments.size() + static_cast<std::uint64_t>(params[0])) % arguments.size(),
            false};
  return {reduce(h), false};
}

Element ModularAlgebra::indicator(Element index, std::int64_t value) {
  if (index.negativeInfinity) infinityMet("as an index");
  return {index.value == fromInteger(value) ? std::uint64_t{1} : std::uint64_t{0}, false};
}

}  // namespace shardproof
