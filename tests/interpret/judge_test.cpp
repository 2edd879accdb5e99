#include "interpret/judge.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardproof::interpret {
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

TEST(Judge, InDoublesOnlyWhatIsFarAboveRounding) {
  EXPECT_EQ(judgeInDoubles(seen(1e-2), {seen(1e-2), seen(2e-2)}, false).agreement,
            Agreement::kDiffers);
  EXPECT_EQ(judgeInDoubles(seen(1e-2), {seen(1e-2), seen(1e-9)}, false).agreement,
            Agreement::kUnknown);
  EXPECT_EQ(judgeInDoubles(seen(1e-7), {seen(1e-7), seen(1e-7)}, false).agreement,
            Agreement::kUnknown);
}

}  // namespace
}  // namespace shardproof::interpret
