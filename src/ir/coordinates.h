// The axes over which ranks and microbatches are told apart, and assignments of coordinates to some
// of them, compared.
#pragma once

#include <algorithm>

#include "shardproof/graph.h"

namespace shardproof::ir {

// How many ranks an axis of the mesh has, or how many microbatches there are.
inline std::int64_t axisSize(const Plan& plan, std::int32_t axis) {
  return axis == kMicrobatchAxis ? plan.microbatches : plan.mesh[axis].size;
}

// Do both agree on every axis that both name? Then some rank agrees with both.
inline bool mayMeet(const Coordinates& a, const Coordinates& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].first == b[j].first && a[i].second != b[j].second) return false;
    (a[i].first < b[j].first ? i : j) += 1;
  }
  return true;
}

inline bool sameAxes(const Coordinates& a, const Coordinates& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first; });
}

}  // namespace shardproof::ir
