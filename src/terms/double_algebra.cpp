#include "terms/double_algebra.h"

#include <bit>
#include <cmath>
#include <limits>

namespace shardproof {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double DoubleAlgebra::sum(std::span<const double> terms, std::span<const std::int64_t> weights) {
  // Neumaier's compensated sum: a difference found between two orders of summation must not be rounding.
  double total = 0;
  double compensation = 0;
  double plain = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const double x = weights.empty() ? terms[i] : mul(static_cast<double>(weights[i]), terms[i]);
    plain += x;
    const double next = total + x;
    compensation += std::abs(total) >= std::abs(x) ? (total - next) + x : (x - next) + total;
    total = next;
  }
  // With an infinite term the compensation is not a number.
  if (!std::isfinite(plain)) return plain;
  if (state_ == 0) return total + compensation;
  // The sum is compensated, its terms' order does not matter: one rounding, of the largest partial sum at most.
  return rounded(total + compensation);
}

double DoubleAlgebra::power(double base, int halves) {
  // Not infinity: with the other sign it would pass for a mask.
  if (base == 0 && halves < 0) return kUndefined;
  if (std::isinf(base) && halves != 2) return kUndefined;
  if (halves % 2 == 0) {
    switch (halves / 2) {
      case 0: return 1;
      case 1: return base;
      case 2: return rounded(base * base);
      case -1: return rounded(1 / base);
      default: return rounded(std::pow(base, halves / 2));
    }
  }
  const double root = std::sqrt(base);
  if (halves == 1) return rounded(root);
  return rounded(halves == -1 ? 1 / root : std::pow(root, halves));
}

double DoubleAlgebra::indicator(double index, std::int64_t value) {
  if (std::isnan(index)) return index;
  return index == static_cast<double>(value) ? 1 : 0;
}

double DoubleAlgebra::exp(double a) {
  const double result = std::exp(a);
  return result == kInfinity ? kUndefined : rounded(result);  // the true value is finite; what follows from an infinite one would be wrong
}

double DoubleAlgebra::apply(ops::Function f, std::span<const std::int64_t> params, std::span<const double> arguments) {
  const double value = ops::evaluate(f, params, arguments);
  if (f == ops::Function::kStep || f == ops::Function::kGateChoice) decisions_ = decisions_ * 0x9E3779B97F4A7C15ULL + std::bit_cast<std::uint64_t>(value) + 1;
  return rounded(value);
}

}  // namespace shardproof
