// Integers modulo the prime 2^61 - 1, opaque functions as hashes: fingerprints. Two terms that are equal in the cheap normal form always
// have equal fingerprints; different fingerprints say "probably different" and are used for nothing but to look for a counterexample.
#pragma once

#include <cstdint>
#include <span>

#include "ops/functions.h"
#include "shardproof/rational.h"

namespace shardproof {

class ModularAlgebra {
 public:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  struct Element {
    std::uint64_t value = 0;
    bool negativeInfinity = false;
    friend bool operator==(Element, Element) = default;
  };
  Element constant(const Rational& value);
  Element negativeInfinity() { return {0, true}; }
  Element add(Element a, Element b);
  Element mul(Element a, Element b);
  Element scale(const Rational& factor, Element a);
  Element sum(std::span<const Element> terms, std::span<const std::int64_t> weights);
  Element power(Element base, int halves);
  Element exp(Element a);
  Element apply(ops::Function f, std::span<const std::int64_t> params, std::span<const Element> arguments);
  Element indicator(Element index, std::int64_t value);
  bool isZero(Element a) const { return !a.negativeInfinity && a.value == 0; }
};

}  // namespace shardproof
