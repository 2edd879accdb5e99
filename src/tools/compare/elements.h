// SPDX-License-Identifier: Apache-2.0
// Elements of the tensors of a trace: the dtypes of safetensors, as doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardproof::compare {

enum class Dtype : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};

// Nothing for a name that is none of the dtypes above (of safetensors, as "BF16").
std::optional<Dtype> dtypeNamed(std::string_view name);
const char* toString(Dtype dtype);
std::size_t bytesOfElement(Dtype dtype);
bool isFloat(Dtype dtype);

// The distance from 1 to the next larger number; 0 of integers.
double epsilon(Dtype dtype);

// `count` elements that begin at `data`, which need not be aligned, as doubles. Integers beyond
// 2^53 are rounded: `largestExact` below is what a caller compares them with.
void widen(Dtype dtype, const std::byte* data, std::size_t count, double* out);
constexpr double kLargestExact = 9007199254740992.0;  // 2^53

}  // namespace shardproof::compare
