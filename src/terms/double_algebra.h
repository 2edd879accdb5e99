// Doubles with the true functions: counterexamples, and tests against PyTorch. Minus infinity is the IEEE one. A nan anywhere says that the
// point lies outside the domain, so it is never swallowed.
//
// With a seed every result that may have been rounded is changed at random by up to kNoise of itself, some thousand times more than rounding
// changes it (Monte Carlo arithmetic, Parker 1997). A difference between two computations that such noise leaves as it is has another cause
// than rounding.
#pragma once

#include <cstdint>
#include <span>

#include "ops/functions.h"
#include "shardproof/rational.h"

namespace shardproof {

class DoubleAlgebra {
 public:
  using Element = double;
  static constexpr double kNoise = 0x1p-40;
  DoubleAlgebra() = default;
  explicit DoubleAlgebra(std::uint64_t seed) : state_(seed | 1) {}
  double constant(const Rational& value) { return value.toDouble(); }
  double negativeInfinity();
  double add(double a, double b) { return rounded(a + b); }
  double mul(double a, double b);          // 0 * -inf is 0: a masked entry contributes nothing
  double scale(const Rational& factor, double a);
  double sum(std::span<const double> terms, std::span<const std::int64_t> weights);  // compensated
  double power(double base, int halves);
  double exp(double a);
  double apply(ops::Function f, std::span<const std::int64_t> params, std::span<const double> arguments);
  double indicator(double index, std::int64_t value);
  bool isZero(double a) const { return a == 0; }

 private:
  double rounded(double x) { return state_ == 0 ? x : noisy(x); }
  double noisy(double x);

  std::uint64_t state_ = 0;   // of the noise; 0: none
};

}  // namespace shardproof
