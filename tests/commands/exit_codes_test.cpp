// SPDX-License-Identifier: Apache-2.0
#include "report/exit_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <iterator>

namespace shardproof {
namespace {

int code(Verdict verdict, bool interrupted = false, int signal = 0) {
  Report report;
  report.verdict = verdict;
  report.interrupted = interrupted;
  return exitCodeFor(report, signal);
}

TEST(ExitCodes, Verdicts) {
  EXPECT_EQ(code(Verdict::kEquivalent), 0);
  EXPECT_EQ(code(Verdict::kNotEquivalent), 10);
  EXPECT_EQ(code(Verdict::kUndecided), 5);
  EXPECT_EQ(code(Verdict::kConditional), 4);
}

TEST(ExitCodes, Interruption) {
  EXPECT_EQ(code(Verdict::kUndecided, true, SIGINT), 130);
  EXPECT_EQ(code(Verdict::kUndecided, true, SIGTERM), 143);
  EXPECT_EQ(code(Verdict::kNotEquivalent, true, SIGINT), 10) << "what was found stays found";
  EXPECT_EQ(code(Verdict::kEquivalent, false, SIGINT), 0)
      << "the signal came too late to change anything";
}

TEST(ExitCodes, OfSeveralPlansTheWorst) {
  const int worst[] = {kExitInternal,        kExitOutOfMemory, kExitInput,       kExitNotEquivalent,
                       kExitSignal + SIGINT, kExitUndecided,   kExitConditional, kExitEquivalent};
  for (std::size_t a = 0; a < std::size(worst); ++a) {
    for (std::size_t b = 0; b < std::size(worst); ++b)
      EXPECT_EQ(worse(worst[a], worst[b]), worst[std::min(a, b)]);
  }
}

}  // namespace
}  // namespace shardproof
