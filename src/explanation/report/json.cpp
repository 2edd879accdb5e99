// SPDX-License-Identifier: Apache-2.0
#include "report/json.h"

#include <cmath>

#include "report/causes.h"
#include "report/exit_codes.h"
#include "report/parameter_text.h"
#include "report/totals.h"
#include "report/version.h"

namespace shardproof {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity and no NaN; the library would write null, which does not say which of them
// it was.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json toJson(const StageReport& stage) {
  Json shapes = Json::array();
  for (const auto& shape : stage.reducedShapes) {
    shapes.push_back({{"tensor", shape.tensor}, {"full", shape.full}, {"reduced", shape.reduced}});
  }
  return {{"tensor", stage.tensor},
          {"role", toString(stage.role)},
          {"entry", stage.entry},
          {"verdict", toString(stage.verdict)},
          {"method", toString(stage.method)},
          {"reason", stage.reason},
          {"class", stage.classId},
          {"logical_nodes", stage.logicalNodes},
          {"parallel_nodes", stage.parallelNodes},
          {"seconds", number(stage.seconds)},
          {"reduced_shapes", std::move(shapes)},
          {"assumptions", stage.assumptions},
          {"inferred", stage.inferred}};
}

Json toJson(const Counterexample& example) {
  Json assignment = Json::array();
  for (const auto& item : example.assignment)
    assignment.push_back({{"element", item.element}, {"value", number(item.value)}});
  return {{"assignment", std::move(assignment)},  {"omitted", example.omitted},
          {"element", example.element},           {"logical", number(example.logical)},
          {"parallel", number(example.parallel)}, {"end_to_end", example.endToEnd}};
}

Json toJson(const Defect& defect) {
  Json nodes = Json::array();
  for (const auto& node : defect.nodes) nodes.push_back(toJson(node));
  return {
      {"kind", toString(defect.kind)},
      {"message", defect.message},
      {"tensor", defect.tensor},
      {"lineage", defect.lineage},
      {"entry", defect.entry},
      {"ranks", defect.ranks},
      {"microbatch", defect.microbatch ? Json(*defect.microbatch) : Json(nullptr)},
      {"nodes", std::move(nodes)},
      {"counterexample", defect.counterexample ? toJson(*defect.counterexample) : Json(nullptr)}};
}

Json toJson(const AttemptReport& attempt) {
  return {{"name", attempt.name},
          {"seconds", attempt.seconds},
          {"lemmas", attempt.lemmas},
          {"verdict", toString(attempt.verdict)},
          {"outputs_proved", attempt.outputsProved}};
}

Json toJson(const Inference& inference) {
  return {{"lemmas", inference.lemmas},
          {"local_tensors", inference.looked},
          {"reason", inference.reason},
          {"replaced", inference.replaced}};
}

Json toJson(const Statistics& statistics) {
  Json phases = Json::object();
  for (const auto& [phase, seconds] : statistics.secondsByPhase) phases[phase] = number(seconds);
  return {{"program_nodes", statistics.programNodes},
          {"lineage_entries", statistics.lineageEntries},
          {"ranks", statistics.ranks},
          {"microbatches", statistics.microbatches},
          {"operator_instances", number(statistics.operatorInstances)},
          {"stages", statistics.stages},
          {"classes", statistics.classes},
          {"classes_from_cache", statistics.classesFromCache},
          {"seconds", number(statistics.secondsTotal)},
          {"seconds_by_phase", std::move(phases)},
          {"peak_memory_bytes", statistics.peakMemoryBytes},
          {"workers_lost", statistics.workersLost}};
}

}  // namespace

namespace {

Json toJson(const Confirmation& c) { return {{"outcome", toString(c.outcome)}, {"text", c.text}}; }

}  // namespace

namespace {

Json tool() { return {{"name", "shardproof"}, {"version", kVersion}}; }

int exitCodeOf(const PlanResult& result) {
  if (result.report) return exitCodeFor(*result.report, 0);
  return result.inputError ? kExitInput : result.outOfMemory ? kExitOutOfMemory : kExitInternal;
}

Json errorJson(const PlanResult& result, int exitCode) {
  Json errors = Json::array();
  for (const InputError& error : result.errors)
    errors.push_back(
        {{"file", error.file()}, {"pointer", error.pointer()}, {"message", error.inFile()}});
  return {{"format", "shardproof-report"},
          {"version", 1},
          {"tool", tool()},
          {"plan", result.plan},
          {"verdict", nullptr},
          {"exit_code", exitCode},
          {"error", result.error},
          {"error_in", result.inputError ? "input" : "program"},
          {"errors", std::move(errors)},
          {"more_errors", result.moreErrors}};
}

}  // namespace

