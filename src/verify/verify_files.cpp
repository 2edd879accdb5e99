#include "verify/verify_files.h"

#include <chrono>
#include <optional>

#include "reader/reader.h"
#include "verify/describe.h"
#include "verify/with_inference.h"

namespace shardproof {
namespace {

// What there is to report when the interruption came before any proof.
Report nothingDone(const Problem& problem) {
  Report report;
  report.model = problem.model.file;
  report.plan = problem.plan.file;
  report.reason = "interrupted";
  report.interrupted = true;
  report.outputs = problem.model.outputs.size();
  report.outputTensors = outputNames(problem);
  return report;
}

}  // namespace

VerifiedFiles verifyFiles(const std::string& model, const std::string& plan,
                          const VerifyOptions& options, const hlo::Options& hloOptions,
                          Infer infer) {
  const auto start = std::chrono::steady_clock::now();
  if (options.progress) options.progress(0, 0, "reading");
  VerifiedFiles done;
  done.problem = readProblem(model.empty() ? std::nullopt : std::optional(model), plan, hloOptions,
                             &done.assumptions);
  const double reading =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Report& report = done.report;
  report = options.cancel && *options.cancel ? nothingDone(*done.problem)
                                             : verifyInferring(done.problem, options, infer);
  if (report.statistics.secondsByPhase.emplace("read", reading).second)
    report.statistics.secondsTotal += reading;
  return done;
}

}  // namespace shardproof
