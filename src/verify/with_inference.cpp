#include "verify/with_inference.h"

#include <utility>

namespace shardproof {

namespace {

// Of a plan whose lineage speaks of less than this share of its local tensors, more is found
// first. Plans that say what each layer's input and output is say this much.
constexpr double kThinLineage = 0.15;

// Nothing is found twice. Gives the problem as it was, if it is another one now.
std::unique_ptr<Problem> inferInto(std::unique_ptr<Problem>& problem, VerifyOptions& options,
                                   std::optional<Inference>& said, double& seconds) {
  if (options.progress) options.progress(0, 0, "looking for lineage");
  InferOptions inferOptions;
  inferOptions.cancel = options.cancel;
  Inferred found = inferLineage(*problem, inferOptions);
  said = Inference{found.count, found.looked, found.reason};
  seconds += found.seconds;
  options.doubtful = std::move(found.doubtful);
  if (found.problem) problem.swap(found.problem);
  return std::move(found.problem);
}

}  // namespace

Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& given, Infer infer) {
  VerifyOptions options = given;
  std::optional<Inference> said;
  double seconds = 0;
  std::unique_ptr<Problem> before;
  if (infer == Infer::kAlways || (infer == Infer::kAuto && lineageDensity(*problem) < kThinLineage))
    before = inferInto(problem, options, said, seconds);
  Report report = verify(*problem, options);
  // What was found may lead astray where the file alone says enough.
  if (infer == Infer::kAuto && before && report.verdict == Verdict::kUndecided &&
      !report.interrupted) {
    Report alone = verify(*before, given);
    if (alone.verdict != Verdict::kUndecided) {
      alone.statistics.secondsByPhase["with lemmas"] = report.statistics.secondsTotal + seconds;
      alone.statistics.secondsTotal += report.statistics.secondsTotal + seconds;
      problem = std::move(before);
      return alone;
    }
  }
  // What the file says is not enough, or is wrong.
  if (infer == Infer::kAuto && !said && report.verdict == Verdict::kUndecided &&
      !report.interrupted) {
    inferInto(problem, options, said, seconds);
    if (said->lemmas > 0) {
      const double first = report.statistics.secondsTotal;
      report = verify(*problem, options);
      report.statistics.secondsByPhase["without lemmas"] = first;
      report.statistics.secondsTotal += first;
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
