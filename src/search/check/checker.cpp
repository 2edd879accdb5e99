// SPDX-License-Identifier: Apache-2.0
#include "check/checker.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "prover/stage_prover.h"
#include "refute/stage_refuter.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

// A stage whose proof is work enough to look at numbers first.
constexpr std::int64_t kManyElements = 100'000;

class StageChecker {
 public:
  StageChecker(const Stage& stage, const CheckOptions& options)
      : stage_(stage),
        options_(options),
        refuter_(stage, outcome_),
        prover_(stage, {options.timeoutSeconds, options.memoryMegabytes}, refuter_) {}

  StageOutcome run() {
    try {
      decide();
    } catch (const Unsupported& error) {
      outcome_.proof.reset();
      outcome_.refutedBy = Method::kNone;
      outcome_.reason = error.what();
    }
    for (const auto& [phase, seconds] : prover_.seconds()) outcome_.seconds[phase] += seconds;
    return std::move(outcome_);
  }

 private:
  bool onlySolver() const { return options_.checker == Checker::kZ3; }

  void decide() {
    try {
      prover_.reduce();
    } catch (const Unsupported&) {
      // Too large for a proof; in numbers a difference may still be found.
      if (onlySolver() || !refute()) throw;
      return;
    }
    listShapes();
    if (!onlySolver() && totalElements(prover_.reduced()) > kManyElements &&
        refuter_.differsAtFirstSight() && refute())
      return;
    const auto proof = prover_.byNormalForm();
    if (onlySolver()) {
      // It is told to look only where both sides are defined.
      if (prover_.undefined().empty()) decideBySolver();
      else if (!refute()) throw Unsupported(prover_.undefined());
      return;
    }
    if (accept(proof)) return;
    const bool defined = prover_.undefined().empty();
    if ((!defined || refuter_.fingerprintsDiffer(prover_.reduced())) && refute()) return;
    if (defined && accept(prover_.byExpansion())) return;
    if (accept(prover_.byFractions())) return;
    if (!defined) throw Unsupported(prover_.undefined());
    // A stage that only the solver may decide is worth the positions that its verdict needs.
    decideBySolver();
  }

  void decideBySolver() {
    const StageProver::Solved first = prover_.bySolver(onlySolver());
    take(first);
    if (first.laws == Laws::kAll || outcome_.verdict() != StageVerdict::kUndecided) return;
    try {
      if (const auto second = prover_.bySolverWithAllPositions(onlySolver())) take(*second);
    } catch (const Unsupported&) {
      return;  // undecided it is, with the reason there was
    }
  }

  void take(const StageProver::Solved& solved) {
    listShapes();
    if (accept(solved.proof)) return;
    if (solved.result.verdict == SmtVerdict::kSat) {
      if (refuter_.refuteAt(prover_.reduced(), solved.result.model)) return;
      outcome_.reason =
          solved.laws == Laws::kAll
              ? "Z3 finds a difference only for other functions than the real ones"
              : "the two sides are not the same polynomials of the same functions, and what else "
                "Z3 could show of some positions would not hold for all";
      if (solved.unequal && refute()) return;
    } else {
      outcome_.reason = solved.result.reason;
      if (solved.unequal && onlySolver() && refute()) return;
    }
    if (prover_.droppedAssumption())
      outcome_.reason += "; assumed lineage that is over-determined was left out";
    if (!refusal_.empty()) outcome_.reason += (outcome_.reason.empty() ? "" : "; ") + refusal_;
  }

  bool accept(const std::optional<Proof>& proof) {
    note(prover_.takeRefusal());
    if (!proof) return false;
    outcome_.proof = proof;
    listShapes();
    return true;
  }

  bool refute() {
    const bool refuted = refuter_.refute(prover_.isReduced() ? &prover_.reduction() : nullptr);
    note(refuter_.takeRefusal());
    return refuted;
  }

  void note(std::string refusal) {
    if (!refusal.empty()) refusal_ = std::move(refusal);
  }

  void listShapes() { outcome_.reducedShapes = shownShapes(stage_, prover_.reduced()); }

  const Stage& stage_;
  const CheckOptions& options_;
  StageOutcome outcome_;
  StageRefuter refuter_;
  StageProver prover_;
  std::string refusal_;  // why the last method that failed did
};

}  // namespace

StageOutcome checkStage(const Stage& stage, const CheckOptions& options) {
  try {
    return StageChecker(stage, options).run();
  } catch (const NeedsRefinement& needed) {
    StageOutcome outcome;
    outcome.needsRefinement = true;
    outcome.reason = needed.what();
    return outcome;
  }
}

}  // namespace shardproof
