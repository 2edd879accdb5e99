// SPDX-License-Identifier: Apache-2.0
#include "report/junit.h"

#include <algorithm>
#include <map>
#include <pugixml.hpp>
#include <set>
#include <sstream>

#include "report/ledger.h"
#include "report/text.h"
#include "report/xml_text.h"

namespace shardproof {

namespace {

struct Counts {
  unsigned tests = 0, failures = 0, errors = 0;
  double seconds = 0;
  void add(const Counts& other) {
    tests += other.tests;
    failures += other.failures;
    errors += other.errors;
    seconds += other.seconds;
  }
};

void set(pugi::xml_node node, const char* attribute, const std::string& value) {
  node.append_attribute(attribute).set_value(xmlText(value).c_str());
}

void setCounts(pugi::xml_node node, const Counts& counts) {
  node.append_attribute("tests") = counts.tests;
  node.append_attribute("failures") = counts.failures;
  node.append_attribute("errors") = counts.errors;
  node.append_attribute("time") = xmlSeconds(counts.seconds).c_str();
}

// The cause that a reader of this output's failure wants: one that names it, or the first.
const Cause* causeOf(const Report& report, const std::string& output) {
  for (const Cause& cause : report.causes)
    if (std::find(cause.tensors.begin(), cause.tensors.end(), output) != cause.tensors.end())
      return &cause;
  return report.causes.empty() ? nullptr : &report.causes.front();
}

std::string messageOf(const Report& report, const std::string& output,
                      const std::string& stageReason) {
  if (report.verdict == Verdict::kNotEquivalent) {
    if (const Cause* cause = causeOf(report, output)) return cause->sentence;
    if (!report.defects.empty()) return report.defects.front().message;
  }
  if (!stageReason.empty()) return stageReason;
  return report.reason.empty() ? "not proved" : report.reason;
}

// The ledger, before the cases.
void addProperties(pugi::xml_node suite, const Report& report) {
  pugi::xml_node properties = suite.append_child("properties");
  const auto add = [&](const char* name, const std::string& value) {
    pugi::xml_node property = properties.append_child("property");
    set(property, "name", name);
    set(property, "value", value);
  };
  add("compared", comparedText(report, {}));
  for (const ApprovedDifference& difference : report.approved)
    add("approved difference", difference.name + ": " + difference.claim);
  for (const NotCompared& item : report.notCompared)
    add("not compared", item.what + (item.because.empty() ? "" : ", because " + item.because));
  for (const Assumption& a : report.assumptions)
    if (a.kind != AssumptionClass::kHarmless)
      add("assumed", std::string(toString(a.kind)) + ": " + a.name + ": " + a.text);
}

Counts addReport(pugi::xml_node suite, const Report& report) {
  std::set<std::string> unproved;
  std::map<std::string, const StageReport*> stageOf;
  std::map<std::string, double> seconds;
  std::set<std::string> seen;
  for (const StageReport& stage : report.stages) {
    if (stage.role != Role::kOutput) continue;
    seen.insert(stage.tensor);
    seconds[stage.tensor] += stage.seconds;
    if (stage.verdict == StageVerdict::kProved) continue;
    unproved.insert(stage.tensor);
    stageOf.emplace(stage.tensor, &stage);
  }
  std::ostringstream details;
  if (report.verdict != Verdict::kEquivalent) writeText(details, report, false);
  addProperties(suite, report);
  Counts counts;
  bool told = false;
  for (const std::string& output : report.outputTensors) {
    pugi::xml_node test = suite.append_child("testcase");
    set(test, "classname", "shardproof.verify");
    set(test, "name", output);
    set(test, "time", xmlSeconds(seconds[output]));
    ++counts.tests;
    const bool proved = seen.contains(output) && !unproved.contains(output);
    if (isProved(report.verdict) || proved) continue;
    const bool failure = report.verdict == Verdict::kNotEquivalent;
    ++(failure ? counts.failures : counts.errors);
    pugi::xml_node child = test.append_child(failure ? "failure" : "error");
    const auto stage = stageOf.find(output);
    set(child, "message",
        messageOf(report, output, stage == stageOf.end() ? "" : stage->second->reason));
    set(child, "type", toString(report.verdict));
    // All of the report once, and not for each of thousands of outputs.
    if (!told) child.text().set(xmlText(details.str()).c_str());
    told = true;
  }
  if (report.verdict == Verdict::kConditional) {
    pugi::xml_node test = suite.append_child("testcase");
    set(test, "classname", "shardproof.verify");
    set(test, "name", "conditions");
    set(test, "time", xmlSeconds(0));
    ++counts.tests;
    ++counts.failures;
    pugi::xml_node child = test.append_child("failure");
    set(child, "message", "proved if: " + conditionNames(report, {}));
    set(child, "type", toString(report.verdict));
    child.text().set(xmlText(details.str()).c_str());
  }
  return counts;
}

Counts addError(pugi::xml_node suite, const PlanResult& result) {
  pugi::xml_node test = suite.append_child("testcase");
  set(test, "classname", "shardproof.verify");
  set(test, "name", result.inputError ? "reading model and plan" : "verifying");
  set(test, "time", "0");
  pugi::xml_node child = test.append_child("error");
  set(child, "message", result.error);
  set(child, "type", result.inputError ? "input-error" : "internal-error");
  std::string all;
  for (const InputError& error : result.errors) all += std::string(error.what()) + "\n";
  if (!all.empty()) child.text().set(xmlText(all).c_str());
  Counts counts;
  counts.tests = counts.errors = 1;
  return counts;
}

}  // namespace

std::string junitText(const std::vector<PlanResult>& results) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  pugi::xml_node suites = document.append_child("testsuites");
  Counts all;
  for (const PlanResult& result : results) {
    pugi::xml_node suite = suites.append_child("testsuite");
    set(suite, "name", "shardproof verify " + result.plan);
    Counts counts;
    if (result.report) {
      counts = addReport(suite, *result.report);
      counts.seconds = result.report->statistics.secondsTotal;
    } else {
      counts = addError(suite, result);
    }
    setCounts(suite, counts);
    all.add(counts);
  }
  setCounts(suites, all);
  std::ostringstream text;
  document.save(text, " ", pugi::format_default, pugi::encoding_utf8);
  return text.str();
}

}  // namespace shardproof
