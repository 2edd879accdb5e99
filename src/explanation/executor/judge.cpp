// SPDX-License-Identifier: Apache-2.0
#include "executor/judge.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace shardproof::executor {
namespace {

// Long doubles reduce what rounding made by 2^11; chance may take a factor of 2^5 from that, or a
// bit more.
constexpr double kShrunk = 0x1p-6, kStayed = 0x1p-2;

constexpr double kFarAboveRounding = 1e-6;

// Of what was computed with: 2^10 roundings of a long double, and of a double. Sums of many
// numbers, and what kernels multiply inside, make more than one.
constexpr double kVanishesLong = 0x1p-54, kVanishes = 0x1p-43;

std::string twoDigits(double x) {
  std::ostringstream s;
  s.precision(2);
  s << x;
  return s.str();
}

// All that is too far away is no more than rounding may make it.
bool vanishes(const Comparison& c, double part) {
  return std::isfinite(c.worst) && c.reach > 0 && c.apart <= part * c.reach;
}
std::string vanishing(const Comparison& c) {
  return "a difference of " + twoDigits(c.apart) + " where numbers up to " + twoDigits(c.reach) +
         " were computed with";
}

// A difference of this size, at inputs that are moved a little.
Judgement stays(double size, const std::vector<Comparison>& moved, double rounding, bool close) {
  for (const Comparison& m : moved) {
    if (!m.unknown.empty()) return {Agreement::kUnknown, m.unknown};
    if (m.compared > 0 && m.worst > std::max(rounding, 1e-3 * std::min(size, 1.0))) continue;
    return {Agreement::kUnknown,
            m.compared == 0 ? "the model has no value when the inputs are moved a little"
                            : "a difference of " + twoDigits(size) +
                                  " (relative) goes away when the inputs are moved a little"};
  }
  if (close)
    return {Agreement::kUnknown, "a difference of " + twoDigits(size) +
                                     " (relative) follows a decision that rounding may have made"};
  return {Agreement::kDiffers, {}};
}

}  // namespace

Judgement judge(const Comparison& first, const Comparison& again,
                const std::vector<Comparison>& moved, bool close) {
  if (!again.unknown.empty()) return {Agreement::kUnknown, again.unknown};
  if (again.worst <= kAgreeLong) return {Agreement::kAgrees, {}};
  if (std::isfinite(first.worst) && again.worst <= first.worst * kShrunk)
    return {Agreement::kAgrees, {}};
  if (vanishes(again, kVanishesLong)) {
    if (std::isfinite(first.worst) && again.apart <= first.apart * kShrunk)
      return {Agreement::kAgrees, {}};
    return {Agreement::kUnknown,
            vanishing(again) + ": values that vanish up to rounding were not told apart"};
  }
  if (std::isfinite(first.worst) && again.worst < first.worst * kStayed)
    return {Agreement::kUnknown, "a difference of " + twoDigits(first.worst) +
                                     " (relative) in doubles is " + twoDigits(again.worst) +
                                     " in long doubles: rounding may have made it"};
  return stays(again.worst, moved, kAgreeLong, close);
}

Judgement judgeInDoubles(const Comparison& first, const std::vector<Comparison>& moved,
                         bool close) {
  if (first.worst <= kFarAboveRounding)
    return {Agreement::kUnknown, "a difference of " + twoDigits(first.worst) +
                                     " (relative) may be rounding, and the plan is too large to be "
                                     "computed again in long doubles"};
  for (const Comparison& m : moved)
    if (vanishes(m, kVanishes))
      return {Agreement::kUnknown, vanishing(m) +
                                       " may be rounding, and the plan is too large to be computed "
                                       "again in long doubles"};
  return stays(first.worst, moved, kFarAboveRounding, close);
}

}  // namespace shardproof::executor
