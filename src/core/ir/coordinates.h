// SPDX-License-Identifier: Apache-2.0
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

// The coordinates of an axis, [low, high), that stretches leave.
struct Range {
  std::int32_t low = 0, high = 0;
  std::int32_t size() const { return high - low; }
  friend bool operator==(const Range&, const Range&) = default;
};
inline Range rangeOf(const Plan& plan, const Stretches& within, std::int32_t axis) {
  for (const Stretch& s : within)
    if (s.axis == axis) return {s.low, s.high};
  return {0, static_cast<std::int32_t>(axisSize(plan, axis))};
}
// Of a coordinate of a shard that is not summed over.
inline Range rangeOf(const Plan& plan, const Shard& shard, std::int32_t axis) {
  return rangeOf(plan, shard.parts.front().within, axis);
}

// Do both agree on every axis that both name? Then some rank agrees with both.
inline bool mayMeet(const Coordinates& a, const Coordinates& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].first == b[j].first && a[i].second != b[j].second) return false;
    (a[i].first < b[j].first ? i : j) += 1;
  }
  return true;
}
inline bool mayMeet(const Coordinates& at, const Stretches& within) {
  return std::all_of(within.begin(), within.end(), [&](const Stretch& s) {
    return std::all_of(at.begin(), at.end(),
                       [&](const auto& c) { return c.first != s.axis || s.contains(c.second); });
  });
}
inline bool mayMeet(const Stretches& a, const Stretches& b) {
  return std::all_of(a.begin(), a.end(), [&](const Stretch& s) {
    return std::all_of(b.begin(), b.end(), [&](const Stretch& t) {
      return s.axis != t.axis || (s.low < t.high && t.low < s.high);
    });
  });
}
// Of what has `at` and `within`: programs, and parts of lineage.
template <class A, class B>
bool mayMeet(const A& a, const B& b) requires requires {
  a.within, b.within;
}
{
  return mayMeet(a.at, b.at) && mayMeet(a.at, b.within) && mayMeet(b.at, a.within) &&
         mayMeet(a.within, b.within);
}

inline bool sameAxes(const Coordinates& a, const Coordinates& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first; });
}

}  // namespace shardproof::ir
