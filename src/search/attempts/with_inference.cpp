// SPDX-License-Identifier: Apache-2.0
#include "attempts/with_inference.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ir/clone.h"

namespace shardproof {

namespace {

// Of a plan whose checkpoints speak of less than this share of its local tensors, more is found
// first. Plans that say what each layer's input and output is say about this much.
constexpr double kThinLineage = 0.125;

// Of one whose checkpoints speak of less than this share it is tried without more, in a hurry:
// where they are at the right places it is proved so.
constexpr double kModestLineage = 0.25;
constexpr double kSecondsForModest = 15;
constexpr std::size_t kMegabytesForModest = 2048;

// A plan of so few operators is one stage of a size that is proved at once, or not without more:
// whether it is, is known sooner than what executing even a small image of it tells.
constexpr std::size_t kFewNodes = 60;
constexpr double kSecondsForFew = 5;

// In a plan that is probably wrong, and has no more local tensors than these, multiples are looked
// for at once: what is one is taken for the box itself otherwise, and the report calls it wrong.
constexpr std::size_t kMostForMultiples = 5000;

bool hasFewNodes(const Problem& problem) {
  std::size_t nodes = 0;
  for (const Program& p : problem.plan.programs) nodes += p.graph.nodes.size();
  return nodes <= kFewNodes;
}

void inferInto(std::unique_ptr<Problem>& problem, VerifyOptions& options,
               std::optional<Inference>& said, std::vector<Inferred::Replaced>& replaced,
               double& seconds, InferParts parts) {
  if (options.progress) options.progress(0, 0, "looking for lineage");
  InferOptions inferOptions;
  inferOptions.cancel = options.cancel;
  inferOptions.parts = parts;
  // It takes no longer than a proof may.
  inferOptions.seconds = std::min(inferOptions.seconds, options.timeoutSeconds);
  Inferred found = inferLineage(*problem, inferOptions);
  seconds += found.seconds;
  if (parts == InferParts::kNone && !found.doubtful.empty() && found.looked <= kMostForMultiples) {
    inferOptions.parts = InferParts::kMultiples;
    found = inferLineage(*problem, inferOptions);
    seconds += found.seconds;
  }
  said = Inference{found.count, found.looked, found.reason};
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
                  const Report& report, Inference& said, bool verified = true) {
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
    bool proved = verified;
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
  const double density = infer == Infer::kAuto ? lineageDensity(*problem) : 1;
  const bool thin = density < kThinLineage;
  bool hurried = thin && hasFewNodes(*problem) && options.timeoutSeconds > kSecondsForFew;
  if (infer == Infer::kAlways || (thin && !hurried))
    inferInto(problem, options, said, replaced, seconds, InferParts::kNone);
  if (hurried) {
    options.timeoutSeconds = kSecondsForFew;
  } else if (!thin && density < kModestLineage && options.timeoutSeconds > kSecondsForModest) {
    options.timeoutSeconds = kSecondsForModest;
    options.memoryMegabytes = std::min(options.memoryMegabytes, kMegabytesForModest);
    options.hurried = hurried = true;
  }
  Report report = verify(*problem, options);
  options.timeoutSeconds = given.timeoutSeconds;
  options.memoryMegabytes = given.memoryMegabytes;
  options.hurried = false;
  // What the file says is not enough, or is wrong. Parts last: of a large plan they are many, and
  // few of them help.
  for (const InferParts parts : {InferParts::kNone, InferParts::kAll}) {
    if (infer == Infer::kNever || report.verdict != Verdict::kUndecided || report.interrupted ||
        (said && parts == InferParts::kNone))
      continue;
    const std::size_t before = said ? said->lemmas : 0;
    if (said) problem = withoutInferred(*problem);
    inferInto(problem, options, said, replaced, seconds, parts);
    // The second verdict has all of the time, with lemmas or without.
    if (said->lemmas <= before && !(hurried && parts == InferParts::kAll)) continue;
    hurried = false;
    const double took = report.statistics.secondsTotal;
    report = verify(*problem, options);
    report.statistics.secondsByPhase["without lemmas"] += took;
    report.statistics.secondsTotal += took;
  }
  if (said) tellReplaced(*problem, replaced, report, *said);
  // The verdict stands; what the checkpoints should be is looked up for the report alone.
  if (infer != Infer::kNever && hasWrongLineage(report) && !report.interrupted &&
      (!said || said->replaced.empty())) {
    InferOptions inferOptions;
    inferOptions.cancel = options.cancel;
    inferOptions.seconds = std::min(kSecondsForWrongLineage, options.timeoutSeconds);
    const Inferred found = inferLineage(*withoutInferred(*problem), inferOptions);
    if (found.problem) {
      Inference only;
      tellReplaced(*found.problem, found.replaced, report, only, false);
      if (said) said->replaced = std::move(only.replaced);
      else if (!only.replaced.empty()) said = std::move(only);
    }
    seconds += found.seconds;
  }
  if (seconds > 0) {
    report.statistics.secondsByPhase["infer"] = seconds;
    report.statistics.secondsTotal += seconds;
  }
  report.inference = std::move(said);
  return report;
}

}  // namespace shardproof
