// SPDX-License-Identifier: Apache-2.0
// Which attempts are made, what the report lists of them, and that a run keeps to its budget.
#include "attempts/attempts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/infer.h"
#include "shardproof/verify.h"
#include "support/columns.h"
#include "support/problems.h"
#include "verify/attempt.h"

namespace shardproof {
namespace {

using test::columns;
using test::Draft;

std::vector<std::string> namesOf(const Report& report) {
  std::vector<std::string> names;
  for (const AttemptReport& attempt : report.attempts) names.push_back(attempt.name);
  return names;
}

VerifyOptions oneJob() {
  VerifyOptions options;
  options.jobs = 1;
  return options;
}

Report verified(const Draft& d, Infer infer, const VerifyOptions& options = oneJob()) {
  auto problem = test::read(d);
  return verifyInferring(problem, options, infer);
}

TEST(Attempts, OneIsEnoughWhereItSettlesTheVerdict) {
  for (const auto& [infer, name] :
       {std::pair(Infer::kAuto, "as given, 5 s a stage"), std::pair(Infer::kNever, "as given")}) {
    const Report right = verified(columns("relu", true), infer);
    EXPECT_EQ(right.verdict, Verdict::kEquivalent);
    EXPECT_EQ(namesOf(right), std::vector<std::string>{name});
    EXPECT_EQ(right.attempts[0].outputsProved, 1u);
    const Report wrong = verified(columns("sigmoid", true), infer);
    EXPECT_EQ(wrong.verdict, Verdict::kNotEquivalent);
    EXPECT_EQ(namesOf(wrong), std::vector<std::string>{name});
  }
}

// The one cut point of a right and of a wrong plan is made wrong.
TEST(Attempts, AWrongCutPointDoesNotChangeTheVerdict) {
  const auto places = {R"({"box": [[0, 4], [4, 8]], "step": {"tp": [0, -4]}})",
                       R"({"box": [[0, 4], [0, 4]], "step": {"tp": [0, 0]}})"};
  for (const char* place : places) {
    for (const auto& [op, verdict] :
         {std::pair("relu", Verdict::kEquivalent), std::pair("sigmoid", Verdict::kNotEquivalent)}) {
      Draft d = columns(op, true);
      d.plan["lineage"].back()["shards"][0].update(test::Json::parse(place));
      const Report report = verified(d, Infer::kAuto);
      EXPECT_EQ(report.verdict, verdict) << place << op;
      if (verdict != Verdict::kEquivalent) continue;
      for (const StageReport& stage : report.stages)
        if (stage.role == Role::kCutPoint && !stage.inferred) {
          EXPECT_EQ(stage.verdict, StageVerdict::kWrongLineage) << place;
        }
    }
  }
}

// Numbers are asked beside the first proofs; with one job before them.
TEST(Attempts, ACutPointThatNumbersContradictEndsTheFirstAttempt) {
  for (const auto& [op, verdict] :
       {std::pair("relu", Verdict::kEquivalent), std::pair("sigmoid", Verdict::kNotEquivalent)}) {
    Draft d = columns(op, true);
    d.plan["lineage"].back()["shards"][0].update(
        test::Json::parse(R"({"box": [[0, 4], [4, 8]], "step": {"tp": [0, -4]}})"));
    const auto problem = test::read(d);
    const EntryId cutPoint(problem->plan.lineage.size() - 1);
    // Of a wrong plan the outputs differ, and nothing is said of cut points.
    const bool right = verdict == Verdict::kEquivalent;
    EXPECT_EQ(contradictedCutPoints(*problem, 10, 1024),
              right ? std::vector{cutPoint} : std::vector<EntryId>());
    const Report report = verified(d, Infer::kAuto);
    EXPECT_EQ(report.verdict, verdict);
    EXPECT_EQ(report.attempts.size() > 1, right);
    EXPECT_EQ(report.attempts[0].outputsProved, 0u);
  }
  EXPECT_TRUE(contradictedCutPoints(*test::read(columns("relu", true)), 10, 1024).empty());
}

// Without the plan's cut points: what holds is proved for the report, what does not is named.
TEST(Attempts, CutPointsThatAnAttemptDoesWithoutAreJudged) {
  for (const bool wrong : {false, true}) {
    Draft d = columns("relu", true);
    if (wrong)
      d.plan["lineage"].back()["shards"][0].update(
          test::Json::parse(R"({"box": [[0, 4], [4, 8]], "step": {"tp": [0, -4]}})"));
    const auto problem = test::read(d);
    InferOptions options;
    options.trustsCutPoints = false;
    const Inferred inferred = inferLineage(*problem, options);
    ASSERT_NE(inferred.problem, nullptr);
    EXPECT_EQ(inferred.count, 1u);  // of h, where the plan has a cut point already
    const EntryId cutPoint(problem->plan.lineage.size() - 1);
    const Report report =
        verifyOnce(*inferred.problem, oneJob(), {.name = "alone"}, Budget(), {}, {cutPoint});
    EXPECT_EQ(report.verdict, Verdict::kEquivalent);
    for (const StageReport& stage : report.stages) {
      const bool own = stage.role == Role::kCutPoint && !stage.inferred;
      EXPECT_EQ(stage.verdict, own && wrong ? StageVerdict::kWrongLineage : StageVerdict::kProved)
          << stage.tensor;
      // Nothing rests on it.
      if (own) continue;
      for (const auto used : stage.assumptions) {
        const LineageEntry& entry = inferred.problem->plan.lineage[EntryId(used)];
        EXPECT_TRUE(entry.role != Role::kCutPoint || entry.inferred);
      }
    }
  }
}

// Each rank multiplies what it has of u by the weights of its own positions. Their parts add up to
// the weights, but a stage that knows only that is refuted.
TEST(Attempts, ATrueLemmaThatHidesAMaskIsCutPast) {
  const auto program = [](int rank, const char* mask) {
    return test::Json::parse(R"({"at": {"tp": )" + std::to_string(rank) + R"(}, "tensors": {
        "lw": {"shape": [8], "kind": "input"}, "lu": {"shape": [4], "kind": "input"},
        "mask": {"shape": [8], "kind": "constant", "value": )" +
                             mask + R"(},
        "masked": {"shape": [8]}, "twice": {"shape": [8]}, "both": {"shape": [8]},
        "t": {"shape": [8]}, "part": {"shape": [8]}, "lm": {"shape": [8]}, "ly": {"shape": [8]}},
      "nodes": [{"op": "mul", "in": ["lw", "mask"], "out": ["masked"]},
                {"op": "mul", "in": ["masked"], "out": ["twice"], "attrs": {"scalar": 2}},
                {"op": "cat", "in": ["lu", "lu"], "out": ["both"], "attrs": {"dim": 0}},
                {"op": "tanh", "in": ["both"], "out": ["t"]},
                {"op": "mul", "in": ["twice", "t"], "out": ["part"]},
                {"op": "all_reduce", "in": ["part"], "out": ["lm"], "comm": "c",
                 "group": ["tp"]},
                {"op": "relu", "in": ["lm"], "out": ["ly"]}]})");
  };
  Draft d = test::draft(
      R"({"tensors": {"w": {"shape": [8], "kind": "input"}, "u": {"shape": [8], "kind": "input"},
          "w2": {"shape": [8]}, "t": {"shape": [8]}, "m": {"shape": [8]}, "y": {"shape": [8]}},
          "nodes": [{"op": "mul", "in": ["w"], "out": ["w2"], "attrs": {"scalar": 2}},
                    {"op": "tanh", "in": ["u"], "out": ["t"]},
                    {"op": "mul", "in": ["w2", "t"], "out": ["m"]},
                    {"op": "relu", "in": ["m"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["tp", 2]], "programs": [], "lineage": [
          {"tensor": "w", "role": "input", "shards": [{"box": [[0, 8]],
           "parts": [{"local": "lw"}]}]},
          {"tensor": "u", "role": "input", "shards": [{"box": [[0, 4]], "step": {"tp": [4]},
           "parts": [{"local": "lu"}]}]},
          {"tensor": "y", "role": "output", "shards": [{"box": [[0, 8]],
           "parts": [{"local": "ly"}]}]}]})");
  d.plan["programs"] = {program(0, "[1, 1, 1, 1, 0, 0, 0, 0]"),
                        program(1, "[0, 0, 0, 0, 1, 1, 1, 1]")};
  const Report report = verified(d, Infer::kAlways);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent);
  std::size_t sums = 0;
  for (const StageReport& stage : report.stages) {
    if (!stage.inferred) continue;
    EXPECT_NE(stage.tensor, "u") << "inputs that only moved";
    if (stage.tensor != "m") continue;
    ++sums;
    EXPECT_EQ(stage.verdict, StageVerdict::kProved) << stage.reason;
  }
  EXPECT_GT(sums, 0u);
  // The other half of u.
  d.plan["programs"][1]["tensors"]["mask"]["value"] = {1, 1, 1, 1, 0, 0, 0, 0};
  EXPECT_EQ(verified(d, Infer::kAlways).verdict, Verdict::kNotEquivalent);
}

