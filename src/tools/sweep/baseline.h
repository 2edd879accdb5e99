// SPDX-License-Identifier: Apache-2.0
// What differs from an earlier sweep. Configurations are the same when their names are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sweep/result.h"

namespace shardproof::sweep {

// kWorse: the outcome is further from the expected one (as expected, then skipped, then the
// opposite or undecided, then no verdict at all). kOther: another outcome, neither better nor
// worse. kInput: other options or other content of the files. kCounts: outputs, stages or classes.
// Time is noise unless it is far off.
enum class ChangeKind : std::uint8_t {
  kWorse,
  kBetter,
  kOther,
  kNew,
  kRemoved,
  kInput,
  kCounts,
  kSlower,
  kFaster
};

struct Change {
  std::string name;
  ChangeKind kind;
  std::string text;
};

// Times that differ by less than either are taken to be equal.
constexpr double kTimeFactor = 1.5;
constexpr double kTimeFloorSeconds = 1;

// Sorted by kind. What was not run in one of the two is not compared.
std::vector<Change> compare(const Sweep& before, const Sweep& now);

// Was there a verdict that is now missing because the configuration is skipped? All else that
// became worse shows in its own outcome.
bool lostCoverage(const Sweep& before, const Sweep& now);

Json toJson(const std::vector<Change>& changes);
const char* toString(ChangeKind kind);

}  // namespace shardproof::sweep
