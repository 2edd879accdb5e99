// SPDX-License-Identifier: Apache-2.0
// What tests of defects compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan_index.h"
#include "support/problems.h"

namespace shardproof::test {

using Ranks = std::vector<std::int64_t>;
using Pointers = std::vector<std::string>;

inline std::vector<Defect> defectsOf(const Problem& problem) {
  return PlanIndex(problem).defects();
}
inline std::vector<Defect> defectsOf(const Draft& d) { return defectsOf(*read(d)); }

inline Pointers pointersOf(const Defect& defect) {
  Pointers list;
  for (const NodePlace& place : defect.nodes) list.push_back(place.pointer);
  return list;
}

}  // namespace shardproof::test
