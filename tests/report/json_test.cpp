// SPDX-License-Identifier: Apache-2.0
#include "report/json.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "example_report.h"
#include "report/causes.h"

namespace shardproof {
namespace {

using nlohmann::ordered_json;

TEST(JsonReport, HasEveryKey) {
  Report report = exampleReport();
  report.source = "train.py";
  report.compared = {{"loss", {"loss"}}, {"gradients", {"w.grad", "b.grad"}}};
  report.notCompared = {{"leaf 8x4.0", "rank 1 has none", true}};
  report.assumptions = {{"initial-values", AssumptionClass::kRisk, "all ranks begin equal"}};
  EXPECT_TRUE(toJson(report, 10)["inference"].is_null());
  report.inference = Inference{12, 34, "why", {"h (/lineage/2): local `h` holds h[0:4]"}};
  report.stages[0].inferred = true;
  const ordered_json json = toJson(report, 10);
  EXPECT_EQ(json["inference"],
            ordered_json::parse(R"({"lemmas": 12, "local_tensors": 34, "reason": "why",
                                    "replaced": ["h (/lineage/2): local `h` holds h[0:4]"]})"));
  EXPECT_EQ(json["source"], "train.py");
  EXPECT_EQ(json["compared"],
            ordered_json::parse(R"({"loss": ["loss"], "gradients": ["w.grad", "b.grad"]})"));
  EXPECT_EQ(json["not_compared"],
            ordered_json::parse(
                R"([{"what": "leaf 8x4.0", "because": "rank 1 has none", "allowed": true}])"));
  EXPECT_EQ(json["assumptions"], ordered_json::parse(R"([{"name": "initial-values", "class": "risk",
                                     "text": "all ranks begin equal", "accepted": false}])"));
  EXPECT_EQ(json["format"], "shardproof-report");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["verdict"], "not-equivalent");
  EXPECT_EQ(json["interrupted"], false);
  EXPECT_EQ(json["model"], "mlp.model.json");
  EXPECT_EQ(json["plan"], "mlp.plan.json");
  EXPECT_EQ(json["outputs"], 3);
  EXPECT_EQ(json["outputs_proved"], 2);

  ASSERT_EQ(json["stages"].size(), 5u);
  EXPECT_EQ(
      json["stages"][0],
      ordered_json::parse(R"({"tensor": "h", "role": "cut_point", "entry": 2, "verdict": "proved",
      "method": "normal-form", "reason": "", "class": 0, "logical_nodes": 1, "parallel_nodes": 8,
       "seconds": 0.25,
      "reduced_shapes": [{"tensor": "x", "full": [512, 64], "reduced": [4, 2]}],
       "assumptions": [0, 1],
      "inferred": true})"));
  EXPECT_EQ(json["stages"][2]["verdict"], "wrong-lineage");
  EXPECT_EQ(json["stages"][3]["verdict"], "undecided");
  EXPECT_EQ(json["stages"][3]["method"], "none");
  EXPECT_EQ(json["stages"][4]["method"], "numeric");

  ASSERT_EQ(json["defects"].size(), 2u);
  EXPECT_EQ(
      json["defects"][0],
      ordered_json::parse(
          R"({"kind": "lineage", "message": "the gradient of w is not what the model computes",
      "tensor": "w.grad", "lineage": "w.grad[0:8, 0:4] == gw.2 on tp 0", "entry": -1,
       "ranks": [0, 1, 2, 3], "microbatch": 1,
      "nodes": [{"pointer": "/programs/0/nodes/17", "op": "linear_backward", "loc": "mlp.py:12",
       "in": "plan"},
                {"pointer": "/nodes/4", "op": "linear_backward", "loc": "", "in": "model"}],
      "counterexample": {"assignment": [{"element": "x[0, 0]", "value": 1},
       {"element": "local gh.1@rank 3[0, 1]", "value": -0.5}],
                         "omitted": 7, "element": "w.grad[0, 0]", "logical": 1.5,
                          "parallel": "-inf", "end_to_end": false}})"));
  EXPECT_EQ(json["defects"][1]["kind"], "deadlock");
  EXPECT_TRUE(json["defects"][1]["microbatch"].is_null());
  EXPECT_TRUE(json["defects"][1]["counterexample"].is_null());

