// SPDX-License-Identifier: Apache-2.0
#include "executor/judge.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardproof::executor {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::infinity();

Comparison seen(double worst, std::int64_t compared = 10) {
  Comparison c;
  c.compared = compared;
  c.worst = worst;
  return c;
}
Agreement of(double first, double again, std::vector<Comparison> moved, bool close = false) {
  return judge(seen(first), seen(again), moved, close).agreement;
}

TEST(Judge, RoundingShrinksInALongerType) {
  EXPECT_EQ(of(1e-11, 1e-11 / 2048, {}), Agreement::kAgrees);
  EXPECT_EQ(of(1e-3, 1e-3 / 700, {}), Agreement::kAgrees);
  EXPECT_EQ(of(1e-12, 1e-16, {}), Agreement::kAgrees);
}

TEST(Judge, WhatStaysIsADifferenceIfItStaysAtMovedInputs) {
  EXPECT_EQ(of(1e-11, 1e-11, {seen(1.1e-11), seen(9e-12)}), Agreement::kDiffers);
  EXPECT_EQ(of(0.5, 0.5, {seen(0.5), seen(0.4)}), Agreement::kDiffers);
  EXPECT_EQ(of(kNoValue, kNoValue, {seen(kNoValue), seen(kNoValue)}), Agreement::kDiffers);
  EXPECT_EQ(of(0.5, 0.5, {seen(0.5), seen(0)}), Agreement::kUnknown);
  EXPECT_EQ(of(0.5, 0.5, {seen(0.5), seen(1e-8)}), Agreement::kUnknown);
  EXPECT_EQ(of(0.5, 0.5, {seen(0.5, 0), seen(0.5)}), Agreement::kUnknown);
}

TEST(Judge, BetweenTheTwoNothingIsSaid) {
  EXPECT_EQ(of(1e-6, 1e-7, {seen(1e-7), seen(1e-7)}), Agreement::kUnknown);
}

TEST(Judge, ADifferenceAfterACloseDecisionIsNone) {
  EXPECT_EQ(of(0.5, 0.5, {seen(0.5), seen(0.5)}, true), Agreement::kUnknown);
  EXPECT_EQ(of(1e-12, 1e-17, {}, true), Agreement::kAgrees);
}

// Both sides cancel, or one is 0: distances are all of the size.
Comparison cancelled(double apart, double reach) {
  Comparison c = seen(1);
  c.apart = apart;
  c.reach = reach;
  return c;
}

TEST(Judge, WhereAllCancelsTheDistanceItselfShrinks) {
  const auto of = [](double first, double again, double reach) {
    const Comparison m = cancelled(again, reach);
    return judge(cancelled(first, 0), m, {m, m}, false).agreement;
  };
  EXPECT_EQ(of(1e-17, 5e-21, 1), Agreement::kAgrees);
  EXPECT_EQ(of(1e-12, 5e-16, 1e5), Agreement::kAgrees);
  // Small, but it does not shrink: a difference, or chance.
  EXPECT_EQ(of(5e-21, 5e-21, 1), Agreement::kUnknown);
  EXPECT_EQ(of(1e-20, 1e-20, 1), Agreement::kUnknown);
  // More than rounding makes of what was computed with.
  EXPECT_EQ(of(1e-14, 1e-14, 1), Agreement::kDiffers);
  EXPECT_EQ(of(1e-20, 1e-20, 1e-6), Agreement::kDiffers);
  EXPECT_EQ(of(1e-3, 1e-3, 1e3), Agreement::kDiffers);
  // Nothing was measured.
  EXPECT_EQ(of(1e-17, 5e-21, 0), Agreement::kDiffers);
  // No value is no small one.
  Comparison none = cancelled(0, 1);
  none.worst = kNoValue;
  EXPECT_EQ(judge(none, none, {none, none}, false).agreement, Agreement::kDiffers);
}

TEST(Judge, InDoublesWhatCancelsIsNotToldApart) {
  EXPECT_EQ(judgeInDoubles(cancelled(1e-17, 0), {cancelled(1e-17, 1), cancelled(1e-17, 1)}, false)
                .agreement,
            Agreement::kUnknown);
  EXPECT_EQ(
      judgeInDoubles(cancelled(1e-9, 0), {cancelled(1e-9, 1), cancelled(1e-9, 1)}, false).agreement,
      Agreement::kDiffers);
}

TEST(Judge, InDoublesOnlyWhatIsFarAboveRounding) {
  EXPECT_EQ(judgeInDoubles(seen(1e-2), {seen(1e-2), seen(2e-2)}, false).agreement,
            Agreement::kDiffers);
  EXPECT_EQ(judgeInDoubles(seen(1e-2), {seen(1e-2), seen(1e-9)}, false).agreement,
            Agreement::kUnknown);
  EXPECT_EQ(judgeInDoubles(seen(1e-7), {seen(1e-7), seen(1e-7)}, false).agreement,
            Agreement::kUnknown);
}

}  // namespace
}  // namespace shardproof::executor
