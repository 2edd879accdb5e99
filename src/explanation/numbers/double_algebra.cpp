// SPDX-License-Identifier: Apache-2.0
#include "numbers/double_algebra.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace shardproof {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
constexpr double kNearlyEqual = 1e-9;  // relative: more than rounding and noise make of a number

}  // namespace

double DoubleAlgebra::sum(std::span<const double> terms, std::span<const std::int64_t> weights) {
  // Neumaier's compensated sum: a difference found between two orders of summation must not be
  // rounding.
  double total = 0;
  double compensation = 0;
  double plain = 0;
  bool exact = true;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const double x = weights.empty() ? terms[i] : mul(static_cast<double>(weights[i]), terms[i]);
    plain += x;
    const double next = total + x;
    const double error = std::abs(total) >= std::abs(x) ? (total - next) + x : (x - next) + total;
    exact = exact && error == 0;
    compensation += error;
    total = next;
  }
  // With an infinite term the compensation is not a number.
  if (!std::isfinite(plain)) return plain;
  if (state_ == 0) return total + compensation;
  // The sum is compensated, its terms' order does not matter: one rounding, of the largest partial
  // sum at most.
  return rounded(total + compensation, [=] { return exact; });
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

// Larger than 2^51 everything is "rounded" by this: it is one anyway.
bool isInteger(double x) {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift == x;
}

// A product of integers has not been rounded.
template <bool kSquares, class Product, class Integers>
Lanes sumOfProducts(std::size_t n, const Product& product, const Integers& integers) {
  Lanes lanes;
  const auto take = [&](std::size_t lane, std::size_t i) {
    const double x = product(i);
    lanes.add(lane, x);
    if constexpr (kSquares) lanes.squares[lane] += integers(i) && std::abs(x) < 0x1p31 ? 0 : x * x;
  };
  std::size_t i = 0;
  for (; i + Lanes::kLanes <= n; i += Lanes::kLanes) {
    for (std::size_t l = 0; l < Lanes::kLanes; ++l) take(l, i + l);
  }
  for (; i < n; ++i) take(0, i);
  return lanes;
}

