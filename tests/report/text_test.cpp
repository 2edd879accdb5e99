// SPDX-License-Identifier: Apache-2.0
#include "report/text.h"

#include <gtest/gtest.h>

#include <sstream>

#include "example_report.h"

namespace shardproof {
namespace {

std::string text(const Report& report, bool quiet = false) {
  std::ostringstream out;
  writeText(out, report, quiet);
  return out.str();
}

bool has(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

TEST(TextReport, WholeReport) {
  EXPECT_EQ(
      text(exampleReport()),
      "NOT EQUIVALENT: plan mlp.plan.json does not compute what model mlp.model.json computes (2 "
      "defects, 2 of 3 outputs proved)\n"
      R"(
Defect 1 of 2 (lineage): the gradient of w is not what the model computes
  claim:       w.grad[0:8, 0:4] == gw.2 on tp 0
  ranks:       0-3
  microbatch:  1
  look at:     plan   /programs/0/nodes/17  linear_backward  mlp.py:12
               model  /nodes/4              linear_backward
  differs at:  w.grad[0, 0] is 1.5 in the model, -inf in the plan
  when:        (values of the tensors that this stage starts from)
    x[0, 0]                 =  1
    local gh.1@rank 3[0, 1] = -0.5
    and 7 more

Defect 2 of 2 (deadlock): ranks 0 and 2 wait for each other
  ranks:       0, 2

Compared: 3 outputs

Proved: 2 of 5 stages, by 1 proof (stages that differ only in names share one)
  2  plan and model reduce to the same expressions (1 proof)

)"
      "Wrong lineage: 1 cut point does not hold although the outputs do; the lineage is wrong "
      "there, "
      "not the plan:\n"
      R"(  a (/lineage/5)

Undecided: 1 stage
  1  no answer within 60 s: s

)"
      "Plan:   4 ranks, 2 microbatches; 40 program nodes stand for 320 operator instances; 12 "
      "lineage entries\n"
      R"(Time:   1.5 s (check 1.2 s, read 0.25 s)
Memory: 100 MB at most
Lost:   1 worker process crashed or overran the limits
)");
}

TEST(TextReport, VerdictLines) {
  Report report = exampleReport();
  report.verdict = Verdict::kEquivalent;
  report.outputs = report.outputsProved = 22;
  EXPECT_EQ(text(report, true),
            "EQUIVALENT: plan mlp.plan.json computes what model mlp.model.json computes, for every "
            "input (22 of 22 outputs proved)\n");
  report.verdict = Verdict::kUndecided;
  report.outputsProved = 21;
  report.reason = "1 stage ran out of time";
  EXPECT_EQ(text(report, true),
            "UNDECIDED: whether plan mlp.plan.json computes what model mlp.model.json computes "
            "could "
            "not be settled (21 of 22 outputs proved): "
            "1 stage ran out of time\n");
}

Report conditionalReport() {
  Report report = exampleReport();
  report.verdict = Verdict::kConditional;
  report.outputsProved = report.outputs;
  report.defects.clear();
  report.compared = {{"loss", {"loss"}}, {"gradients", {"a", "b"}}, {"buffers", {"c"}}};
  report.notCompared = {{"leaf 8x4.0", "rank 1 has none", false}, {"seed", "", true}};
  report.assumptions = {{"fractions", AssumptionClass::kHarmless, "0.1 is 1/10"},
                        {"identical-ranks", AssumptionClass::kCheckable, "ranks run alike"},
                        {"initial-values", AssumptionClass::kRisk, "buffers begin equal"},
                        {"fractions", AssumptionClass::kHarmless, "0.3 is 3/10"},
                        {"valid-labels", AssumptionClass::kRisk, "no label is -100", true}};
  return report;
}

TEST(TextReport, ConditionsAreNamedWithTheOptionsThatAcceptThem) {
  Report report = conditionalReport();
  EXPECT_EQ(text(report, true),
            "CONDITIONAL: plan mlp.plan.json computes what model mlp.model.json computes (3 of 3 "
            "outputs proved) if: initial-values, leaf 8x4.0 (not compared); to accept: --accept "
            "initial-values --allow-uncompared 'leaf 8x4.0'\n");
  for (const char* name : {"it's", "b", "c", "d"})
    report.assumptions.push_back({name, AssumptionClass::kRisk, "so"});
  EXPECT_TRUE(has(text(report, true),
                  "if: initial-values, it's, b and 3 more; to accept: --accept initial-values "
                  "--accept 'it'\\''s' --accept b ...\n"))
      << text(report, true);
}

TEST(TextReport, TheLedgerFoldsWhatIsHarmless) {
  const std::string ledger =
      "\nCompared: loss, 2 gradients, 1 buffer\n"
      "Not compared: leaf 8x4.0 because rank 1 has none\n"
      "Not compared (allowed): seed\n"
      "Assumed (risk, not accepted): initial-values: buffers begin equal\n"
      "Assumed (risk, accepted): valid-labels: no label is -100\n"
      "Assumed (checkable): identical-ranks: ranks run alike\n"
      "Assumed (harmless): fractions (2): 0.1 is 1/10\n\n";
  EXPECT_TRUE(has(text(conditionalReport()), ledger)) << text(conditionalReport());
  std::ostringstream all;
  TextStyle style;
  style.verbose = true;
  writeText(all, conditionalReport(), style);
  EXPECT_TRUE(has(all.str(), "fractions: 0.1 is 1/10\nAssumed (harmless): fractions: 0.3 is 3/10"))
      << all.str();
}

TEST(TextReport, SeveralPlans) {
  Report right = exampleReport();
  right.verdict = Verdict::kEquivalent;
  right.statistics.classesFromCache = 3;
  const std::vector<PlanResult> results{{"a", exampleReport(), "", false},
                                        {"b", std::nullopt, "b: no\tplan", true},
                                        {"c", right, "", false},
                                        {"d", std::nullopt, "d: broken", false}};
  std::ostringstream lines, quiet, whole;
  for (const PlanResult& r : results) writeVerdictLine(lines, r);
  EXPECT_EQ(lines.str(), text(exampleReport(), true) + "INPUT ERROR: b: no\\x09plan\n" +
                             text(right, true) + "ERROR: d: broken\n");
  const std::string summary =
      "Plans:  4: 1 equivalent, 1 not equivalent, 0 undecided, 2 errors; 8 classes, of which 3 "
      "were proved before; 3.0 s\n";
  TextStyle brief;
  brief.quiet = true;
  writeSummary(quiet, results, brief);
  EXPECT_EQ(quiet.str(), summary);
  std::ostringstream conditional;
  writeSummary(conditional, {{"a", conditionalReport(), "", false}}, brief);
  EXPECT_TRUE(has(conditional.str(), "Plans:  1: 0 equivalent, 1 conditional, 0 not equivalent"));
  writeSummary(whole, results, TextStyle{});
  const std::string details = text(exampleReport()).substr(text(exampleReport(), true).size());
  EXPECT_EQ(whole.str(), "\n== a\n" + details + "\n" + summary);
}

TEST(TextReport, StoredProofsAreSaid) {
  Report report = exampleReport();
  EXPECT_FALSE(has(text(report), "proved before"));
  report.statistics.classesFromCache = 3;
  EXPECT_TRUE(has(text(report), "; 3 of 4 classes were proved before\n"));
}

TEST(TextReport, InterruptedIsSaid) {
  Report report;
  report.interrupted = true;
  EXPECT_TRUE(has(text(report), "\nInterrupted: this report holds what was done until then.\n"));
}

TEST(TextReport, CausesComeFirstAndFoldTheirDefects) {
  Report report = exampleReport();
  report.verdict = Verdict::kNotEquivalent;
  Cause cause;
  cause.sentence = "ranks 0-3 use `y` as complete";
  cause.ranks = {0, 1, 2, 3};
  cause.tensors = {"y", "w.grad"};
  cause.defects = {0, 1};
  cause.nodes = {{true, "/programs/0/nodes/3", "identity", ""}};
  cause.fix = Cause::Fix{"`y` is an all_reduce", true};
  report.causes = {cause};
  std::string said = text(report);
  EXPECT_NE(said.find("Cause 1 of 1: ranks 0-3 use `y` as complete\n"
                      "  proved fix:  `y` is an all_reduce\n"
                      "  shows in:    y, w.grad (2 places)\n"
                      "  ranks:       0-3\n"
                      "  look at:     plan   /programs/0/nodes/3  identity\n"),
            std::string::npos)
      << said;
  EXPECT_LT(said.find("Cause 1"), said.find("Defect 1 of 2"));
  EXPECT_EQ(said.find("Defect 2 of 2"), std::string::npos);  // the cause's other place
  report.causes[0].fix->text = "fix a; fix b; fix c; fix d";
  EXPECT_TRUE(has(text(report), "  proved fix:  fix a; fix b; and so in 2 more places\n"));
  report.causes[0].fix->text = "`y` is an all_reduce";
  report.verdict = Verdict::kUndecided;
  EXPECT_NE(text(report).find("Suspected cause 1 of 1"), std::string::npos);
  report.causes[0].fix->proved = false;
  said = text(report);
  EXPECT_NE(said.find("  fix:         `y` is an all_reduce (not proved"), std::string::npos);
}

TEST(TextReport, LongListsAreCut) {
  Report report = exampleReport();
  for (int i = 0; i < 40; ++i)
    report.defects[0].counterexample->assignment.push_back({"y[" + std::to_string(i) + "]", 0.1});
  for (int i = 0; i < 20; ++i)
    report.defects[0].nodes.push_back({true, "/programs/1/nodes/" + std::to_string(i), "add", ""});
  for (int i = 0; i < 30; ++i) report.defects.push_back(report.defects[1]);
  for (int i = 0; i < 30; ++i) {
    StageReport stage;
    stage.tensor = "u" + std::to_string(i);
    stage.reason = "reason " + std::to_string(i % 15);
    report.stages.push_back(stage);
  }
  const std::string all = text(report);
  EXPECT_TRUE(has(all, "    y[9]                    =  0.1\n    and 37 more\n")) << all;
  EXPECT_TRUE(has(all, "               and 14 more\n")) << all;
  EXPECT_TRUE(has(all, "\nand 22 more defects (--verbose shows all)\n")) << all;
  EXPECT_TRUE(has(all, "  2  reason 0: u0, u15\n")) << all;
  EXPECT_TRUE(has(all, "  and 6 more reasons\n")) << all;
}

TEST(TextReport, ValuesThatDifferLookDifferent) {
  Report report = exampleReport();
  report.defects[0].counterexample->logical = 0.1 + 0.2;
  report.defects[0].counterexample->parallel = 0.3;
  EXPECT_TRUE(has(text(report), "is 0.30000000000000004 in the model, 0.3 in the plan"));
}

TEST(TextReport, ControlCharactersDoNotReachTheTerminal) {
  Report report = exampleReport();
  report.plan = "a\nb";
  report.defects[0].message = "\x1b[31mred";
  const std::string all = text(report);
  EXPECT_TRUE(has(all, "plan a\\x0ab does"));
  EXPECT_TRUE(has(all, "\\x1b[31mred"));
  EXPECT_FALSE(has(all, "\x1b"));
}

TEST(TextReport, LargeNumbersAreGrouped) {
  Report report;
  report.statistics.operatorInstances = 93'000'000;
  EXPECT_TRUE(has(text(report), "for 93,000,000 operator instances"));
}

TEST(FormatRanks, RangesAndSteps) {
  EXPECT_EQ(formatRanks({}), "");
  EXPECT_EQ(formatRanks({5}), "5");
  EXPECT_EQ(formatRanks({3, 1, 2, 0, 8, 8}), "0-3, 8");
  EXPECT_EQ(formatRanks({0, 2, 4, 6}), "0-6 by 2");
  EXPECT_EQ(formatRanks({0, 2}), "0, 2");
  EXPECT_EQ(formatRanks({0, 4, 5, 6, 7}), "0, 4-7");
  EXPECT_EQ(formatRanks({0, 1, 8, 9, 16, 17}), "0-1, 8-9, 16-17");
  std::vector<std::int64_t> squares;
  for (std::int64_t i = 0; i < 20; ++i) squares.push_back(i * i);
  EXPECT_EQ(formatRanks(squares), "0-1, 4, 9, 16, 25, 36, 49, 64 and 11 more");
}

}  // namespace
}  // namespace shardproof
