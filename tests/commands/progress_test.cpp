// SPDX-License-Identifier: Apache-2.0
#include "commands/progress.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(Progress, Line) {
  EXPECT_EQ(Progress::line(12, 24, "checking", 80), "[############............] 12/24 checking");
  EXPECT_EQ(Progress::line(5, 1000, "x", 80), "[........................]    5/1000 x");
  EXPECT_EQ(Progress::line(7, 5, "x", 80), "[########################] 5/5 x");
  EXPECT_EQ(Progress::line(0, 0, "reading", 80), "reading");
}

TEST(Progress, LineOfALog) {
  EXPECT_EQ(Progress::logLine(90, 12, 24, "checking"),
            "shardproof: 1 min 30 s: checking, 12 of 24\n");
  EXPECT_EQ(Progress::logLine(30.2, 0, 0, "reading"), "shardproof: 30.2 s: reading\n");
}

TEST(Progress, FitsTheTerminal) { EXPECT_EQ(Progress::line(12, 24, "checking", 10), "[#########"); }

}  // namespace
}  // namespace shardproof
