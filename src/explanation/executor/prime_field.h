// SPDX-License-Identifier: Apache-2.0
// Integers modulo the prime 2^61 - 1, with two more values: "no value" (after a division by 0) and
// minus infinity (of masks). Functions that have no counterpart among integers are hashes of their
// argument: two computations that apply them to equal arguments agree exactly, and different
// arguments give different values but by a chance of 2^-61. Laws of the true functions (exp(a + b)
// = exp(a) exp(b), sqrt(x)^2 = x) do not hold.
#pragma once

#include <cstdint>

namespace shardproof::executor {

__extension__ typedef unsigned __int128 Wide;  // of GCC and Clang: no part of C++

class Field {
 public:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  static constexpr std::uint64_t kUndefined = std::uint64_t{1} << 63,
                                 kMinusInfinity = std::uint64_t{1} << 62;

  Field() = default;  // not initialised, as a double is not
  constexpr explicit Field(std::int64_t n)
      : v(n >= 0 ? static_cast<std::uint64_t>(n) % kPrime
                 : negated(static_cast<std::uint64_t>(-(n + 1)) % kPrime + 1)) {}
  static constexpr Field raw(std::uint64_t bits) {
    Field f;
    f.v = bits;
    return f;
  }
  constexpr bool special() const { return v >= kMinusInfinity; }
  constexpr bool undefined() const { return v == kUndefined; }
  constexpr bool infinite() const { return v == kMinusInfinity; }

  friend constexpr bool operator==(Field, Field) = default;
  friend constexpr Field operator+(Field a, Field b) {
    if (a.special() || b.special())
      return raw(a.undefined() || b.undefined() ? kUndefined : kMinusInfinity);
    const std::uint64_t s = a.v + b.v;
    return raw(s >= kPrime ? s - kPrime : s);
  }
  friend constexpr Field operator-(Field a) {
    return a.special() ? raw(kUndefined) : raw(a.v == 0 ? 0 : kPrime - a.v);
  }
  friend constexpr Field operator-(Field a, Field b) {
    if (b.special()) return raw(kUndefined);  // there is no plus infinity here
    return a + -b;
  }
  friend constexpr Field operator*(Field a, Field b) {
    if (a.special() || b.special())
      return raw(kUndefined);  // which infinity it is would need a sign
    return raw(reduced(static_cast<Wide>(a.v) * b.v));
  }
  Field& operator+=(Field o) { return *this = *this + o; }
  Field& operator-=(Field o) { return *this = *this - o; }
  Field& operator*=(Field o) { return *this = *this * o; }

  static constexpr std::uint64_t reduced(Wide x) {
    // 2^61 = 1: add the three digits to base 2^61.
    std::uint64_t s = (static_cast<std::uint64_t>(x) & kPrime) +
                      (static_cast<std::uint64_t>(x >> 61) & kPrime) +
                      static_cast<std::uint64_t>(x >> 122);
    s = (s & kPrime) + (s >> 61);
    return s >= kPrime ? s - kPrime : s;
  }

  std::uint64_t v;

 private:
  static constexpr std::uint64_t negated(std::uint64_t n) {
    return n % kPrime == 0 ? 0 : kPrime - n % kPrime;
  }
};

}  // namespace shardproof::executor
