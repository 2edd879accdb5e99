// Assignments of coordinates to some axes of the mesh, compared.
#pragma once

#include <algorithm>

#include "shardproof/graph.h"

namespace shardproof::ir {

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
