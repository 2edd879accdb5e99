// SPDX-License-Identifier: Apache-2.0
#include "sweep/result.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "fakes.h"
#include "shardproof/error.h"

namespace shardproof::sweep {
namespace {

using ResultTest = InDirectory;

Result planResult(const std::string& plan) {
  Configuration c;
  c.name = "plan";
  c.plan = plan;
  Result result = resultOf(c);
  setReport(result, proved());
  result.inputs = std::vector{*describeFile(plan)};
  return result;
}

Sweep open(const Sweep& sweep) {
  Sweep now = sweep;
  for (Result& result : now.results) {
    result = inState(result.name, State::kNotRun, "");
    for (const Result& r : sweep.results)
      if (r.name == result.name) result.configuration = r.configuration;
  }
  return now;
}

TEST_F(ResultTest, JsonAndBack) {
  Sweep sweep = sweepOf({done("a", proved()), done("b", exampleReport()), undecided("c"),
                         inState("d", State::kSkipped, "why"), inState("e", State::kNotRun, ""),
                         inState("f", State::kCrashed, "signal 9"),
                         inState("g", State::kInputError, "\xff")});
  sweep.results[1].text = "NOT EQUIVALENT: \xfe";
  const std::string text = sweepText(sweep, Json{{"file", "old.json"}});
  EXPECT_TRUE(Json::accept(text));
  const Sweep again = readSweep(write("s.json", text));
  ASSERT_EQ(again.results.size(), 7u);
  EXPECT_EQ(sweepText(again, Json{{"file", "old.json"}}),
            text);  // but for bytes that are no UTF-8 nothing is lost
  const Json json = Json::parse(text);
  EXPECT_EQ(json.at("summary").at("equivalent"), 1);
  EXPECT_EQ(json.at("summary").at("as_expected"), 1);
  EXPECT_EQ(json.at("configurations").at(0).at("report").at("stages_not_proved").size(), 0u);
  EXPECT_EQ(json.at("configurations").at(1).at("report").at("stages_not_proved").size(), 3u);
  EXPECT_EQ(json.at("configurations").at(1).at("report").at("defects").size(), 2u);
}

TEST_F(ResultTest, OutcomesAreAboutWhatWasExpected) {
  EXPECT_EQ(outcomeOf(done("a", proved())), Outcome::kPassed);
  EXPECT_EQ(outcomeOf(done("a", proved(), Verdict::kNotEquivalent)), Outcome::kFailed);
  EXPECT_EQ(outcomeOf(done("a", exampleReport())), Outcome::kFailed);
  EXPECT_EQ(outcomeOf(done("a", exampleReport(), Verdict::kNotEquivalent)), Outcome::kPassed);
  EXPECT_EQ(outcomeOf(undecided("a")), Outcome::kUndecided);
  Report conditional = proved();
  conditional.verdict = Verdict::kConditional;
  EXPECT_EQ(outcomeOf(done("a", conditional)), Outcome::kConditional);
  EXPECT_EQ(outcomeOf(done("a", conditional, Verdict::kNotEquivalent)), Outcome::kFailed);
  EXPECT_EQ(outcomeOf(resultFromJson(toJson(done("a", conditional)))), Outcome::kConditional);
  EXPECT_EQ(countOf(sweepOf({done("a", conditional)})).conditional, 1u);
  Report partial = exampleReport();
  partial.interrupted = true;
  EXPECT_EQ(outcomeOf(done("a", partial)),
            Outcome::kFailed);  // a defect that was found stays found
  partial.verdict = Verdict::kUndecided;
  EXPECT_EQ(outcomeOf(done("a", partial)), Outcome::kInterrupted);
}

TEST_F(ResultTest, WhatIsNoSweepIsRefused) {
  const std::string good = sweepText(sweepOf({done("a", proved())}), nullptr);
  const auto refused = [&](const std::string& text) {
    EXPECT_THROW(readSweep(write("x.json", text)), InputError) << text.substr(0, 80);
  };
  refused("");
  refused("[]");
  refused("{}");
  refused(good.substr(0, good.size() / 2));
  for (const auto& [path, value] :
       std::vector<std::pair<std::string, Json>>{{"/format", "shardproof-report"},
                                                 {"/version", 2},
                                                 {"/configurations/0/verdict", 1},
                                                 {"/configurations/0/state", "fine"},
                                                 {"/configurations/0/report", nullptr},
                                                 {"/configurations/0/report/statistics", 1},
                                                 {"/configurations/0/report/verdict", "equal"}}) {
    Json json = Json::parse(good);
    json.at(Json::json_pointer(path)) = value;
    if (path != "/configurations/0/verdict") refused(json.dump());
  }
}

TEST_F(ResultTest, FinishedResultsAreTakenOver) {
  const Sweep before =
      sweepOf({done("a", proved()), done("b", exampleReport()), undecided("c"),
               inState("d", State::kInputError, "x"), inState("e", State::kCrashed, "x")});
  Sweep now = open(before);
  now.results[1].expect = Verdict::kNotEquivalent;
  takeOver(now, before);
  EXPECT_TRUE(now.results[0].resumed);
  EXPECT_EQ(outcomeOf(now.results[0]), Outcome::kPassed);
  EXPECT_EQ(outcomeOf(now.results[1]), Outcome::kPassed);  // what is expected now counts
  EXPECT_EQ(outcomeOf(now.results[2]), Outcome::kUndecided);
  EXPECT_EQ(now.results[3].state, State::kNotRun);
  EXPECT_EQ(now.results[4].state, State::kNotRun);
}

TEST_F(ResultTest, OtherOptionsOrAnotherProgramAreRunAgain) {
  const Sweep before = sweepOf({done("a", proved())});
  Sweep now = open(before);
  now.results[0].configuration["generate"]["dp"] = "4";
  takeOver(now, before);
  EXPECT_EQ(now.results[0].state, State::kNotRun);
  now = open(before);
  now.program["version"] = "2";
  takeOver(now, before);
  EXPECT_EQ(now.results[0].state, State::kNotRun);
  Report partial = proved();
  partial.interrupted = true;
  const Sweep interrupted = sweepOf({done("a", partial)});
  now = open(interrupted);
  takeOver(now, interrupted);
  EXPECT_EQ(now.results[0].state, State::kNotRun);
}

TEST_F(ResultTest, ChangedFilesAreRunAgain) {
  const std::string plan = write("p.plan.json", "one");
  const auto takenOver = [&](const Sweep& before) {
    Sweep now = open(before);
    takeOver(now, before);
    return now.results[0].resumed;
  };
  const Sweep before = sweepOf({planResult(plan)});
  EXPECT_TRUE(takenOver(before));

  struct stat status {};
  ASSERT_EQ(::stat(plan.c_str(), &status), 0);
  const timespec times[2] = {status.st_atim, status.st_mtim};
  write("p.plan.json", "two");  // as long, and with the old time
  ASSERT_EQ(::utimensat(AT_FDCWD, plan.c_str(), times, 0), 0);
  EXPECT_FALSE(takenOver(before));

  Sweep unknown = sweepOf({planResult(plan)});
  EXPECT_TRUE(takenOver(unknown));
  unknown.results[0].inputs.reset();
  EXPECT_FALSE(takenOver(unknown));
  std::filesystem::remove(plan);
  EXPECT_FALSE(takenOver(before));
}

TEST_F(ResultTest, PartsGiveEachConfigurationItsOwnResult) {
  const Sweep all =
      sweepOf({done("a", proved()), done("b", exampleReport()),
               inState("c", State::kCrashed, "signal 9"), inState("d", State::kInputError, "why")});
  const auto part = [&](std::vector<std::size_t> chosen) {
    Sweep found = open(all);
    for (const std::size_t i : chosen) found.results[i] = all.results[i];
    return sweepText(found, nullptr);
  };
  Report partial = proved();
  partial.interrupted = true;
  Sweep interrupted = open(all);
  interrupted.results[1] = done("b", partial);
  write("parts/2.json", part({0}));
  write("parts/1.json", part({2}));
  write("parts/3.json", sweepText(interrupted, nullptr));
  write("parts/note.txt", "no part");
  const std::string parts = (dir_ / "parts").string();
  Sweep now = open(all);
  now.results[3] = all.results[3];
  now.results[0].expect = Verdict::kNotEquivalent;
  takeParts(now, parts);
  EXPECT_EQ(outcomeOf(now.results[0]), Outcome::kFailed);  // what is expected here counts
  EXPECT_EQ(now.results[1].state, State::kNotRun);         // it was not finished
  EXPECT_EQ(now.results[2].state, State::kCrashed);
  EXPECT_EQ(now.results[3].state, State::kInputError);
  EXPECT_FALSE(now.results[0].resumed);

  const auto refused = [&](const std::string& text, const std::string& why) {
    write("parts/4.json", text);
    Sweep again = open(all);
    try {
      takeParts(again, parts);
      ADD_FAILURE() << "taken: " << why;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused(part({0}), "'a': a result of it is in");
  Sweep other = open(all);
  other.program["version"] = "2";
  refused(sweepText(other, nullptr), "of another program");
  other = open(all);
  other.results[0].configuration["generate"]["dp"] = "4";
  refused(sweepText(other, nullptr), "expected a configuration of nightly.json");
  other = open(all);
  other.results[0].name = "e";
  refused(sweepText(other, nullptr), "expected a configuration of nightly.json");
  refused("{", "not the JSON file of a sweep");
  EXPECT_THROW(takeParts(now, (dir_ / "none").string()), InputError);
}

TEST_F(ResultTest, APartThatVerifiedOtherContentIsRefused) {
  const std::string plan = write("p.plan.json", "one");
  const Sweep all = sweepOf({planResult(plan)});
  write("parts/1.json", sweepText(all, nullptr));
  const std::string parts = (dir_ / "parts").string();
  write("p.plan.json", "one");  // at another time
  Sweep now = open(all);
  takeParts(now, parts);
  EXPECT_EQ(now.results[0].state, State::kDone);
  write("p.plan.json", "two");
  now = open(all);
  EXPECT_THROW(takeParts(now, parts), InputError);
}

}  // namespace
}  // namespace shardproof::sweep