namespace {

Json toJson(const ParameterTable& table) {
  Json rows = Json::array();
  for (const ParameterTable::Row& row : table.rows) {
    Json axes = Json::array();
    for (const ParameterTable::Axis& axis : row.axes)
      axes.push_back({{"axis", axis.axis},
                      {"gradient", toString(axis.state)},
                      {"text", textOf(axis)},
                      {"reduced_by", axis.reducedBy},
                      {"reduced_in_backward", axis.reducedInBackward},
                      {"coordinates", axis.coordinates},
                      {"sharded_after", axis.shardedAfter},
                      {"summed_after", axis.summedAfter}});
    rows.push_back({{"parameters", row.parameters}, {"axes", std::move(axes)}});
  }
  return {
      {"rows", std::move(rows)}, {"smaller_plan", table.ofSmallerPlan}, {"reason", table.reason}};
}

}  // namespace

Json toJson(const Report& report, int exitCode) {
  Json stages = Json::array();
  for (const auto& stage : report.stages) stages.push_back(toJson(stage));
  Json causes = Json::array();
  for (std::size_t i = 0; i < report.causes.size(); ++i) {
    Json cause = toJson(report.causes[i]);
    cause["id"] = i + 1;
    causes.push_back(std::move(cause));
  }
  Json defects = Json::array();
  for (const auto& defect : report.defects) defects.push_back(toJson(defect));
  Json suspects = Json::array();
  for (const auto& suspect : report.suspects) suspects.push_back(toJson(suspect));
  Json compared = Json::object(), notCompared = Json::array(), assumptions = Json::array();
  for (const ComparedOutputs& kind : report.compared) compared[kind.kind] = kind.outputs;
  for (const NotCompared& item : report.notCompared)
    notCompared.push_back(
        {{"what", item.what}, {"because", item.because}, {"allowed", item.allowed}});
  Json attempts = Json::array();
  for (const AttemptReport& attempt : report.attempts) attempts.push_back(toJson(attempt));
  Json approved = Json::array();
  for (const ApprovedDifference& d : report.approved)
    approved.push_back(
        {{"name", d.name}, {"tensor", d.tensor}, {"claim", d.claim}, {"entry", d.entry}});
  for (const Assumption& a : report.assumptions)
    assumptions.push_back({{"name", a.name},
                           {"class", toString(a.kind)},
                           {"text", a.text},
                           {"accepted", a.accepted}});
  return {{"format", "shardproof-report"},
          {"version", 1},
          {"tool", tool()},
          {"verdict", toString(report.verdict)},
          {"exit_code", exitCode},
          {"confirmation", report.confirmation ? toJson(*report.confirmation) : Json(nullptr)},
          {"reason", report.reason},
          {"interrupted", report.interrupted},
          {"model", report.model},
          {"plan", report.plan},
          {"outputs", report.outputs},
          {"outputs_proved", report.outputsProved},
          {"output_tensors", report.outputTensors},
          {"causes", std::move(causes)},
          {"stages", std::move(stages)},
          {"defects", std::move(defects)},
          {"suspects", std::move(suspects)},
          {"source", report.source},
          {"compared", std::move(compared)},
          {"not_compared", std::move(notCompared)},
          {"assumptions", std::move(assumptions)},
          {"approved_differences", std::move(approved)},
          {"warnings", report.warnings},
          {"attempts", std::move(attempts)},
          {"inference", report.inference ? toJson(*report.inference) : Json(nullptr)},
          {"parameters", report.parameters ? toJson(*report.parameters) : Json(nullptr)},
          {"statistics", toJson(report.statistics)}};
}

Json toJson(const Report& report) { return toJson(report, exitCodeFor(report, 0)); }

namespace {

std::string textOf(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string jsonText(const Report& report, int exitCode) {
  return textOf(toJson(report, exitCode));
}

std::string jsonText(const PlanResult& result, int exitCode) {
  return textOf(result.report ? toJson(*result.report, exitCode) : errorJson(result, exitCode));
}

std::string plansJsonText(const std::vector<PlanResult>& results, int exitCode) {
  Json plans = Json::array();
  Totals totals;
  for (const PlanResult& result : results) {
    totals.add(result);
    plans.push_back(result.report ? toJson(*result.report, exitCodeOf(result))
                                  : errorJson(result, exitCodeOf(result)));
  }
  return textOf({{"format", "shardproof-reports"},
                 {"version", 1},
                 {"tool", tool()},
                 {"exit_code", exitCode},
                 {"plans", std::move(plans)},
                 {"summary",
                  {{"plans", results.size()},
                   {"equivalent", totals.equivalent},
                   {"conditional", totals.conditional},
                   {"not_equivalent", totals.notEquivalent},
                   {"undecided", totals.undecided},
                   {"errors", totals.errors},
                   {"classes", totals.classes},
                   {"classes_from_cache", totals.classesFromCache},
                   {"seconds", number(totals.seconds)}}}});
}

}  // namespace shardproof
