// SPDX-License-Identifier: Apache-2.0
#include "sweep/baseline.h"

#include "fakes.h"

namespace shardproof::sweep {
namespace {

std::vector<std::string> kinds(const Sweep& before, const Sweep& now) {
  std::vector<std::string> list;
  for (const Change& change : compare(before, now))
    list.push_back(change.name + " " + toString(change.kind));
  return list;
}
std::vector<std::string> kinds(const Result& before, const Result& now) {
  return kinds(sweepOf({before}), sweepOf({now}));
}

using Kinds = std::vector<std::string>;

Report slow(double seconds) {
  Report report = proved();
  report.statistics.secondsTotal = seconds;
  return report;
}

TEST(BaselineTest, NothingChanged) {
  EXPECT_EQ(kinds(done("a", proved()), done("a", proved())), Kinds{});
}

TEST(BaselineTest, Verdicts) {
  const Result good = done("a", proved()), bad = done("a", exampleReport()), open = undecided("a");
  const Result skipped = inState("a", State::kSkipped, "x"),
               error = inState("a", State::kInputError, "x");
  for (const Result& worse : {bad, open, skipped, error}) {
    EXPECT_EQ(kinds(good, worse).at(0), "a worse");
    EXPECT_EQ(kinds(worse, good).at(0), "a better");
  }
  EXPECT_EQ(kinds(bad, open).at(0), "a other");
  Report onConditions = proved();
  onConditions.verdict = Verdict::kConditional;
  EXPECT_EQ(kinds(good, done("a", onConditions)).at(0), "a worse");
  EXPECT_EQ(kinds(open, done("a", onConditions)).at(0), "a better");
  EXPECT_EQ(kinds(skipped, open).at(0), "a worse");
  EXPECT_EQ(kinds(error, open).at(0), "a better");
  EXPECT_EQ(compare(sweepOf({good}), sweepOf({open})).at(0).text,
            "equivalent -> undecided: no answer within 60 s");
  // Of a plan that is known to be wrong, "equivalent" is the worse verdict.
  EXPECT_EQ(kinds(done("a", exampleReport(), Verdict::kNotEquivalent),
                  done("a", proved(), Verdict::kNotEquivalent))
                .at(0),
            "a worse");
}

TEST(BaselineTest, OnlyASkippedVerdictIsLostSilently) {
  const Sweep before = sweepOf({done("a", proved())});
  EXPECT_TRUE(lostCoverage(before, sweepOf({inState("a", State::kSkipped, "x")})));
  EXPECT_FALSE(lostCoverage(before, sweepOf({undecided("a")})));
  EXPECT_FALSE(lostCoverage(before, sweepOf({})));
  EXPECT_FALSE(lostCoverage(sweepOf({inState("a", State::kSkipped, "x")}),
                            sweepOf({inState("a", State::kSkipped, "x")})));
}

TEST(BaselineTest, NewRemovedAndNotRun) {
  EXPECT_EQ(kinds(sweepOf({done("a", proved())}), sweepOf({done("b", proved())})),
            (Kinds{"b new", "a removed"}));
  EXPECT_EQ(kinds(done("a", proved()), inState("a", State::kNotRun, "")), Kinds{});
  EXPECT_EQ(kinds(inState("a", State::kNotRun, ""), done("a", proved())), (Kinds{"a new"}));
}

TEST(BaselineTest, Numbers) {
  Report other = proved();
  other.statistics.stages = 7;
  other.statistics.classes = 3;
  const auto changes = compare(sweepOf({done("a", proved())}), sweepOf({done("a", other)}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, ChangeKind::kCounts);
  EXPECT_EQ(changes[0].text, "stages 5 -> 7, classes 4 -> 3");
}

TEST(BaselineTest, TimesOnlyWhereTheyAreFarOff) {
  EXPECT_EQ(kinds(done("a", slow(0.01)), done("a", slow(0.9))), Kinds{});  // below the floor
  EXPECT_EQ(kinds(done("a", slow(10)), done("a", slow(14))), Kinds{});     // below the factor
  EXPECT_EQ(kinds(done("a", slow(10)), done("a", slow(16))), Kinds{"a slower"});
  EXPECT_EQ(kinds(done("a", slow(16)), done("a", slow(10))), Kinds{"a faster"});
  EXPECT_EQ(compare(sweepOf({done("a", slow(10))}), sweepOf({done("a", slow(20))})).at(0).text,
            "10.0 s -> 20.0 s (2.00x)");
}

TEST(BaselineTest, OtherInputs) {
  Result before = done("a", proved()), now = before;
  now.configuration["generate"]["dp"] = "8";
  EXPECT_EQ(kinds(before, now), Kinds{"a input"});
  now = before;
  before.inputs = now.inputs = std::vector{InputFile{"p", 3, 100, 7}};
  now.inputs->front().modified = 200;
  EXPECT_EQ(kinds(before, now), Kinds{});  // only written again
  now.inputs->front().crc = 8;
  EXPECT_EQ(kinds(before, now), Kinds{"a input"});
}

}  // namespace
}  // namespace shardproof::sweep
