// SPDX-License-Identifier: Apache-2.0
// What is known of all elements of a tensor of the model, for every input.
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof {

// Where the value is defined.
enum class Sign : std::uint8_t { kUnknown, kNonNegative, kPositive };

struct TensorFacts {
  bool total = true;           // it is defined for every input of the model
  bool mayBeInfinite = false;  // minus infinity, through a mask
  Sign sign = Sign::kUnknown;

  static TensorFacts unknown() {
    return {.total = false, .mayBeInfinite = false, .sign = Sign::kUnknown};
  }
  // All of it as a number below kCodes.
  static constexpr std::int64_t kCodes = 12;
  std::int64_t code() const {
    return (static_cast<std::int64_t>(sign) * 2 + mayBeInfinite) * 2 + !total;
  }
  static TensorFacts of(std::int64_t code) {
    return {.total = code % 2 == 0,
            .mayBeInfinite = code / 2 % 2 != 0,
            .sign = static_cast<Sign>(code / 4 % 3)};
  }
  friend bool operator==(const TensorFacts&, const TensorFacts&) = default;
};

using ModelFacts = std::vector<TensorFacts>;  // by tensor of the model

}  // namespace shardproof
