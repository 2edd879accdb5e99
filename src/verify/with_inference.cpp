#include "verify/with_inference.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace shardproof {

namespace {

// Of a plan whose lineage speaks of less than this share of its local tensors, more is found
// first. Plans that say what each layer's input and output is say this much.
constexpr double kThinLineage = 0.15;

// Nothing is found twice.
void inferInto(std::unique_ptr<Problem>& problem, VerifyOptions& options,
               std::optional<Inference>& said, std::vector<Inferred::Replaced>& replaced,
               double& seconds) {
  if (options.progress) options.progress(0, 0, "looking for lineage");
  InferOptions inferOptions;
  inferOptions.cancel = options.cancel;
  Inferred found = inferLineage(*problem, inferOptions);
  said = Inference{found.count, found.looked, found.reason};
  seconds += found.seconds;
  options.doubtful = std::move(found.doubtful);
  replaced = std::move(found.replaced);
  if (found.problem) problem = std::move(found.problem);
}

constexpr double kSecondsForWrongLineage = 5;

bool hasWrongLineage(const Report& report) {
  return std::any_of(report.stages.begin(), report.stages.end(), [](const StageReport& s) {
    return s.verdict == StageVerdict::kWrongLineage && !s.inferred;
  });
}

// Of checkpoints of the file that are reported as wrong.
void tellReplaced(const Problem& problem, const std::vector<Inferred::Replaced>& replaced,
                  const Report& report, Inference& said) {
  const auto verdictOf = [&](EntryId entry) {
    const auto it = std::find_if(report.stages.begin(), report.stages.end(),
                                 [&](const StageReport& s) { return s.entry == entry.value; });
    return it == report.stages.end() ? StageVerdict::kUndecided : it->verdict;
  };
  for (const Inferred::Replaced& one : replaced) {
    if (one.by.empty() || verdictOf(one.entry) != StageVerdict::kWrongLineage) continue;
    const LineageEntry& entry = problem.plan.lineage[one.entry];
    std::string text = problem.names.text(problem.model.graph.tensors[entry.tensor].name) +
                       " (/lineage/" + std::to_string(one.entry) + "): ";
    bool proved = true;
    for (const EntryId by : one.by) {
      text += (by == one.by.front() ? "" : "; ") + describeFound(problem, by);
      proved = proved && verdictOf(by) == StageVerdict::kProved;
    }
    said.replaced.push_back(text + (proved ? " (proved)" : " (not proved)"));
  }
}

}  // namespace

Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& given, Infer infer) {
  VerifyOptions options = given;
  std::optional<Inference> said;
  std::vector<Inferred::Replaced> replaced;
  double seconds = 0;
  if (infer == Infer::kAlways || (infer == Infer::kAuto && lineageDensity(*problem) < kThinLineage))
    inferInto(problem, options, said, replaced, seconds);
  Report report = verify(*problem, options);
  // What the file says is not enough, or is wrong.
  if (infer == Infer::kAuto && !said && report.verdict == Verdict::kUndecided &&
      !report.interrupted) {
    inferInto(problem, options, said, replaced, seconds);
    if (said->lemmas > 0) {
      const double before = report.statistics.secondsTotal;
      report = verify(*problem, options);
      report.statistics.secondsByPhase["without lemmas"] = before;
      report.statistics.secondsTotal += before;
    }
  }
  // The verdict stands; what the checkpoints should be is looked up for the report alone.
  if (infer != Infer::kNever && !said && hasWrongLineage(report) && !report.interrupted) {
    InferOptions inferOptions;
    inferOptions.cancel = options.cancel;
    inferOptions.seconds = kSecondsForWrongLineage;
    const Inferred found = inferLineage(*problem, inferOptions);
    if (found.problem) {
      Inference only;
      tellReplaced(*found.problem, found.replaced, report, only);
      if (!only.replaced.empty()) report.inference = std::move(only);
    }
    report.statistics.secondsByPhase["infer"] = found.seconds;
    report.statistics.secondsTotal += found.seconds;
  }
  if (said) {
    tellReplaced(*problem, replaced, report, *said);
    report.statistics.secondsByPhase["infer"] = seconds;
    report.statistics.secondsTotal += seconds;
    report.inference = std::move(said);
  }
  return report;
}

}  // namespace shardproof
