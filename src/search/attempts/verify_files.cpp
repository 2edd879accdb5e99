// SPDX-License-Identifier: Apache-2.0
#include "attempts/verify_files.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "attempts/with_inference.h"
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

// A first look at HLO programs, whose own checkpoints are often enough: little time for each stage,
// and in all. What it decides is decided; where it does not, it is as if it had not been.
std::optional<Report> quickReport(std::unique_ptr<Problem>& problem, const VerifyOptions& given,
                                  Infer infer, double reading) {
  // A large program takes longer to look at, too.
  constexpr double kSecondsEach = 0.5;
  const double secondsAll = std::max(6.0, 2 * reading);
  VerifyOptions options = given;
  options.timeoutSeconds = std::min(given.timeoutSeconds, kSecondsEach);
  options.smt2Directory.clear();
  options.record = nullptr;
  std::atomic<bool> enough = false;
  options.cancel = &enough;
  const auto start = std::chrono::steady_clock::now();
  options.progress = [&](std::size_t done, std::size_t all, const char* what) {
    if (given.progress) given.progress(done, all, what);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (elapsed.count() > secondsAll || (given.cancel && *given.cancel)) enough = true;
  };
  Report report = verifyInferring(problem, options, infer);
  if (report.verdict == Verdict::kUndecided || report.interrupted) return std::nullopt;
  return report;
}

// Whether some input holds integers of which not all values are looked at: an index.
bool hasIndices(const Problem& problem) {
  return std::any_of(
      problem.model.graph.tensors.begin(), problem.model.graph.tensors.end(),
      [](const Tensor& t) { return t.known && t.known->kind == KnownInput::Kind::kWithin; });
}

// As it stands, with lemmas that are found, and both with indices that are complete, if any is.
std::optional<Report> quickReport(VerifiedFiles& done, const std::string& model,
                                  const std::string& plan, const VerifyOptions& given,
                                  const hlo::Options& hloOptions, double seconds) {
  hlo::Options options = hloOptions;
  for (const bool complete : {false, true}) {
    if (complete && !(done.problem && hasIndices(*done.problem))) break;
    options.completeIndices = complete;
    for (const Infer infer : {Infer::kNever, Infer::kAlways}) {
      // The first look, which adds nothing, is at what has been read.
      const bool first = !complete && infer == Infer::kNever;
      std::unique_ptr<Problem> problem =
          first ? std::move(done.problem) : readProblem(model, plan, options);
      auto report = quickReport(problem, given, infer, seconds);
      if (report || first) done.problem = std::move(problem);
      if (report) return report;
      if (given.cancel && *given.cancel) return std::nullopt;
    }
  }
  return std::nullopt;
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
  Report& report = done.report;
  std::optional<Report> quick;
  const bool cancelled = options.cancel && *options.cancel;
  if (!cancelled && infer == Infer::kAuto && !model.empty() && plan != "-" && hlo::isHloFile(plan))
    quick = quickReport(done, model, plan, options, hloOptions, reading);
  report = cancelled ? nothingDone(*done.problem, options)
           : quick   ? std::move(*quick)
                     : verifyInferring(done.problem, options, infer);
  if (report.statistics.secondsByPhase.emplace("read", reading).second)
    report.statistics.secondsTotal += reading;
  if (report.verdict == Verdict::kNotEquivalent && plan != "-" && hlo::isHloFile(plan) &&
      !hloOptions.assumeInBounds && done.problem && hasIndices(*done.problem))
    report.warnings.push_back(
        "integers that are used as indices may be negative or beyond their tensor here; where they "
        "never are, --assume-in-bounds leaves these out");
  return done;
}

}  // namespace shardproof
