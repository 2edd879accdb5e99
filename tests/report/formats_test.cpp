// SPDX-License-Identifier: Apache-2.0
// JUnit, SARIF and annotations: what is in them, and that no name gets out of its place. Their
// schemas: tests/report_checks/.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "example_report.h"
#include "report/findings.h"
#include "report/github.h"
#include "report/junit.h"
#include "report/sarif.h"
#include "report/source_place.h"

namespace shardproof {
namespace {

TEST(SourcePlace, FilesWithLines) {
  const auto place = sourcePlace("src/net.py:12");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->file, "src/net.py");
  EXPECT_EQ(place->line, 12);
  EXPECT_EQ(place->column, 0);
  const auto column = sourcePlace("net.py:12:7");
  ASSERT_TRUE(column);
  EXPECT_EQ(column->line, 12);
  EXPECT_EQ(column->column, 7);
  for (const char* other : {"", "layers.0", "layers.0:3x", "layer:3", "net.py:", "net.py:0", ":12",
                            "net.py:-1", ".py:3", "a\nb.py:3", "net.py:99999999999"})
    EXPECT_FALSE(sourcePlace(other)) << other;
}

PlanResult of(const std::string& plan, const Report& report) {
  PlanResult result;
  result.plan = plan;
  result.report = report;
  return result;
}

Report wrong() {
  Report report = exampleReport();
  Cause cause;
  cause.kind = "partial-sum";
  cause.sentence = "ranks 0-1 use `y` as complete";
  cause.nodes = {{true, "/programs/0/nodes/3", "identity", "mlp.py:12:4"}};
  cause.ranks = {0, 1};
  cause.defects = {0};
  cause.fix = Cause::Fix{"`y` is an all_reduce", true};
  report.causes = {cause};
  report.outputTensors = {"loss", "a<b&\"'\x01", "s"};
  return report;
}

TEST(Findings, ACauseStandsForItsDefects) {
  const auto findings = findingsOf(of("p", wrong()));
  ASSERT_EQ(findings.size(), 2u);  // the cause, and the deadlock that it does not explain
  EXPECT_EQ(findings[0].rule, "partial-sum");
  EXPECT_NE(findings[0].message.find("Proved fix: `y` is"), std::string::npos);
  EXPECT_EQ(findings[1].rule, "deadlock");
}

TEST(Findings, NothingOfARightPlan) {
  Report report;
  report.verdict = Verdict::kEquivalent;
  EXPECT_TRUE(findingsOf(of("p", report)).empty());
}

TEST(Findings, WrongLineageIsTheFiles) {
  Report report;
  report.verdict = Verdict::kEquivalent;
  StageReport wrong;
  wrong.tensor = "h";
  wrong.verdict = StageVerdict::kWrongLineage;
  StageReport found = wrong;
  found.inferred = true;  // it is in no file
  report.stages = {wrong, found};
  const auto findings = findingsOf(of("p", report));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rule, "wrong-lineage");
}

Report conditional() {
  Report report;
  report.verdict = Verdict::kConditional;
  report.plan = "p";
  report.outputTensors = {"loss"};
  StageReport proved;
  proved.tensor = "loss";
  proved.role = Role::kOutput;
  proved.verdict = StageVerdict::kProved;
  report.stages = {proved};
  report.compared = {{"loss", {"loss"}}};
  report.notCompared = {{"seed", "it is drawn", false}};
  report.assumptions = {{"ranks", AssumptionClass::kCheckable, "ranks run alike"},
                        {"initial-values", AssumptionClass::kRisk, "buffers begin equal"}};
  return report;
}

TEST(Findings, AConditionIsAWarningAtItsPlaceInThePlan) {
  const auto findings = findingsOf(of("p", conditional()));
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].rule, "conditional");
  EXPECT_EQ(findings[0].pointer, "/capture/assumptions/1");
  EXPECT_EQ(findings[0].level, Finding::Level::kWarning);
  EXPECT_EQ(findings[0].message, "the proof assumes initial-values: buffers begin equal");
  EXPECT_EQ(findings[1].rule, "not-compared");
  EXPECT_EQ(findings[1].pointer, "/capture/not_compared/0");
  EXPECT_EQ(findings[1].message, "seed is not compared, because it is drawn");
  const std::string text = githubText({of("p", conditional())});
  EXPECT_EQ(text.rfind("::warning file=p,title=shardproof%3A conditional::", 0), 0u) << text;
  EXPECT_EQ(text.find("::notice"), std::string::npos);
  const auto log = nlohmann::json::parse(sarifText({of("p", conditional())}, 4));
  EXPECT_EQ(log["runs"][0]["results"][0]["level"], "warning");
  Report accepted = conditional();
  accepted.assumptions[1].accepted = accepted.notCompared[0].allowed = true;
  EXPECT_TRUE(findingsOf(of("p", accepted)).empty());
}

