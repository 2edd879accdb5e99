// SPDX-License-Identifier: Apache-2.0
// Sets of axes to try, small ones first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shardproof::infer {

// The nonempty subsets of at most 16 axes, by size and then in the order of `axes`.
inline std::vector<std::vector<std::int32_t>> subsetsOf(const std::vector<std::int32_t>& axes) {
  constexpr std::size_t kMost = 16;
  std::vector<std::vector<std::int32_t>> sets;
  if (axes.size() > kMost) return sets;
  for (std::size_t bits = 1; bits < (std::size_t{1} << axes.size()); ++bits) {
    sets.emplace_back();
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (bits >> i & 1) sets.back().push_back(axes[i]);
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return sets;
}

}  // namespace shardproof::infer
