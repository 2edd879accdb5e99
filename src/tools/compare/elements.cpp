// SPDX-License-Identifier: Apache-2.0
#include "compare/elements.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardproof::compare {
namespace {

struct Description {
  Dtype dtype;
  const char* name;
  std::size_t bytes;
  double epsilon;
};

constexpr std::array kDescriptions = {
    Description{Dtype::kBool, "BOOL", 1, 0},
    Description{Dtype::kU8, "U8", 1, 0},
    Description{Dtype::kI8, "I8", 1, 0},
    Description{Dtype::kF8E4M3, "F8_E4M3", 1, 0x1p-3},
    Description{Dtype::kF8E5M2, "F8_E5M2", 1, 0x1p-2},
    Description{Dtype::kU16, "U16", 2, 0},
    Description{Dtype::kI16, "I16", 2, 0},
    Description{Dtype::kF16, "F16", 2, 0x1p-10},
    Description{Dtype::kBF16, "BF16", 2, 0x1p-7},
    Description{Dtype::kU32, "U32", 4, 0},
    Description{Dtype::kI32, "I32", 4, 0},
    Description{Dtype::kF32, "F32", 4, 0x1p-23},
    Description{Dtype::kU64, "U64", 8, 0},
    Description{Dtype::kI64, "I64", 8, 0},
    Description{Dtype::kF64, "F64", 8, 0x1p-52},
};

const Description& descriptionOf(Dtype dtype) {
  return kDescriptions[static_cast<std::size_t>(dtype)];
}

// IEEE-like formats with subnormal numbers. `infinite`: the largest exponent is that of infinities
// and NaN; else only the number with all bits set is NaN (the float8 format E4M3 "fn").
double fromBits(unsigned bits, int exponentBits, int mantissaBits, bool infinite) {
  const unsigned mantissa = bits & ((1U << mantissaBits) - 1);
  const unsigned exponent = (bits >> mantissaBits) & ((1U << exponentBits) - 1);
  const bool negative = ((bits >> (mantissaBits + exponentBits)) & 1U) != 0;
  const unsigned most = (1U << exponentBits) - 1;
  const int bias = (1 << (exponentBits - 1)) - 1;
  double value = 0;
  if (exponent == most && infinite)
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  else if (exponent == most && mantissa == (1U << mantissaBits) - 1)
    value = std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0) value = std::ldexp(mantissa, 1 - bias - mantissaBits);
  else
    value = std::ldexp((1U << mantissaBits) | mantissa,
                       static_cast<int>(exponent) - bias - mantissaBits);
  return negative ? -value : value;
}

template <int kExponentBits, int kMantissaBits, bool kInfinite>
const float* table() {
  constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static const auto values = [] {
    std::array<float, std::size_t{1} << kBits> all{};
    for (unsigned bits = 0; bits < all.size(); ++bits)
      all[bits] = static_cast<float>(fromBits(bits, kExponentBits, kMantissaBits, kInfinite));
    return all;
  }();
  return values.data();
}

template <class T>
void copyAs(const std::byte* data, std::size_t count, double* out) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

template <class T>
void lookUp(const float* values, const std::byte* data, std::size_t count, double* out) {
  for (std::size_t i = 0; i < count; ++i) {
    T bits;
    std::memcpy(&bits, data + i * sizeof(T), sizeof(T));
    out[i] = values[bits];
  }
}

}  // namespace

std::optional<Dtype> dtypeNamed(std::string_view name) {
  for (const Description& d : kDescriptions)
    if (name == d.name) return d.dtype;
  return std::nullopt;
}

const char* toString(Dtype dtype) { return descriptionOf(dtype).name; }
std::size_t bytesOfElement(Dtype dtype) { return descriptionOf(dtype).bytes; }
double epsilon(Dtype dtype) { return descriptionOf(dtype).epsilon; }
bool isFloat(Dtype dtype) { return epsilon(dtype) > 0; }

void widen(Dtype dtype, const std::byte* data, std::size_t count, double* out) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
      return copyAs<std::uint8_t>(data, count, out);
    case Dtype::kI8:
      return copyAs<std::int8_t>(data, count, out);
    case Dtype::kF8E4M3:
      return lookUp<std::uint8_t>(table<4, 3, false>(), data, count, out);
    case Dtype::kF8E5M2:
      return lookUp<std::uint8_t>(table<5, 2, true>(), data, count, out);
    case Dtype::kU16:
      return copyAs<std::uint16_t>(data, count, out);
    case Dtype::kI16:
      return copyAs<std::int16_t>(data, count, out);
    case Dtype::kF16:
      return lookUp<std::uint16_t>(table<5, 10, true>(), data, count, out);
    case Dtype::kBF16:
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, data + i * 2, 2);
        out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
      }
      return;
    case Dtype::kU32:
      return copyAs<std::uint32_t>(data, count, out);
    case Dtype::kI32:
      return copyAs<std::int32_t>(data, count, out);
    case Dtype::kF32:
      return copyAs<float>(data, count, out);
    case Dtype::kU64:
      return copyAs<std::uint64_t>(data, count, out);
    case Dtype::kI64:
      return copyAs<std::int64_t>(data, count, out);
    case Dtype::kF64:
      return copyAs<double>(data, count, out);
  }
}

}  // namespace shardproof::compare
