#include "terms/double_algebra.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace shardproof {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double DoubleAlgebra::sum(std::span<const double> terms, std::span<const std::int64_t> weights) {
  // Neumaier's compensated sum: a difference found between two orders of summation must not be
  // rounding.
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
  // The sum is compensated, its terms' order does not matter: one rounding, of the largest partial
  // sum at most.
  return rounded(total + compensation);
}

namespace {

// Sums in several lanes, each compensated (Knuth's two-sum, which needs no comparison), that a
// compiler computes side by side.
struct Lanes {
  static constexpr std::size_t kLanes = 4;
  std::array<double, kLanes> total{}, error{}, squares{};
  double sum() const {
    double s = 0, c = 0;
    for (std::size_t l = 0; l < kLanes; ++l) {
      const double next = s + total[l], part = next - s;
      c += (s - (next - part)) + (total[l] - part) + error[l];
      s = next;
    }
    return s + c;
  }
  void add(std::size_t lane, double x) {
    const double next = total[lane] + x, part = next - total[lane];
    error[lane] += (total[lane] - (next - part)) + (x - part);
    total[lane] = next;
  }
};

template <bool kSquares, class Product>
Lanes sumOfProducts(std::size_t n, const Product& product) {
  Lanes lanes;
  const auto take = [&](std::size_t lane, double x) {
    lanes.add(lane, x);
    // What is an integer has not been rounded. Larger than 2^51 everything is "rounded" by this: it
    // is one anyway.
    if constexpr (kSquares) {
      constexpr double kShift = 0x1.8p52;
      lanes.squares[lane] += (x + kShift) - kShift == x && std::abs(x) < 0x1p31 ? 0 : x * x;
    }
  };
  std::size_t i = 0;
  for (; i + Lanes::kLanes <= n; i += Lanes::kLanes) {
    for (std::size_t l = 0; l < Lanes::kLanes; ++l) take(l, product(i + l));
  }
  for (; i < n; ++i) take(0, product(i));
  return lanes;
}

template <bool kSquares>
Lanes sumOfProducts(std::span<const double* const> rows, std::size_t n) {
  if (rows.size() == 2)
    return sumOfProducts<kSquares>(
        n, [a = rows[0], b = rows[1]](std::size_t i) { return a[i] * b[i]; });
  if (rows.size() == 3)
    return sumOfProducts<kSquares>(
        n, [a = rows[0], b = rows[1], c = rows[2]](std::size_t i) { return a[i] * b[i] * c[i]; });
  return sumOfProducts<kSquares>(n, [rows](std::size_t i) {
    double x = 1;
    for (const double* row : rows) x *= row[i];
    return x;
  });
}

}  // namespace

double DoubleAlgebra::dot(std::span<const double* const> rows, std::size_t n) {
  const Lanes lanes = state_ == 0 ? sumOfProducts<false>(rows, n) : sumOfProducts<true>(rows, n);
  const double total = lanes.sum();
  if (!std::isfinite(total)) {  // masks, and what has no value: one by one
    double plain = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double x = 1;
      for (const double* row : rows) x = mul(x, row[i]);
      plain += x;
    }
    return plain;
  }
  if (state_ == 0) return total;
  double squares = 0;
  for (const double s : lanes.squares) squares += s;
  return squares == 0 ? total : rounded(total) + std::sqrt(squares) * (unit() * kNoise);
}

namespace {

double powerOf(double base, int halves) {
  if (halves % 2 == 0) {
    switch (halves / 2) {
      case 2:
        return base * base;
      case -1:
        return 1 / base;
      default:
        return std::pow(base, halves / 2);
    }
  }
  const double root = std::sqrt(base);
  if (halves == 1) return root;
  return halves == -1 ? 1 / root : std::pow(root, halves);
}

}  // namespace

// Which side of 0 a number is on, and its size up to a factor of two: what noise does not change,
// unless the number is nothing but rounding. The factor is one that no formula has, so that exact
// powers of two lie inside.
void DoubleAlgebra::decideMagnitude(double x) {
  constexpr double kOffset = 0.7236067977;
  const int exponent = x == 0 ? std::numeric_limits<int>::min() : std::ilogb(x * kOffset);
  decide(static_cast<std::uint64_t>(exponent) * 2 + (std::signbit(x) ? 1 : 0));
}

double DoubleAlgebra::power(double base, int halves) {
  // A root is continuous where it begins; only its existence is decided there.
  if (halves < 0) decideMagnitude(base);
  else if (halves % 2 != 0) decide(std::signbit(base) && base != 0 ? 1 : 0);
  // Not infinity: with the other sign it would pass for a mask.
  if (base == 0 && halves < 0) return kUndefined;
  if (std::isinf(base) && halves != 2) return kUndefined;
  if (halves == 0) return 1;
  if (halves == 2) return base;
  const double result = powerOf(base, halves);
  if (std::isinf(result)) return overflow();
  if (std::abs(result) < kSmallest && base != 0) return underflow(result);
  return rounded(result);
}

double DoubleAlgebra::indicator(double index, std::int64_t value) {
  if (std::isnan(index)) return index;
  return index == static_cast<double>(value) ? 1 : 0;
}

double DoubleAlgebra::exp(double a) {
  const double result = std::exp(a);
  if (result == kInfinity) return overflow();
  if (result < kSmallest && a != -kInfinity) return underflow(1);
  return rounded(result);
}

double DoubleAlgebra::apply(ops::Function f, std::span<const std::int64_t> params,
                            std::span<const double> arguments) {
  const double value = ops::evaluate(f, params, arguments);
  if (f == ops::Function::kStep || f == ops::Function::kGateChoice)
    decide(std::bit_cast<std::uint64_t>(value));
  if (f == ops::Function::kLog) decideMagnitude(arguments[0]);
  return rounded(value);
}

}  // namespace shardproof
