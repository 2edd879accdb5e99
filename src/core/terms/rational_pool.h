// SPDX-License-Identifier: Apache-2.0
// Rationals as 32-bit codes: a small integer is its own code, anything else is an index into a pool
// without duplicates. So equal codes are equal values, an entry of a sum or product takes eight
// bytes, and the arithmetic of coefficients 1, -1, 2 never leaves the registers.
#pragma once

#include <cstdint>
#include <vector>

#include "shardproof/rational.h"

namespace shardproof {

using Code = std::uint32_t;

class RationalPool {
 public:
  static constexpr std::int64_t kBias = std::int64_t{1} << 30;
  static constexpr Code kZero = static_cast<Code>(kBias);
  static constexpr Code kOne = kZero + 1;
  static constexpr Code kMinusOne = kZero - 1;

  static bool isSmall(Code c) { return c < 2 * static_cast<Code>(kBias); }
  static std::int64_t small(Code c) { return static_cast<std::int64_t>(c) - kBias; }  // isSmall(c)

  Code encode(std::int64_t v) {
    if (v >= -kBias && v < kBias) return static_cast<Code>(v + kBias);
    return intern(Rational(v));
  }
  Code encode(const Rational& r) { return r.fitsInt64() ? encode(r.toInt64()) : intern(r); }
  Rational decode(Code c) const { return isSmall(c) ? Rational(small(c)) : values_[c - kPooled]; }

  Code add(Code a, Code b) {
    if (isSmall(a) && isSmall(b)) return encode(small(a) + small(b));
    return encode(decode(a) + decode(b));
  }
  Code multiply(Code a, Code b) {
    if (a == kOne) return b;
    if (b == kOne) return a;
    if (isSmall(a) && isSmall(b)) return encode(small(a) * small(b));
    return encode(decode(a) * decode(b));
  }
  Code negate(Code a) { return isSmall(a) ? encode(-small(a)) : encode(-decode(a)); }
  Code inverse(Code a) { return a == kOne || a == kMinusOne ? a : encode(decode(a).inverse()); }
  Code minimum(Code a, Code b) const { return less(b, a) ? b : a; }
  bool less(Code a, Code b) const {
    if (isSmall(a) && isSmall(b)) return a < b;
    return decode(a) < decode(b);
  }
  int sign(Code a) const {
    return isSmall(a) ? (a > kZero) - (a < kZero) : values_[a - kPooled].sign();
  }
  // The largest integer that is not above the value.
  Code floor(Code a);
  // base^exponent. Throws Unsupported when the exponent is not an integer, or when the result would
  // not fit any sensible memory.
  Code power(Code base, Code exponent);

  std::size_t memoryBytes() const {
    return values_.capacity() * sizeof(Rational) + slots_.capacity() * sizeof(std::uint32_t);
  }

 private:
  static constexpr Code kPooled = 2 * static_cast<Code>(kBias);
  Code intern(const Rational& r);
  void grow();

  std::vector<Rational> values_;
  std::vector<std::uint32_t> slots_;  // open addressing: index into values_ plus one, zero is free
};

}  // namespace shardproof