TEST(Junit, AConditionalPlanFailsInACaseOfItsOwn) {
  pugi::xml_document document;
  const std::string text = junitText({of("p", conditional())});
  ASSERT_TRUE(document.load_string(text.c_str())) << text;
  const auto suite = document.child("testsuites").child("testsuite");
  EXPECT_EQ(std::string(suite.attribute("tests").value()), "2");
  EXPECT_EQ(std::string(suite.attribute("failures").value()), "1");
  EXPECT_FALSE(suite.child("testcase").child("failure"));
  const auto failure = suite.find_child_by_attribute("name", "conditions").child("failure");
  EXPECT_EQ(std::string(failure.attribute("type").value()), "conditional");
  EXPECT_EQ(std::string(failure.attribute("message").value()),
            "proved if: initial-values, seed (not compared)");
  const auto properties = suite.child("properties");
  EXPECT_EQ(std::string(properties.first_child().attribute("value").value()), "loss");
  EXPECT_EQ(std::distance(properties.begin(), properties.end()), 4);
}

TEST(Github, OneLineForEachAtTheUsersSource) {
  const std::string text = githubText({of("p", wrong())});
  EXPECT_EQ(text.rfind("::error file=mlp.py,line=12,col=4,title=shardproof%3A partial-sum::", 0),
            0u)
      << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(Github, NamesCannotGiveCommands) {
  Report report = wrong();
  report.causes[0].sentence = "a\n::set-output name=x::y\r%0A::error::z";
  report.causes[0].nodes[0].location = "a,line=1::b.py:3";
  const std::string text = githubText({of("p", report)});
  EXPECT_EQ(text.find("\n::set-output"), std::string::npos);
  EXPECT_NE(text.find("%250A"), std::string::npos);
  EXPECT_NE(text.find("file=a%2Cline=1%3A%3Ab.py,line=3"), std::string::npos) << text;
}

TEST(Sarif, LocationsAndRules) {
  const auto log = nlohmann::json::parse(sarifText({of("p", wrong())}, 10));
  const auto& run = log["runs"][0];
  EXPECT_EQ(run["invocations"][0]["exitCode"], 10);
  ASSERT_EQ(run["results"].size(), 2u);
  const auto& location = run["results"][0]["locations"][0];
  EXPECT_EQ(location["physicalLocation"]["artifactLocation"]["uri"], "mlp.py");
  EXPECT_EQ(location["physicalLocation"]["region"]["startLine"], 12);
  EXPECT_EQ(location["logicalLocations"][0]["fullyQualifiedName"],
            "mlp.plan.json#/programs/0/nodes/3");
  for (const auto& result : run["results"])
    EXPECT_EQ(run["tool"]["driver"]["rules"][result["ruleIndex"].get<std::size_t>()]["id"],
              result["ruleId"]);
}

TEST(Sarif, FilesAsUris) {
  PlanResult result;
  result.plan = "p";
  result.takeError(InputError("/a b/ä:%.json", "/x", "wrong"));
  const auto log = nlohmann::json::parse(sarifText({result}, 2));
  EXPECT_EQ(
      log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
      "file:///a%20b/%C3%A4:%25.json");
}

TEST(Junit, ACaseForEachOutput) {
  pugi::xml_document document;
  const std::string text = junitText({of("p", wrong())});
  ASSERT_TRUE(document.load_string(text.c_str())) << text;
  const auto suite = document.child("testsuites").child("testsuite");
  EXPECT_EQ(std::string(suite.attribute("tests").value()), "3");
  EXPECT_EQ(std::string(suite.attribute("failures").value()), "3") << text;
  EXPECT_EQ(std::string(suite.child("testcase").child("failure").attribute("message").value()),
            "ranks 0-1 use `y` as complete");
  EXPECT_EQ(std::string(suite.child("testcase").next_sibling().attribute("name").value()),
            "a<b&\"'?");
}

TEST(Junit, VerdictsOfOtherKinds) {
  Report right = exampleReport();
  right.verdict = Verdict::kEquivalent;
  right.outputTensors = {"loss"};
  Report open = exampleReport();
  open.verdict = Verdict::kUndecided;
  open.reason = "no time";
  open.outputTensors = {"loss"};
  PlanResult unread;
  unread.plan = "c";
  unread.takeError(InputError("c", "", "cannot open"));
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(junitText({of("a", right), of("b", open), unread}).c_str()));
  const auto suites = document.child("testsuites");
  EXPECT_EQ(std::string(suites.attribute("tests").value()), "3");
  EXPECT_EQ(std::string(suites.attribute("failures").value()), "0");
  EXPECT_EQ(std::string(suites.attribute("errors").value()), "2");
}

}  // namespace
}  // namespace shardproof
