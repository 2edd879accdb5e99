// SPDX-License-Identifier: Apache-2.0
#include "attempts/verify_files.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "attempts/attempts.h"
#include "describe/describe.h"
#include "reader/hlo/files.h"
#include "reader/reader.h"
#include "util/stopwatch.h"
#include "verify/capture_report.h"

namespace shardproof {
namespace {

// What there is to report when the interruption came before any proof.
Report nothingDone(const Problem& problem, const VerifyOptions& options) {
  Report report;
  report.model = problem.model.file;
  report.plan = problem.plan.file;
  report.reason = "interrupted";
  report.interrupted = true;
  report.outputs = problem.model.outputs.size();
  report.outputTensors = outputNames(problem);
  describeCapture(report, problem, options);
  return report;
}

}  // namespace

VerifiedFiles verifyFiles(const std::string& model, const std::string& plan,
                          const VerifyOptions& options, const hlo::Options& hloOptions,
                          Infer infer) {
  const auto start = std::chrono::steady_clock::now();
  if (options.progress) options.progress(0, 0, "reading");
  VerifiedFiles done;
  done.problem = readProblem(model.empty() ? std::nullopt : std::optional(model), plan, hloOptions);
  const double reading = secondsSince(start);
  done.budget = Budget(options.runSeconds, options.cancel);
  const Budget& budget = done.budget;
  const bool isHlo = plan != "-" && hlo::isHloFile(plan);
  Report& report = done.report;
  std::vector<AttemptReport> tried;
  std::optional<Report> first;
  if (!budget.cancelled() && infer == Infer::kAuto && !model.empty() && isHlo) {
    const auto read = [&](bool completeIndices) {
      hlo::Options again = hloOptions;
      again.completeIndices = completeIndices;
      return readProblem(model, plan, again);
    };
    first = lookFirst(done.problem, read, reading, options, budget, tried);
  }
  report = budget.cancelled() && !first ? nothingDone(*done.problem, options)
           : first                      ? std::move(*first)
                                        : verifyInferring(done.problem, options, infer, budget);
  report.attempts.insert(report.attempts.begin(), tried.begin(), tried.end());
  if (report.statistics.secondsByPhase.emplace("read", reading).second)
    report.statistics.secondsTotal += reading;
  if (report.verdict == Verdict::kNotEquivalent && isHlo && !hloOptions.assumeInBounds &&
      done.problem && hasIndices(*done.problem))
    report.warnings.push_back(
        "integers that are used as indices may be negative or beyond their tensor here; where they "
        "never are, --assume-in-bounds leaves these out");
  return done;
}

}  // namespace shardproof
