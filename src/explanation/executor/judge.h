// SPDX-License-Identifier: Apache-2.0
// From distances to a judgement: is a difference one of the two computations, or of rounding?
//
// Doubles that are nearly equal agree. All else is looked at again: in long doubles, whose rounding
// is 2048 times smaller, at the same inputs, and at inputs that are moved a little, twice. What
// rounding makes shrinks; what comes from a tie, a kink or a threshold goes away; what is left is a
// difference.
//
// Where everything cancels, both sides are rounding, or one is and the other is exactly 0: they
// differ by all of their size, in either type. There the distance itself has to shrink, and to be
// no more than rounding makes of the numbers that were computed with (Value::reach). Both are
// asked: a small part of what cancelled may be all of a value that was meant to be so small, but
// that does not shrink; and distances that shrink are of rounding only as far as rounding goes.
// What does not shrink and is no larger than rounding is not told apart: not agreement, as it may
// be a difference, nor a difference.
#pragma once

#include <string>
#include <vector>

#include "executor/compare.h"
#include "executor/interpret.h"

namespace shardproof::executor {

// Distances up to here are taken for rounding at once. What is large sums more, over more layers,
// and cannot so easily be computed again.
constexpr double kAgreeSmall = 0x1p-40, kAgreeLarge = 0x1p-33, kAgreeLong = 0x1p-51;
constexpr double kLargeFlops = 1e9;
// From so many operations on nothing is computed again in long doubles, which take a hundred times
// as long.
constexpr double kNoLongFlops = 3e10;

struct Judgement {
  Agreement agreement = Agreement::kUnknown;
  std::string reason;
};

// `first`: in doubles; `again`: in long doubles at the same inputs; `moved`: in long doubles at
// moved ones. `close`: some decision was made by less than rounding.
Judgement judge(const Comparison& first, const Comparison& again,
                const std::vector<Comparison>& moved, bool close);
// Without long doubles: only what is a million times rounding, and stays at moved inputs, is a
// difference.
Judgement judgeInDoubles(const Comparison& first, const std::vector<Comparison>& moved, bool close);

}  // namespace shardproof::executor
