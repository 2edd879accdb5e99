// SPDX-License-Identifier: Apache-2.0
// Is the plan's array the model's? Element by element, wherever the model has a value. How far two
// numbers are apart is measured against their own size and, so that sums that nearly cancel are not
// judged by their last digits, a small part of the largest number around them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/claims.h"
#include "executor/interpret.h"
#include "executor/value.h"

namespace shardproof::executor {

// Of one lineage entry, in one run.
struct Comparison {
  std::int64_t compared = 0, undefined = 0;
  double worst =
      0;  // the largest distance; infinity: the plan has no value where the model has one
  double apart = 0;  // |a - b| of those further away than `tolerance`, the largest that is a number
  double reach = 0;  // Value::reach of what was compared; 0: not measured
  std::optional<Difference> first;  // the first element that is further away than `tolerance`
  std::string unknown;              // why nothing can be said of some of it

  void merge(const Comparison& other);
};

// Compares the claim's box of `logical` with `local`, which has its extent. In the prime field the
// distance is 0 or 1.
template <class T>
void compare(const Claim& claim, const Value<T>& logical, const Value<T>& local, double tolerance,
             Comparison& to);

}  // namespace shardproof::executor
