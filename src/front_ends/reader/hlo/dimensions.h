// SPDX-License-Identifier: Apache-2.0
// Lists of dimensions and sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "reader/hlo/graph.h"
#include "util/index.h"

namespace shardproof::hlo {

// One for each dimension of a product: more than these are not supported.
inline constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

inline bool contains(const Sizes& list, std::size_t d) {
  return std::find(list.begin(), list.end(), static_cast<std::int64_t>(d)) != list.end();
}

// The position of d in the list; d is in it.
inline std::size_t placeOf(const Sizes& list, std::size_t d) {
  return at(std::find(list.begin(), list.end(), static_cast<std::int64_t>(d)) - list.begin());
}

// For a reshape by which only dimensions of size 1 come or go: for each new dimension the old one,
// or -1. Nothing where it is another reshape.
std::optional<std::vector<int>> onesOnly(const Sizes& from, const Sizes& to);

}  // namespace shardproof::hlo
