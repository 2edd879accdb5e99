// SPDX-License-Identifier: Apache-2.0
// Where what floating point gives has no meaning: numbers that overflow, underflow or vanish up to
// rounding, and infinities that are no mask's. Of such results nothing is concluded
// (Value::unknown).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/call.h"
#include "executor/value.h"

namespace shardproof::executor {

template <class T>
class FloatingPointGuard {
 public:
  using Operands = std::vector<const Value<T>*>;
  FloatingPointGuard(Memory& memory, Context& context) : memory_(memory), context_(context) {}

  bool measures = false;  // Value::reach, overflows and underflows

  // Near their limits of 0 or 1 in size these functions hide all differences of their arguments:
  // agreement behind them says little.
  void countSaturated(const Value<T>& y) const {
    if constexpr (!kIsField<T>) {
      context_.saturated += std::count_if(y.data(), y.data() + y.size(), [](T v) {
        return 1 - std::abs(v) < static_cast<T>(0x1p-20);
      });
    }
  }

  // What should be 0 and is a few roundings instead: whether these operators have a value there,
  // and which, is rounding's decision.
  void refuseSingularity(std::string_view name, const Attributes& attributes, const Operands& in,
                         std::vector<Value<T>>& out) const {
    static const std::map<std::string_view, std::size_t> kOperands{
        {"log", 0},           {"log_backward", 1}, {"sqrt", 0},           {"sqrt_backward", 1},
        {"rsqrt", 0},         {"pow", 0},          {"rsqrt_backward", 1}, {"pow_backward", 1},
        {"relu_backward", 1}, {"div", 1},          {"div_backward", 2}};
    if constexpr (!kIsField<T>) {
      const auto it = kOperands.find(name);
      if (it == kOperands.end() || it->second >= in.size() || in[it->second] == nullptr) return;
      if (name.starts_with("pow")) {
        const Rational exponent = numberOf(attributes, "scalar");
        if (exponent.isInteger() && !(exponent < Rational(0))) return;
      }
      const Value<T>& x = *in[it->second];
      const T vanished = static_cast<T>(x.reach) * 16 * std::numeric_limits<T>::epsilon();
      if (std::none_of(x.data(), x.data() + x.size(),
                       [&](T v) { return v != 0 && std::abs(v) <= vanished; }))
        return;
      for (Value<T>& v : out)
        if (v && !v.unknown) v.unknown = vanished_;
    }
  }

  // These are positive, however small, but of a mask: a zero of theirs is an underflow, of which
  // nothing follows either.
  void refuseZero(const Operands& in, std::vector<Value<T>>& out) const {
    if constexpr (!kIsField<T>) {
      if (std::any_of(in.begin(), in.end(),
                      [](const Value<T>* v) { return v != nullptr && v->masked; }))
        return;
      for (Value<T>& v : out)
        if (v && !v.unknown &&
            std::any_of(v.data(), v.data() + v.size(), [](T x) { return x == 0; }))
          v.unknown = underflow_;
    }
  }

  // An exponential is 1 at 0 alone: what has been rounded to 1 would have no logarithm of its
  // logarithm.
  void refuseOne(const Value<T>& x, Value<T>& y) const {
    if constexpr (!kIsField<T>) {
      if (y.unknown || x.size() != y.size()) return;
      for (std::int64_t i = 0; i < y.size() && !y.unknown; ++i)
        if (y.data()[i] == 1 && x.data()[i] != 0) y.unknown = underflow_;
    }
  }

  // Minus infinity is a mask's. What would be plus infinity, a negative multiple or a square of it,
  // is an operation that needs a number, and must not come back as minus infinity or as the 0 of an
  // exponential.
  void refusePlusInfinity(std::vector<Value<T>>& out) const {
    if constexpr (!kIsField<T>) {
      for (Value<T>& v : out) {
        if (!v || v.element == ElementKind::kInteger) continue;
        const T* p = v.data();
        v.masked = std::any_of(p, p + v.size(),
                               [](T x) { return x == -std::numeric_limits<T>::infinity(); });
        if (std::none_of(p, p + v.size(),
                         [](T x) { return x == std::numeric_limits<T>::infinity(); }))
          continue;
        Value<T> other(memory_, v.shape, v.element);  // the buffer may be an operand's
        std::transform(p, p + v.size(), other.writable(), [](T x) {
          return x == std::numeric_limits<T>::infinity() ? undefined<T>() : x;
        });
        other.unknown = v.unknown;
        other.masked = v.masked;
        other.reach = v.reach;
        v = std::move(other);
      }
    }
  }

  // An infinity that is no mask's is an overflow: a number that this arithmetic does not have, of
  // which nothing follows.
  void measure(Value<T>& v, double from = 0) const {
    if (!measures) return;
    v.reach = std::max({v.reach, from, largest(v)});
    if constexpr (!kIsField<T>) {
      if (!v.masked && !v.unknown &&
          std::any_of(v.data(), v.data() + v.size(), [](T x) { return std::isinf(x); }))
        v.unknown = overflow_;
    }
  }

  // Products of the two largest operands are among what is added up in a contraction, and may be
  // larger than all that is seen before and after.
  void measureResults(const Operands& in, std::vector<Value<T>>& out) const {
    double from = 0, first = 0, second = 0;
    for (const Value<T>* v : in) {
      if (v == nullptr) continue;
      from = std::max(from, v->reach);
      const double m = largest(*v);
      second = std::max(second, std::min(m, first));
      first = std::max(first, m);
    }
    from = std::max(from, first * second);
    for (Value<T>& v : out)
      if (v) measure(v, from);
  }

 private:
  static double largest(const Value<T>& v) {
    double m = 0;
    if constexpr (!kIsField<T>) {
      if (v.element == ElementKind::kInteger) return 0;  // indices are not computed with
      const T* p = v.data();
      for (std::int64_t i = 0; i < v.size(); ++i)
        if (std::isfinite(p[i])) m = std::max(m, toDouble(std::abs(p[i])));
    }
    return m;
  }

  Memory& memory_;
  Context& context_;
  const std::shared_ptr<const std::string> overflow_ =
      std::make_shared<const std::string>("numbers are too large for floating point");
  const std::shared_ptr<const std::string> vanished_ = std::make_shared<const std::string>(
      "a number that vanishes up to rounding is divided by, or has its root or logarithm taken");
  const std::shared_ptr<const std::string> underflow_ =
      std::make_shared<const std::string>("numbers are too small for floating point");
};

}  // namespace shardproof::executor
