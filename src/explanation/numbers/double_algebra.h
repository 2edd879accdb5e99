// SPDX-License-Identifier: Apache-2.0
// Doubles with the true functions: counterexamples, and tests against PyTorch. Minus infinity is
// the IEEE one. A nan anywhere says that the point lies outside the domain, so it is never
// swallowed.
//
// With a seed every result that may have been rounded is changed at random by up to kNoise of
// itself, some thousand times more than rounding changes it (Monte Carlo arithmetic, Parker 1997).
// A difference between two computations that such noise leaves as it is has another cause than
// rounding.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "ops/number_algebra.h"
#include "shardproof/rational.h"
#include "terms/functions.h"

namespace shardproof {

class DoubleAlgebra final : public ops::RealNumbers {
 public:
  static constexpr double kNoise = 0x1p-40;
  DoubleAlgebra() = default;
  explicit DoubleAlgebra(std::uint64_t seed) : state_((seed * 0x9E3779B97F4A7C15ULL) | 1) {}
  double constant(const Rational& value) override { return value.toDouble(); }
  // A number that was rounded where it was made, along with others of up to that size.
  double approximation(double value, double size) {
    return state_ == 0 || value == std::trunc(value) ? value : value + size * (unit() * kNoise);
  }
  double negativeInfinity() override { return -kInfinity; }
  double add(double a, double b) override {
    const double s = a + b;
    return rounded(s, [=] {  // no error (Knuth's two-sum)
      const double part = s - a;
      return (a - (s - part)) + (b - part) == 0;
    });
  }
  // Of minus infinity only positive multiples are anything, as in the proof: 0 * -inf is nan, and
  // so is what would be plus infinity.
  double mul(double a, double b) override {
    const double product = a * b;
    if (std::abs(product) < kSmallest && a != 0 && b != 0) return underflow(product);
    if (std::isinf(product))
      return product < 0 && (std::isinf(a) || std::isinf(b))
                 ? product
                 : overflow(std::isfinite(a) && std::isfinite(b));
    return rounded(product, [=] { return std::fma(a, b, -product) == 0; });
  }
  double scale(const Rational& factor, double a) override {
    const double f = factor.toDouble();
    // Not rounded: x - max(x) is 0 where x is the largest, with noise too.
    if (std::abs(f) == 1 && std::isfinite(a)) return f * a;
    return mul(f, a);
  }
  // Compensated.
  double sum(std::span<const double> terms, std::span<const std::int64_t> weights) override;
  // The same of products, in contiguous memory. With a seed it is changed once, by as much as
  // changes of the products would have come to together.
  double dot(std::span<const double* const> rows, std::size_t n) override;
  double power(double base, int halves) override;
  double exp(double a) override;
  double apply(ops::Function f, std::span<const std::int64_t> params,
               std::span<const double> arguments) override;
  double indicator(double index, std::int64_t value) override;
  double select(double indicator, double x) override {
    return indicator == 0 ? 0 : mul(indicator, x);
  }
  bool isZero(double a) const override { return a == 0; }
  std::optional<std::int64_t> known(double index) const override {
    if (!(std::abs(index) < kLargestIndex) || index != std::trunc(index)) return std::nullopt;
    return static_cast<std::int64_t>(index);
  }
  // Notes the way every threshold and choice goes, in order, and the sizes of what is divided by or
  // has a logarithm taken, and the signs of what has a root taken. Where another evaluation of the
  // same thing, which follows, comes to another decision, it has met a tie, or a number that
  // vanishes up to rounding: neither is to be believed, and what comes of it has no value there.
  void recordDecisions() { recording_ = true; }
  void follow(const DoubleAlgebra& first) { followed_ = &first; }
  // There were more or fewer decisions than in the evaluation that was followed: nothing of this
  // one is to be believed.
  bool strayed() const { return followed_ != nullptr && count_ != followed_->decisions_.size(); }
  // Some decision was another than in the evaluation that was followed.
  bool wavered() const { return wavered_ || strayed(); }
  // Some number was too large or too small for a double. What is too large is no number afterwards,
  // although it is one; what is too small is zero, or with noise any other small number, so that a
  // difference which comes of it does not stay.
  bool outOfRange() const { return outOfRange_; }

 private:
  // False: the evaluation that is followed came to another decision.
  bool decide(std::uint64_t way);
  bool decideMagnitude(double x);
  static constexpr double kSmallest = 1e-290;
  double underflow(double x) {
    outOfRange_ = true;
    if (state_ == 0) return 0;
    return std::copysign(kSmallest * (1 + unit() / 2), x);
  }
  double overflow(bool ofNumbers = true) {
    outOfRange_ = outOfRange_ || ofNumbers;
    return std::numeric_limits<double>::quiet_NaN();
  }
  static constexpr double kLargestIndex = 0x1p53;  // integers are exact below
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // `exact()` is asked of small integers only: whether rounding has not changed them. Those stay as
  // they are, for among them are indices; but an integer that rounding made (1 + 1e-20, the
  // exponential of 1e-20) hides what it came from and is changed as any other number.
  template <class Exact>
  double rounded(double x, Exact exact) {
    if (state_ == 0 || !std::isfinite(x)) return x;
    if (std::abs(x) < 0x1p31 && x == static_cast<double>(static_cast<std::int64_t>(x)) && exact())
      return x;
    return x + x * (unit() * kNoise);
  }
  // At random in [-1, 1).
  double unit() {
    state_ ^= state_ << 13;  // Marsaglia's xorshift
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<double>(static_cast<std::int64_t>(state_)) * 0x1p-63;
  }

  std::uint64_t state_ = 0;  // of the noise; 0: none
  bool recording_ = false;
  std::vector<std::uint32_t> decisions_;  // hashes
  const DoubleAlgebra* followed_ = nullptr;
  bool wavered_ = false;
  std::size_t count_ = 0;  // of decisions so far, where another evaluation is followed
  bool outOfRange_ = false;
};

}  // namespace shardproof
