// SPDX-License-Identifier: Apache-2.0
// What kernels need of a number, for each arithmetic: doubles, long doubles and the prime field.
// Where a function has no value the result is "no value" (a nan): also 1/0 and log(0), so that an
// infinity always comes from a mask, or from an overflow.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "executor/prime_field.h"
#include "shardproof/rational.h"

namespace shardproof::executor {

template <class T>
inline constexpr bool kIsField = std::is_same_v<T, Field>;

// The opaque functions, by number: the hash of a prime-field argument begins with it.
enum class Opaque : std::uint64_t {
  kExp = 1,
  kLog,
  kRoot,
  kSigmoid,
  kTanh,
  kNormalCdf,
  kNormalPdf,
  kStep,
  kConstant,
  kSine,
  kCosine,
  kErf,
  kFloor,
  kCeil,
  kRound,
  kTruncate
};

inline std::uint64_t mixed(std::uint64_t x) {  // Steele, Lea, Flood 2014: SplitMix64's finaliser
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline Field hashed(Opaque f, Field x) {
  if (x.special()) return Field::raw(Field::kUndefined);
  return Field::raw(mixed(mixed(x.v) ^ mixed(static_cast<std::uint64_t>(f) << 32)) % Field::kPrime);
}

// --- values ---

template <class T>
T undefined() {
  if constexpr (kIsField<T>) return Field::raw(Field::kUndefined);
  else return std::numeric_limits<T>::quiet_NaN();
}
template <class T>
T minusInfinity() {
  if constexpr (kIsField<T>) return Field::raw(Field::kMinusInfinity);
  else return -std::numeric_limits<T>::infinity();
}
inline bool isUndefined(Field x) { return x.undefined(); }
inline bool isUndefined(double x) { return std::isnan(x); }
inline bool isUndefined(long double x) { return std::isnan(x); }
inline bool isZero(Field x) { return x.v == 0; }
inline bool isZero(double x) { return x == 0; }
inline bool isZero(long double x) { return x == 0; }

template <class T>
T fromInteger(std::int64_t n) {
  return static_cast<T>(n);
}

// Whole numbers are stored as such; a number that is none, or is not within +-2^53, is no index.
constexpr std::int64_t kNoIndex = std::numeric_limits<std::int64_t>::min();
inline std::int64_t toIndex(long double x) {
  if (!(x >= -0x1p53L && x <= 0x1p53L)) return kNoIndex;
  const auto n = static_cast<std::int64_t>(x);
  return static_cast<long double>(n) == x ? n : kNoIndex;
}
inline std::int64_t toIndex(double x) {
  if (!(x >= -0x1p53 && x <= 0x1p53)) return kNoIndex;
  const auto n = static_cast<std::int64_t>(x);
  return static_cast<double>(n) == x ? n : kNoIndex;
}
inline std::int64_t toIndex(Field x) {
  if (x.special()) return kNoIndex;
  constexpr std::uint64_t limit = std::uint64_t{1} << 53;
  if (x.v <= limit) return static_cast<std::int64_t>(x.v);
  return Field::kPrime - x.v <= limit ? -static_cast<std::int64_t>(Field::kPrime - x.v) : kNoIndex;
}

inline Field inverse(Field x) {  // Fermat
  if (x.special() || x.v == 0) return Field::raw(Field::kUndefined);
  Field result(1), power = x;
  for (std::uint64_t e = Field::kPrime - 2; e != 0; e >>= 1) {
    if (e & 1) result *= power;
    power *= power;
  }
  return result;
}

template <class T>
T fromRational(const Rational& r) {
  if constexpr (kIsField<T>) {
    try {
      return Field::raw(r.modulo(Field::kPrime));
    } catch (const std::domain_error&) {
      return undefined<Field>();
    }
  } else if constexpr (std::is_same_v<T, double>) {
    return r.toDouble();
  } else {
    return std::stold(r.numeratorString()) / std::stold(r.denominatorString());
  }
}

// --- arithmetic ---

template <class T>
T divide(T a, T b) {
  if constexpr (kIsField<T>) return a * inverse(b);
  else return b == 0 || std::isinf(b) ? undefined<T>() : a / b;
}

template <class T>
T expOf(T x) {
  if constexpr (kIsField<T>)
    return x.infinite() ? Field(0) : x.v == 0 ? Field(1) : hashed(Opaque::kExp, x);
  else return std::exp(x);
}
template <class T>
T logOf(T x) {
  if constexpr (kIsField<T>) return x.v == 1 ? Field(0) : hashed(Opaque::kLog, x);
  else return x > 0 ? std::log(x) : undefined<T>();
}
template <class T>
T rootOf(T x) {
  if constexpr (kIsField<T>) return x.v <= 1 ? x : hashed(Opaque::kRoot, x);
  else return x >= 0 ? std::sqrt(x) : undefined<T>();
}
template <class T>
T inverseRootOf(T x) {
  if constexpr (kIsField<T>) return inverse(rootOf(x));
  else return x > 0 && !std::isinf(x) ? 1 / std::sqrt(x) : undefined<T>();
}
template <class T>
T sigmoidOf(T x) {
  if constexpr (kIsField<T>) {
    return hashed(Opaque::kSigmoid, x);
  } else {
    if (x >= 0) return 1 / (1 + std::exp(-x));
    const T e = std::exp(x);
    return e / (1 + e);
  }
}
template <class T>
T tanhOf(T x) {
  if constexpr (kIsField<T>) return x.v == 0 ? x : hashed(Opaque::kTanh, x);
  else return std::tanh(x);
}
template <class T>
T normalCdf(T x) {
  if constexpr (kIsField<T>) return hashed(Opaque::kNormalCdf, x);
  else return std::erfc(-x * static_cast<T>(0.707106781186547524400844362104849039L)) / 2;
}
template <class T>
T normalPdf(T x) {
  if constexpr (kIsField<T>) return hashed(Opaque::kNormalPdf, x);
  else return std::exp(-x * x / 2) * static_cast<T>(0.398942280401432677939946059934381868L);
}
template <class T>
T rootOfTwoOverPi() {
  if constexpr (kIsField<T>) return hashed(Opaque::kConstant, Field(2));
  else return static_cast<T>(0.797884560802865355879892119868763737L);
}

// A function that is an opaque one in the field.
template <Opaque f, class T>
T opaqueOf(T x) {
  if constexpr (kIsField<T>) return hashed(f, x);
  else if constexpr (f == Opaque::kSine) return std::sin(x);
  else if constexpr (f == Opaque::kCosine) return std::cos(x);
  else if constexpr (f == Opaque::kErf) return std::erf(x);
  else if constexpr (f == Opaque::kFloor) return std::floor(x);
  else if constexpr (f == Opaque::kCeil) return std::ceil(x);
  else if constexpr (f == Opaque::kRound) return std::nearbyint(x);
  else return std::trunc(x);
}

// 1 where x > 0, else 0. The field has no order: a hash decides, the same way for the same
// argument.
template <class T>
T stepOf(T x) {
  if constexpr (kIsField<T>)
    return x.special() ? undefined<T>() : x.v == 0 ? x : Field::raw(hashed(Opaque::kStep, x).v & 1);
  else return std::isnan(x) ? x : static_cast<T>(x > 0 ? 1 : 0);
}

// An order of representatives stands for the order of reals: maxima nest, repeat and commute as
// they do.
inline bool lessThan(Field a, Field b) {
  return a.infinite() ? !b.infinite() : !b.infinite() && a.v < b.v;
}
inline bool lessThan(double a, double b) { return a < b; }
inline bool lessThan(long double a, long double b) { return a < b; }
template <class T>
T maximumOf(T a, T b) {
  if (isUndefined(a)) return a;
  if (isUndefined(b)) return b;
  return lessThan(a, b) ? b : a;
}
template <class T>
T minimumOf(T a, T b) {
  if (isUndefined(a)) return a;
  if (isUndefined(b)) return b;
  return lessThan(b, a) ? b : a;
}

template <class T>
T integerPower(T x, std::int64_t n) {
  T result = static_cast<T>(1), power = n < 0 ? divide(static_cast<T>(1), x) : x;
  for (std::uint64_t e = n < 0 ? static_cast<std::uint64_t>(-n) : static_cast<std::uint64_t>(n);
       e != 0; e >>= 1) {
    if (e & 1) result = result * power;
    if (e > 1) power = power * power;
  }
  return result;
}

// x^(halves / 2); x^0 is 1 wherever x is a number.
template <class T>
T powerOf(T x, std::int64_t halves) {
  if (isUndefined(x)) return x;
  if (halves == 0) return x * T(0) + T(1);
  return halves % 2 == 0 ? integerPower(x, halves / 2) : integerPower(rootOf(x), halves);
}

inline double toDouble(double x) { return x; }
inline double toDouble(long double x) { return static_cast<double>(x); }
inline double toDouble(Field x) {
  if (x.undefined()) return std::numeric_limits<double>::quiet_NaN();
  return x.infinite() ? -std::numeric_limits<double>::infinity() : static_cast<double>(x.v);
}

}  // namespace shardproof::executor
