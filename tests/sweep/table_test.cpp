// SPDX-License-Identifier: Apache-2.0
#include "sweep/table.h"

#include "fakes.h"

namespace shardproof::sweep {
namespace {

TEST(TableTest, RowsStandInColumns) {
  const std::vector<Result> results = {
      done("short", proved()), done("a longer name", exampleReport()),
      inState("x", State::kSkipped, "--zero 1 needs --dp of at least 2")};
  const Table table(results);
  EXPECT_EQ(table.header(),
            "      name           verdict           ranks      outputs   stages  classes  cached  "
            "generate s  verify s      MB\n");
  EXPECT_EQ(table.row(results[0]),
            "ok    short          equivalent            4          3/3        5        4       0   "
            "               1.50     100\n");
  EXPECT_EQ(table.row(results[1]),
            "FAIL  a longer name  not equivalent        4          2/3        5        4       0   "
            "               1.50     100  the gradient of w is not what the model computes\n");
  const std::string skipped = table.row(results[2]);
  EXPECT_EQ(skipped.rfind("-     x              skipped ", 0), 0u) << skipped;
  EXPECT_NE(skipped.find("  --zero 1 needs --dp of at least 2\n"), std::string::npos) << skipped;
}

TEST(TableTest, ControlCharactersDoNotReachTheTerminal) {
  const Result result = inState("a\x1b[2J", State::kInputError, "b\x07");
  const std::string row = Table({result}).row(result);
  EXPECT_EQ(row.find('\x1b'), std::string::npos);
  EXPECT_EQ(row.find('\x07'), std::string::npos);
}

TEST(TableTest, Summary) {
  const std::string text = summaryText(sweepOf(
      {done("a", proved()), done("b", exampleReport(), Verdict::kNotEquivalent), undecided("c"),
       inState("d", State::kSkipped, "x"), inState("e", State::kNotRun, "")}));
  EXPECT_EQ(text,
            "Sweep:  5 configurations: 1 equivalent, 1 not equivalent, 1 undecided, 1 skipped, 1 "
            "not run; 2 as expected; 12 classes, of which 0 were proved before; 4.5 s\n");
}

}  // namespace
}  // namespace shardproof::sweep