  EXPECT_EQ(json["statistics"],
            ordered_json::parse(
                R"({"program_nodes": 40, "lineage_entries": 12, "ranks": 4, "microbatches": 2,
      "operator_instances": 320, "stages": 5, "classes": 4, "classes_from_cache": 0, "seconds": 1.5,
       "seconds_by_phase": {"check": 1.25, "read": 0.25},
      "peak_memory_bytes": 104857600, "workers_lost": 1})"));
}

TEST(JsonReport, CausesAreWrittenAndRead) {
  Report report;
  Cause cause;
  cause.kind = "scaled";
  cause.sentence = "rank 1 holds `w` scaled by 2";
  cause.nodes = {{true, "/programs/0/nodes/3", "mul", "a.py:1"}};
  cause.ranks = {1};
  cause.microbatches = {0, 2};
  cause.tensors = {"w"};
  cause.defects = {0, 4};
  cause.fix = Cause::Fix{"/programs/0/nodes/3 (mul) has scalar 1", true};
  cause.found = {{{}, "x", "`x`", false, {}},
                 {{true, "/programs/0/nodes/3", "mul", ""}, "w", "", true, {"x"}}};
  report.causes = {cause, {}};
  const auto json = ordered_json::parse(jsonText(report, 10));
  ASSERT_EQ(json["causes"].size(), 2u);
  EXPECT_EQ(json["causes"][0]["id"], 1);
  EXPECT_EQ(json["causes"][0]["fix"]["proved"], true);
  EXPECT_TRUE(json["causes"][1]["fix"].is_null());
  const Cause again = causeFromJson(json["causes"][0]);
  EXPECT_EQ(toJson(again), toJson(cause));
  EXPECT_THROW(causeFromJson(ordered_json::object()), ordered_json::exception);
}

TEST(JsonReport, NonFiniteNumbersAreStrings) {
  Report report = exampleReport();
  report.defects[0].counterexample->logical = std::numeric_limits<double>::quiet_NaN();
  report.defects[0].counterexample->assignment[0].value = std::numeric_limits<double>::infinity();
  const ordered_json json = toJson(report, 10);
  EXPECT_EQ(json["defects"][0]["counterexample"]["logical"], "nan");
  EXPECT_EQ(json["defects"][0]["counterexample"]["assignment"][0]["value"], "inf");
}

TEST(JsonReport, SeveralPlans) {
  Report right;
  right.verdict = Verdict::kEquivalent;
  right.statistics.classes = 7;
  right.statistics.classesFromCache = 5;
  const std::vector<PlanResult> results{{"a", exampleReport(), "", false},
                                        {"b", std::nullopt, "b: no plan", true},
                                        {"c", right, "", false},
                                        {"d", std::nullopt, "d: broken", false}};
  const ordered_json json = ordered_json::parse(plansJsonText(results, 10));
  EXPECT_EQ(json["format"], "shardproof-reports");
  EXPECT_EQ(json["version"], 1);
  ASSERT_EQ(json["plans"].size(), 4u);
  EXPECT_EQ(json["plans"][0], toJson(exampleReport(), 10));
  EXPECT_EQ(json["plans"][1],
            ordered_json::parse(
                R"({"format": "shardproof-report", "version": 1, "tool": {"name": "shardproof",
              "version": "0.1.0"}, "plan": "b", "verdict": null, "exit_code": 2,
      "error": "b: no plan", "error_in": "input", "errors": [], "more_errors": false})"));
  EXPECT_EQ(json["plans"][2]["statistics"]["classes_from_cache"], 5);
  EXPECT_EQ(json["plans"][3]["error_in"], "program");
  EXPECT_EQ(
      json["summary"],
      ordered_json::parse(
          R"({"plans": 4, "equivalent": 1, "conditional": 0, "not_equivalent": 1, "undecided": 0,
              "errors": 2, "classes": 11, "classes_from_cache": 5,
      "seconds": 1.5})"));
}

TEST(JsonReport, EmptyReport) {
  const ordered_json json = ordered_json::parse(jsonText(Report{}, 5));
  EXPECT_EQ(json["verdict"], "undecided");
  EXPECT_TRUE(json["stages"].is_array());
  EXPECT_TRUE(json["defects"].is_array());
  EXPECT_TRUE(json["statistics"]["seconds_by_phase"].is_object());
}

TEST(JsonReport, NamesThatAreNotUtf8StillGiveValidJson) {
  Report report;
  report.plan = "bad\xff.json";
  EXPECT_EQ(ordered_json::parse(jsonText(report, 10))["plan"], "bad\xef\xbf\xbd.json");
}

}  // namespace
}  // namespace shardproof
