// SPDX-License-Identifier: Apache-2.0
// Algebras of numbers, as operators see them (ops/algebra.h lists what the members mean). What
// computes with these numbers proves nothing and stands outside of the core
// (src/explanation/numbers/), so operators are compiled for the interfaces alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "shardproof/rational.h"
#include "terms/functions.h"

namespace shardproof::ops {

template <class E>
class NumberAlgebra {
 public:
  using Element = E;
  NumberAlgebra() = default;
  NumberAlgebra(const NumberAlgebra&) = default;
  NumberAlgebra& operator=(const NumberAlgebra&) = default;
  virtual ~NumberAlgebra() = default;
  virtual E constant(const Rational& value) = 0;
  virtual E negativeInfinity() = 0;
  virtual E add(E a, E b) = 0;
  virtual E mul(E a, E b) = 0;
  virtual E scale(const Rational& factor, E a) = 0;
  virtual E sum(std::span<const E> terms, std::span<const std::int64_t> weights) = 0;
  virtual E power(E base, int halves) = 0;
  virtual E exp(E a) = 0;
  virtual E apply(Function f, std::span<const std::int64_t> params,
                  std::span<const E> arguments) = 0;
  virtual E indicator(E index, std::int64_t value) = 0;
  virtual E select(E indicator, E x) = 0;
  virtual bool isZero(E a) const = 0;
};

class RealNumbers : public NumberAlgebra<double> {
 public:
  virtual std::optional<std::int64_t> known(double index) const = 0;
  virtual double dot(std::span<const double* const> rows, std::size_t n) = 0;
};

// A residue modulo a prime, or minus infinity.
struct Residue {
  std::uint64_t value = 0;
  bool negativeInfinity = false;
  friend bool operator==(Residue, Residue) = default;
};
using Residues = NumberAlgebra<Residue>;

// The algebra that operators are compiled for, of one that computes.
template <class A>
using OperatorAlgebra =
    std::conditional_t<std::is_base_of_v<RealNumbers, A>, RealNumbers,
                       std::conditional_t<std::is_base_of_v<Residues, A>, Residues, A>>;

}  // namespace shardproof::ops
