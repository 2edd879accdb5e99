// SPDX-License-Identifier: Apache-2.0
// Where a difference is looked for: in the stage as it was reduced for a proof, reduced for numbers
// only, and with causal masks whole, as far as each can be afforded; and, of the whole plan, at all
// outputs. What a shortened mask shows is a suspicion until a whole one shows it.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>

#include "refute/stage_refuter.h"
#include "util/stopwatch.h"

namespace shardproof {

namespace {

// A stage with a causal mask is evaluated at full sequence length up to this many elements in a
// tensor.
constexpr std::int64_t kMostConfirmedElements = 20'000'000;
constexpr double kMostConfirmedTotal = 64e6;  // in all of its tensors: six evaluations of seconds
constexpr std::int64_t kMostStageElements =
    300'000;  // the same of one stage, or of what is no mask
constexpr double kMostStageTotal = 50e6, kMostStageIteration = 2e6;
constexpr double kMostConfirmedIteration =
    1e9;  // combinations of indices in one operator, as numbers at full sequence length
// With the finer of two coarse masks, which is the last resort.
constexpr double kMostCoarseTotal = 120e6, kMostCoarseIteration = 50e6;

constexpr char kTooManyElements[] = "too many elements to be evaluated in numbers";

}  // namespace

bool StageRefuter::refute(const ReductionOptions* proof) {
  Stopwatch watch(outcome_.seconds["refute"]);
  ReductionOptions smallest;
  smallest.numbersOnly = smallest.knownInputs = true;
  if (refuteOn(smallest)) return true;
  if (proof == nullptr) return false;
  ReductionOptions numbers = *proof;
  numbers.knownInputs = true;
  return refuteOn(numbers);
}

bool StageRefuter::refuteOn(const ReductionOptions& options) {
  reduceTo(options);
  Trial trial;
  if (!searchDifference(trial)) return false;
  if (reduced_->reducesAbsolute) {
    // The dimension is kept whole to confirm what was found with another mask, or nothing is
    // refuted.
    try {
      reduceWhole(options);
    } catch (const Unsupported&) {
      // Not a refutation of this stage, but reason enough not to look for a proof: the end-to-end
      // evaluation decides.
      outcome_.shortenedMask = true;
      throw Unsupported(
          "the sides differ with a shortened causal mask (or table of known numbers); at full "
          "length the stage is too large to confirm it");
    }
    if (!searchDifference(trial)) return false;
  }
  accept(trial, Method::kNumeric);
  return true;
}

void StageRefuter::evaluateEndToEnd() {
  Stopwatch watch(outcome_.seconds["refute"]);
  std::optional<Trial> trial =
      endToEnd_ == Masks::kWhole ? searchWithWholeMasks() : searchWithReducedMasks();
  if (!trial || differing_.empty()) return;
  outcome_.reason.clear();
  std::set<DifferingClaim> differing;
  for (const std::int32_t c : differing_) differing.insert(claimOf(stage_, stage_.claims[c]));
  outcome_.differing.assign(differing.begin(), differing.end());
  outcome_.refutedBy = Method::kNumeric;
}

StageOutcome evaluateEndToEnd(const Stage& stage, Masks masks) {
  StageOutcome outcome;
  try {
    StageRefuter(stage, outcome, masks).evaluateEndToEnd();
  } catch (const Unsupported& error) {
    outcome.refutedBy = Method::kNone;
    outcome.reason = error.what();
  } catch (const NeedsRefinement& needed) {
    outcome = {};
    outcome.needsRefinement = true;
    outcome.reason = needed.what();
  }
  return outcome;
}

std::optional<StageRefuter::Trial> StageRefuter::searchWithReducedMasks() {
  ReductionOptions options;
  options.numbersOnly = options.evenShares = options.knownInputs = true;
  reduceTo(options);
  std::optional<Trial> trial = searchClaims();
  outcome_.reason = kNoDifferenceFound;
  if (!anyOutput(differing_)) {
    // More positions kept apart show more, where they can be afforded; otherwise it is not known
    // whether there is a difference.
    options.numbersOnly = false;
    try {
      reduceTo(options);
      expectAffordable(kMostStageTotal, kMostStageIteration);
      if (auto more = searchClaims()) trial = std::move(more);
    } catch (const Unsupported& tooLarge) {
      outcome_.reason = tooLarge.what();
    }
  }
  outcome_.shortenedMask = anyOutput(differing_) && reduced_->reducesAbsolute;
  return trial;
}

// What differs with reduced masks was seen before.
std::optional<StageRefuter::Trial> StageRefuter::searchWithWholeMasks() {
  ReductionOptions options;
  options.evenShares = options.knownInputs = true;
  for (const bool numbersOnly : {true, false}) {
    options.numbersOnly = numbersOnly;
    try {
      reduceTo(options);
      reduceWhole(options);
      if (auto trial = searchClaims(); anyOutput(differing_)) return trial;
      outcome_.reason = kNoDifferenceFound;
    } catch (const Unsupported& tooLarge) {
      outcome_.reason = tooLarge.what();
      if (!numbersOnly) return std::nullopt;
      auto trial = searchWithFinerMasks(options);
      outcome_.shortenedMask = outcome_.underCoarseMasks = trial.has_value();
      return trial;
    }
  }
  return std::nullopt;
}

// Of a reduced stage, masks and tables of known numbers are coarser: positions of one
// representative share a row. All else is as at full size.
std::optional<StageRefuter::Trial> StageRefuter::searchWithFinerMasks(ReductionOptions options) {
  constexpr int kFiner[] = {5, 3};
  constexpr double kQuick = 40e6;  // elements
  for (const int finer : kFiner) {
    options.absoluteApart = finer;
    const bool last = finer == kFiner[std::size(kFiner) - 1];
    try {
      reduceTo(options);
      expectAffordable(last ? kMostCoarseTotal : kQuick, kMostCoarseIteration);
    } catch (const Unsupported&) {
      continue;
    }
    if (auto trial = searchClaims(); anyOutput(differing_)) return trial;
    break;
  }
  return std::nullopt;
}

bool StageRefuter::anyOutput(const std::set<std::int32_t>& claims) const {
  return std::any_of(claims.begin(), claims.end(), [&](std::int32_t c) { return isOutput(c); });
}

std::optional<StageRefuter::Trial> StageRefuter::searchClaims() {
  // From end to end, exponentials overflow with all but small values.
  constexpr int kSmallFirst[] = {3, 4, 7, 2, 0, 1, 5, 6};
  constexpr int kMostFound = 3;  // attempts for claims that only some inputs refute, and their time
  constexpr double kEnoughSeconds = 0.5,
                   kMostSeconds = 4;  // ... once an output differs, and when none does
  std::optional<Trial> first;
  int found = 0;
  const auto start = ProcessorClock::now();
  constexpr int kRounds = 3;  // of these, while they cost little: a choice among experts may
                              // differ for few inputs only
  constexpr double kLittleSeconds = 0.5;
  for (int i = 0; i < kRounds * static_cast<int>(std::size(kSmallFirst)); ++i) {
    const int period = static_cast<int>(std::size(kSmallFirst)),
              k = kSmallFirst[i % period] + i / period * period;
    if (i >= period && secondsSince(start) > kLittleSeconds) break;
    Trial trial;
    const bool differs = attemptAtRandom(k, trial);
    const double elapsed = secondsSince(start);
    if (differs) {
      differing_.insert(trial.claims.begin(), trial.claims.end());
      if (!first) first = std::move(trial);
      if (anyOutput(differing_) &&
          (endToEnd_ == Masks::kWhole || ++found == kMostFound || elapsed > kEnoughSeconds))
        break;  // whole masks only confirm
    }
    if (elapsed > kMostSeconds) break;
  }
  return first;
}

void StageRefuter::reduceTo(const ReductionOptions& options) {
  own_ = reduceStage(stage_, options);
  reduced_ = &own_;
}

void StageRefuter::reduceWhole(ReductionOptions options) {
  const bool whole = endToEnd_ == Masks::kWhole;
  const double most = whole ? kMostConfirmedTotal : kMostStageTotal;
  if (reduced_->wholeElements > most) throw Unsupported(kTooManyElements);
  options.keepAbsolute = true;
  options.maxElements = endToEnd_ ? kMostConfirmedElements : kMostStageElements;
  reduceTo(options);
  expectAffordable(most, whole ? kMostConfirmedIteration : kMostStageIteration);
}

void StageRefuter::expectAffordable(double mostElements, double mostIteration) const {
  if (static_cast<double>(totalElements(*reduced_)) > mostElements ||
      reduced_->largestIteration > mostIteration)
    throw Unsupported(kTooManyElements);
}

DifferingClaim claimOf(const Stage& stage, const Equation& claim) {
  const bool local = !claim.parts.empty();
  return {claim.entry, claim.shard, local ? stage.tensors[claim.parts.front().first].rank : Rank()};
}

std::int64_t totalElements(const ReducedStage& reduced) {
  std::int64_t total = 0;
  for (const auto& dims : reduced.dims) {
    std::int64_t elements = 1;
    for (const ops::ReducedDim* d : dims) elements *= d->size();
    total += elements;
  }
  return total;
}

}  // namespace shardproof