TEST(Attempts, APlanWithFewOperatorsIsTriedFirst) {
  EXPECT_EQ(namesOf(verified(columns("relu", false), Infer::kAuto)),
            std::vector<std::string>{"as given, 5 s a stage"});
  // With so little time there is nothing to be kept back for another attempt.
  VerifyOptions options = oneJob();
  options.stageSeconds = 4;
  EXPECT_EQ(namesOf(verified(columns("relu", false), Infer::kAuto, options)),
            std::vector<std::string>{"with inferred lemmas"});
}

TEST(Attempts, InferenceIsDoneWhereItIsAskedFor) {
  const Report always = verified(columns("relu", false), Infer::kAlways);
  EXPECT_EQ(namesOf(always), std::vector<std::string>{"with inferred lemmas"});
  EXPECT_GT(always.attempts[0].lemmas, 0u);
  EXPECT_EQ(namesOf(verified(columns("relu", false), Infer::kNever)),
            std::vector<std::string>{"as given"});
}

TEST(Attempts, ARunWithoutTimeIsUndecidedAndNamesTheOption) {
  for (const Infer infer : {Infer::kAuto, Infer::kAlways, Infer::kNever}) {
    VerifyOptions options = oneJob();
    options.runSeconds = 1e-9;
    const Report report = verified(columns("relu", true), infer, options);
    EXPECT_EQ(report.verdict, Verdict::kUndecided);
    EXPECT_FALSE(report.interrupted);
    EXPECT_NE(report.reason.find("--timeout"), std::string::npos) << report.reason;
    EXPECT_LE(report.attempts.size(), 1u);
  }
}

TEST(Attempts, ACancelledRunIsInterrupted) {
  const std::atomic<bool> cancel = true;
  VerifyOptions options = oneJob();
  options.cancel = &cancel;
  const Report report = verified(columns("relu", true), Infer::kAuto, options);
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
}

TEST(Budget, APartEndsNoLaterThanTheWhole) {
  const Budget whole(1);
  EXPECT_LE(whole.within(100).left(), 1);
  EXPECT_LE(whole.within(0.5).left(), 0.5);
  EXPECT_TRUE(whole.within(0).over());
  EXPECT_FALSE(whole.over());
  EXPECT_EQ(Budget().left(), std::numeric_limits<double>::infinity());
  std::atomic<bool> cancel = false;
  const Budget cancellable(1, &cancel);
  EXPECT_FALSE(cancellable.over());
  cancel = true;
  EXPECT_TRUE(cancellable.over());
  EXPECT_TRUE(cancellable.within(0.5).cancelled());
  EXPECT_FALSE(cancellable.timedOut());
}

}  // namespace
}  // namespace shardproof
