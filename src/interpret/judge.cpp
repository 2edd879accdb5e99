#include "interpret/judge.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace shardproof::interpret {
namespace {

// Long doubles reduce what rounding made by 2^11; chance may take a factor of 2^5 from that, or a
// bit more.
constexpr double kShrunk = 0x1p-6, kStayed = 0x1p-2;

constexpr double kFarAboveRounding = 1e-6;

std::string number(double x) {
  std::ostringstream s;
  s.precision(2);
  s << x;
  return s.str();
}

// A difference of this size, at inputs that are moved a little.
Judgement stays(double size, const std::vector<Comparison>& moved, double rounding, bool close) {
  for (const Comparison& m : moved) {
    if (m.compared > 0 && m.worst > std::max(rounding, 1e-3 * std::min(size, 1.0))) continue;
    return {Agreement::kUnknown,
            m.compared == 0 ? "the model has no value when the inputs are moved a little"
                            : "a difference of " + number(size) +
                                  " (relative) goes away when the inputs are moved a little"};
  }
  if (close)
    return {Agreement::kUnknown, "a difference of " + number(size) +
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
  if (std::isfinite(first.worst) && again.worst < first.worst * kStayed)
    return {Agreement::kUnknown, "a difference of " + number(first.worst) +
                                     " (relative) in doubles is " + number(again.worst) +
                                     " in long doubles: rounding may have made it"};
  return stays(again.worst, moved, kAgreeLong, close);
}

Judgement judgeInDoubles(const Comparison& first, const std::vector<Comparison>& moved,
                         bool close) {
  if (first.worst <= kFarAboveRounding)
    return {Agreement::kUnknown, "a difference of " + number(first.worst) +
                                     " (relative) may be rounding, and the plan is too large to be "
                                     "computed again in long doubles"};
  return stays(first.worst, moved, kFarAboveRounding, close);
}

}  // namespace shardproof::interpret
