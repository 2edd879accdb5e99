// SPDX-License-Identifier: Apache-2.0
// Integers modulo the prime 2^61 - 1, opaque functions as hashes: fingerprints. They are a hint and
// used for nothing but to decide where to look for a counterexample first.
//   Different values:  equal rational expressions over the same atoms always agree, so a difference
//   says "probably different". It is no
//     more than that, because three laws of the reals have no counterpart modulo a prime: exp(a +
//     b) = exp(a) exp(b) (no homomorphism from the additive to the multiplicative group but the
//     trivial one; exp is a hash), the logarithm's laws (a hash), and sqrt(x)^2 = x, which holds
//     only for the squares, half of all residues.
//   Equal values:  "probably equal", and the proof must still be found.
#pragma once

#include <cstdint>
#include <span>

#include "ops/number_algebra.h"
#include "shardproof/rational.h"
#include "terms/functions.h"

namespace shardproof {

class ModularAlgebra final : public ops::Residues {
 public:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  Element constant(const Rational& value) override;
  Element negativeInfinity() override { return {0, true}; }
  Element add(Element a, Element b) override;
  Element mul(Element a, Element b) override;
  Element scale(const Rational& factor, Element a) override;
  Element sum(std::span<const Element> terms, std::span<const std::int64_t> weights) override;
  Element power(Element base, int halves) override;
  Element exp(Element a) override;
  Element apply(ops::Function f, std::span<const std::int64_t> params,
                std::span<const Element> arguments) override;
  Element indicator(Element index, std::int64_t value) override;
  Element select(Element indicator, Element x) override {
    return isZero(indicator) ? Element{} : mul(indicator, x);
  }
  bool isZero(Element a) const override { return !a.negativeInfinity && a.value == 0; }
};

}  // namespace shardproof
