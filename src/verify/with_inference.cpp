#include "verify/with_inference.h"

#include <utility>

namespace shardproof {

namespace {

// Of a plan whose lineage speaks of less than this share of its local tensors, more is found
// first. Plans that say what each layer's input and output is say this much.
constexpr double kThinLineage = 0.15;

// Nothing is found twice.
void inferInto(std::unique_ptr<Problem>& problem, VerifyOptions& options,
               std::optional<Inference>& said, double& seconds) {
  if (options.progress) options.progress(0, 0, "looking for lineage");
  InferOptions inferOptions;
  inferOptions.cancel = options.cancel;
  Inferred found = inferLineage(*problem, inferOptions);
  said = Inference{found.count, found.looked, found.reason};
  seconds += found.seconds;
  options.doubtful = std::move(found.doubtful);
  if (found.problem) problem = std::move(found.problem);
}

}  // namespace

Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& given, Infer infer) {
  VerifyOptions options = given;
  std::optional<Inference> said;
  double seconds = 0;
  if (infer == Infer::kAlways || (infer == Infer::kAuto && lineageDensity(*problem) < kThinLineage))
    inferInto(problem, options, said, seconds);
  Report report = verify(*problem, options);
  // What the file says is not enough, or is wrong.
  if (infer == Infer::kAuto && !said && report.verdict == Verdict::kUndecided &&
      !report.interrupted) {
    inferInto(problem, options, said, seconds);
    if (said->lemmas > 0) {
      const double before = report.statistics.secondsTotal;
      report = verify(*problem, options);
      report.statistics.secondsByPhase["without lemmas"] = before;
      report.statistics.secondsTotal += before;
    }
  }
  if (said) {
    report.statistics.secondsByPhase["infer"] = seconds;
    report.statistics.secondsTotal += seconds;
    report.inference = std::move(said);
  }
  return report;
}

}  // namespace shardproof
