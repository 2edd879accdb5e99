// SPDX-License-Identifier: Apache-2.0
#include "shardproof/verify.h"

#include <algorithm>
#include <thread>

#include "describe/describe.h"
#include "util/peak_memory.h"
#include "verify/capture_report.h"
#include "verify/verification.h"

namespace shardproof {

Verification::Verification(const Problem& problem, const VerifyOptions& options,
                           const Attempt& attempt, const Budget& budget,
                           const std::vector<EntryId>& doubtful,
                           const std::vector<EntryId>& leftOut, AttemptMemory* memory)
    : problem_(problem),
      plan_(problem.plan),
      options_(options),
      attempt_(attempt),
      budget_(budget),
      share_(budget.within(attempt.seconds)),
      doubtful_(doubtful),
      memory_(memory),
      leftOut_(problem.plan.lineage.size(), 0) {
  for (const EntryId e : leftOut) leftOut_[e] = 1;
  options_.stageSeconds = std::min(options.stageSeconds, attempt.stageSeconds);
  options_.memoryMegabytes = std::min(options.memoryMegabytes, attempt.megabytes);
  if (options_.inProcess) options_.jobs = 1;
  proofSeconds_ = options_.stageSeconds;
  if (options_.jobs <= 0)
    options_.jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

Report Verification::run() {
  const auto start = Clock::now();
  describeInput();
  planIndex_ = std::make_unique<PlanIndex>(problem_);
  if (planIndex_->defects().empty()) chain_ = std::make_unique<ProofChain>(*planIndex_);
  report_.statistics.secondsByPhase["join"] = secondsSince(start);
  report_.statistics.operatorInstances = planIndex_->operatorInstances();
  if (!planIndex_->defects().empty()) {
    report_.verdict = Verdict::kNotEquivalent;
    report_.defects = planIndex_->defects();
  } else {
    prove();
  }
  if (!options_.smt2Directory.empty()) writeObligationFiles();
  report_.statistics.secondsTotal = secondsSince(start);
  report_.statistics.peakMemoryBytes = peakMemoryBytes() + peakWorkerBytes_;
  return std::move(report_);
}

void Verification::describeInput() {
  report_.model = problem_.model.file;
  report_.plan = plan_.file;
  report_.outputs = problem_.model.outputs.size();
  report_.outputTensors = outputNames(problem_);
  describeCapture(report_, problem_, options_);
  Statistics& s = report_.statistics;
  for (const Program& p : plan_.programs) s.programNodes += p.graph.nodes.size();
  s.lineageEntries = plan_.lineage.size();
  knownInputs_ =
      std::any_of(problem_.model.graph.tensors.begin(), problem_.model.graph.tensors.end(),
                  [](const Tensor& t) { return t.known != nullptr; });
  s.ranks = static_cast<std::size_t>(plan_.ranks());
  s.microbatches = static_cast<std::size_t>(plan_.microbatches);
}

bool Verification::endToEndDiffers() {
  const auto start = Clock::now();
  // What is proved need not be computed on all ranks again, nor asked again, unless the place of
  // a dropout's mask is in doubt, and with it what a proof means.
  std::vector<char> known = chain_->proved();
  if (std::any_of(plan_.positioning.begin(), plan_.positioning.end(),
                  [&](EntryId e) { return !isGiven(plan_.lineage[e].role) && !known[e]; })) {
    std::fill(known.begin(), known.end(), 0);
  }
  EntryId firstRefuted;
  for (const EntryId e : topological()) {
    const StageOutcome* outcome = outcomeOf(e);
    if (!firstRefuted && outcome && outcome->verdict() == StageVerdict::kRefuted) firstRefuted = e;
  }
  endToEnd_ =
      checkEndToEnd({*planIndex_, known, topological(), firstFailures_, firstRefuted,
                     [&](EntryId e) -> const std::vector<EntryId>& { return chain_->assumed(e); },
                     poolOptions(1, options_.stageSeconds * 2), &budget_});
  report_.statistics.secondsByPhase["end-to-end"] += secondsSince(start);
  peakWorkerBytes_ = std::max(peakWorkerBytes_, endToEnd_.peakWorkerBytes);
  for (const CyclicWait& cycle : endToEnd_.cycles) reportCycle(cycle);
  return endToEnd_.differs;
}

Report verifyOnce(const Problem& problem, const VerifyOptions& options, const Attempt& attempt,
                  const Budget& budget, const std::vector<EntryId>& doubtful,
                  const std::vector<EntryId>& leftOut, AttemptMemory* memory) {
  return Verification(problem, options, attempt, budget, doubtful, leftOut, memory).run();
}

Report verify(const Problem& problem, const VerifyOptions& options) {
  return verifyOnce(problem, options, {.name = "as given"},
                    Budget(options.runSeconds, options.cancel));
}

}  // namespace shardproof