template <bool kSquares>
Lanes sumOfProducts(std::span<const double* const> rows, std::size_t n) {
  if (rows.size() == 2)
    return sumOfProducts<kSquares>(
        n, [a = rows[0], b = rows[1]](std::size_t i) { return a[i] * b[i]; },
        [a = rows[0], b = rows[1]](std::size_t i) { return isInteger(a[i]) && isInteger(b[i]); });
  if (rows.size() == 3)
    return sumOfProducts<kSquares>(
        n, [a = rows[0], b = rows[1], c = rows[2]](std::size_t i) { return a[i] * b[i] * c[i]; },
        [a = rows[0], b = rows[1], c = rows[2]](std::size_t i) {
          return isInteger(a[i]) && isInteger(b[i]) && isInteger(c[i]);
        });
  return sumOfProducts<kSquares>(
      n,
      [rows](std::size_t i) {
        double x = 1;
        for (const double* row : rows) x *= row[i];
        return x;
      },
      [rows](std::size_t i) {
        for (const double* row : rows) {
          if (!isInteger(row[i])) return false;
        }
        return true;
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
  return squares == 0
             ? total
             : rounded(total, [] { return false; }) + std::sqrt(squares) * (unit() * kNoise);
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

// Whether an integer that powerOf gave is the power itself. An integer's powers are, and of roots
// those of squares; the rest is left out.
bool isExactPower(double base, int halves, double result) {
  if (halves == -2) return std::fma(result, base, -1.0) == 0;
  const double root = halves % 2 == 0 ? base : std::sqrt(base);
  if (halves % 2 != 0 && root * root != base) return false;
  if (root == 1) return true;
  return halves > 0 && isInteger(root);
}

}  // namespace

bool DoubleAlgebra::decide(std::uint64_t way) {
  const auto hash = static_cast<std::uint32_t>(((way + 1) * 0x9E3779B97F4A7C15ULL) >> 32);
  if (recording_) decisions_.push_back(hash);
  if (followed_ == nullptr) return true;
  const std::size_t at = count_++;
  const bool same = at < followed_->decisions_.size() && followed_->decisions_[at] == hash;
  wavered_ = wavered_ || !same;
  return same;
}

// Which side of 0 a number is on, and its size up to a factor of two: what noise does not change,
// unless the number is nothing but rounding. The factor is one that no formula has, so that exact
// powers of two lie inside.
bool DoubleAlgebra::decideMagnitude(double x) {
  constexpr double kOffset = 0.7236067977;
  const int exponent = x == 0 ? std::numeric_limits<int>::min() : std::ilogb(x * kOffset);
  return decide(static_cast<std::uint64_t>(exponent) * 2 + (std::signbit(x) ? 1 : 0));
}

double DoubleAlgebra::power(double base, int halves) {
  // A root is continuous where it begins; only its existence is decided there.
  if (halves < 0 && !decideMagnitude(base)) return kUndefined;
  if (halves > 0 && halves % 2 != 0 && !decide(std::signbit(base) && base != 0 ? 1 : 0))
    return kUndefined;
  // Not infinity: with the other sign it would pass for a mask.
  if (base == 0 && halves < 0) return kUndefined;
  if (std::isinf(base) && halves != 2) return kUndefined;
  if (halves == 0) return 1;
  if (halves == 2) return base;
  const double result = powerOf(base, halves);
  if (std::isinf(result)) return overflow();
  if (std::abs(result) < kSmallest && base != 0) return underflow(result);
  return rounded(result, [=] { return isExactPower(base, halves, result); });
}

double DoubleAlgebra::indicator(double index, std::int64_t value) {
  if (std::isnan(index)) return index;
  const auto wanted = static_cast<double>(value);
  if (index == wanted) return 1;
  if (std::abs(index - wanted) > kNearlyEqual * std::max(1.0, std::abs(wanted))) return 0;
  // It may be the value but for rounding: no difference that comes of it is to be believed. One
  // that is rounded to the value meets this with noise.
  wavered_ = true;
  return kUndefined;
}

double DoubleAlgebra::exp(double a) {
  const double result = std::exp(a);
  if (result == kInfinity) return overflow();
  if (result < kSmallest && a != -kInfinity) return underflow(1);
  return rounded(result, [=] { return a == 0 || a == -kInfinity; });
}

namespace {

// Of these an integer is what was meant, of the others the limit of a number that is none.
bool givesIntegers(ops::Function f) {
  switch (f) {
    case ops::Function::kStep:
    case ops::Function::kGateChoice:
    case ops::Function::kMaskEntry:
    case ops::Function::kDropoutMask:
    case ops::Function::kFloor:
    case ops::Function::kCeil:
    case ops::Function::kRound:
    case ops::Function::kTruncate:
      return true;
    default:
      return false;
  }
}

// Of these a small change of the argument may change the value at once.
bool isChoice(ops::Function f) {
  switch (f) {
    case ops::Function::kStep:
    case ops::Function::kGateChoice:
    case ops::Function::kFloor:
    case ops::Function::kCeil:
    case ops::Function::kRound:
    case ops::Function::kTruncate:
      return true;
    default:
      return false;
  }
}

}  // namespace

double DoubleAlgebra::apply(ops::Function f, std::span<const std::int64_t> params,
                            std::span<const double> arguments) {
  const double value = ops::evaluate(f, params, arguments);
  if (isChoice(f) && !decide(std::bit_cast<std::uint64_t>(value))) return kUndefined;
  if (f == ops::Function::kLog && !decideMagnitude(arguments[0])) return kUndefined;
  // One of the arguments, not rounded: x - max(x) is 0 where x is the largest.
  if (f == ops::Function::kMaximum || f == ops::Function::kMinimum) return value;
  return rounded(value, [=] { return givesIntegers(f) || value == 0; });
}

}  // namespace shardproof
