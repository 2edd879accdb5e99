// SPDX-License-Identifier: Apache-2.0
#include "report/findings.h"

#include <algorithm>
#include <map>
#include <set>

#include "report/format.h"
#include "report/ledger.h"
#include "report/text.h"

namespace shardproof {

namespace {

void setPlace(Finding& finding, const Report& report, const std::vector<NodePlace>& nodes,
              std::int32_t entry) {
  finding.file = report.plan;
  if (!nodes.empty()) {
    const NodePlace& node = nodes.front();
    finding.file = node.inPlan ? report.plan : report.model;
    finding.pointer = node.pointer;
    finding.location = node.location;
  } else if (entry >= 0) {
    finding.pointer = "/lineage/" + std::to_string(entry);
  }
}

std::string sentenceOf(const Cause& cause) {
  std::string text = cause.sentence;
  if (!cause.ranks.empty()) text += ". Ranks: " + formatRanks(cause.ranks);
  if (cause.fix)
    text += (cause.fix->proved ? ". Proved fix: " : ". Fix (not proved): ") + cause.fix->text;
  return text;
}

void addStages(std::vector<Finding>& findings, const Report& report) {
  std::map<std::string, std::vector<const StageReport*>> byReason;
  for (const StageReport& stage : report.stages) {
    if (stage.verdict == StageVerdict::kWrongLineage && !stage.inferred && !stage.guess)
      findings.push_back({Finding::Level::kWarning, "wrong-lineage",
                          "the cut point `" + stage.tensor +
                              "` does not hold although the outputs do: the lineage is wrong "
                              "there, not the plan",
                          report.plan, "/lineage/" + std::to_string(stage.entry), ""});
    if (stage.verdict == StageVerdict::kUndecided) byReason[stage.reason].push_back(&stage);
  }
  std::vector<std::pair<std::string, std::vector<const StageReport*>>> reasons(byReason.begin(),
                                                                               byReason.end());
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  for (const auto& [reason, stages] : reasons)
    findings.push_back({Finding::Level::kWarning, "undecided",
                        counted(stages.size(), "stage is", "stages are") + " undecided, first `" +
                            stages.front()->tensor +
                            "`: " + (reason.empty() ? "no reason given" : reason),
                        report.plan, "/lineage/" + std::to_string(stages.front()->entry), ""});
}

}  // namespace

std::vector<Finding> findingsOf(const PlanResult& result) {
  std::vector<Finding> findings;
  if (!result.report) {
    for (const InputError& error : result.errors)
      findings.push_back({Finding::Level::kError, "input-error", error.inFile(), error.file(),
                          error.pointer(), ""});
    if (result.errors.empty())
      findings.push_back(
          {Finding::Level::kError, "internal-error", result.error, result.plan, "", ""});
    return findings;
  }
  const Report& report = *result.report;
  const bool wrong = report.verdict == Verdict::kNotEquivalent;
  const auto level = wrong ? Finding::Level::kError : Finding::Level::kWarning;
  std::set<std::size_t> explained;
  for (const Cause& cause : report.causes) {
    Finding finding;
    finding.level = level;
    finding.rule = cause.kind;
    finding.message = sentenceOf(cause);
    setPlace(finding, report, cause.nodes, -1);
    findings.push_back(std::move(finding));
    explained.insert(cause.defects.begin(), cause.defects.end());
  }
  const std::vector<Defect>& defects = report.defects.empty() ? report.suspects : report.defects;
  for (std::size_t i = 0; i < defects.size(); ++i) {
    if (explained.contains(i)) continue;
    Finding finding;
    finding.level = level;
    finding.rule = toString(defects[i].kind);
    finding.message = defects[i].message;
    setPlace(finding, report, defects[i].nodes, defects[i].entry);
    findings.push_back(std::move(finding));
  }
  if (report.verdict == Verdict::kUndecided && report.stages.empty())
    findings.push_back({Finding::Level::kWarning, "undecided", report.reason, report.plan, "", ""});
  if (report.verdict == Verdict::kConditional)
    for (const UnmetCondition& c : conditionsOf(report))
      findings.push_back({Finding::Level::kWarning, c.compare ? "not-compared" : "conditional",
                          c.text, report.plan, c.pointer, ""});
  for (const std::string& warning : report.warnings)
    findings.push_back({Finding::Level::kWarning, "input-gap", warning, report.plan, "", ""});
  // Of a plan that is wrong, what is undecided is a consequence.
  if (!wrong) addStages(findings, report);
  return findings;
}

}  // namespace shardproof
