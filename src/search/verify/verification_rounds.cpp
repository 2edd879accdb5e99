// SPDX-License-Identifier: Apache-2.0
// Rounds. Every entry's stage is cut and gets the class of its canonical form; classes are proved;
// what failed is no longer assumed, and stages that relied on it are cut again further up (refining
// the cut), until all outputs are proved or nothing changes. A cut with fewer lemmas is a stage of
// its own with its own proof, and no result of an earlier round is kept for it, so refining can
// turn "not proved" into "proved" only by a proof (docs/soundness.md, "Refining the cut").
#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "plan/checks.h"
#include "shardproof/error.h"
#include "verify/verification.h"

namespace shardproof {

namespace {

// Rounds of refining the cut: each merges the stages that failed into those that relied on them.
constexpr int kMostRounds = 12;
// Lemmas that were found and fail one after the other lead nowhere.
constexpr int kMostInferredRounds = 6;
// A stage that was merged with failed ones may have this many local tensors, and all those of a
// round together so many times as many tensors and operators as the first round's stages had (and
// some), those that were given up included: beyond that a proof is out of reach, and cutting alone
// takes minutes.
constexpr std::size_t kMostMergedTensors = 200'000;
constexpr std::size_t kMostGrowth = 4;
constexpr std::size_t kGrowthAllowance = 1'000'000;
// A hurried verification gives up where its stages have so many times the plan's nodes (and some).
constexpr std::size_t kManyForHurried = 60;
// Where outputs are probably wrong: what the rest of the plan is proved with, before they are
// evaluated.
constexpr double kSecondsBesideDoubtful = 2;
// The last resort, without any cut point, is for plans of so many operators on all ranks, and for
// proofs that take no longer.
constexpr std::size_t kMostWithoutCutPoints = 5'000;
constexpr double kSecondsWithoutCutPoints = 5;

// How often the stage of an inferred cut point is cut again further up.
constexpr int kMostDepth = 4;

// For a cut point that no proof needs: whether it holds is for the report alone.
constexpr double kSecondsForLeftOut = 0.5;
// And of so many, the earliest.
constexpr std::size_t kMostLeftOutJudged = 20;

}  // namespace

void Verification::prove() {
  entries_.resize(plan_.lineage.size());
  excluded_ = leftOut_;
  for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) {
    if (isGiven(plan_.lineage[e].role)) continue;
    entries_[e].needed = true;
    entries_[e].stage = static_cast<std::int32_t>(report_.stages.size());
    StageReport stage;
    stage.entry = e;
    stage.inferred = plan_.lineage[e].inferred;
    stage.guess = !plan_.lineage[e].guess.empty();
    stage.role = plan_.lineage[e].role;
    stage.tensor = tensorName(plan_.lineage[e].tensor);
    report_.stages.push_back(std::move(stage));
  }
  std::vector<EntryId> todo = topological();
  std::erase_if(todo, [&](EntryId e) { return leftOut_[e] != 0; });
  if (refutesDoubtful(todo)) {
    conclude();
    return;
  }
  int last = kMostRounds;
  bool numbersAsked = false;
  for (int round = 0;; ++round) {
    merging_ = round > 0;
    round_ = round;
    if (round == 1) mostCut_ = kMostGrowth * cutSize_ + kGrowthAllowance;
    cutSize_ = 0;
    cutAndProve(todo);
    if (exhausted() || !report_.defects.empty()) break;
    if (cutPointsContradicted_) break;
    if (gaveUp()) {
      todo = withoutCutPoints();
      if (todo.empty()) break;
      last = round + kMostRounds;
      continue;
    }
    if (round == 0) {
      firstFailures_ = failures();
      firstOutcomes_ = snapshot(firstFailures_);
    }
    if (allOutputsProved()) break;
    // Also where no stage is refuted: a stage that is wrong may be too large for its own check,
    // and is one round of numbers away from its verdict.
    if (!numbersAsked && !firstFailures_.empty() && (round > 0 || !onlyGuessesFailed())) {
      numbersAsked = true;
      if (endToEndDiffers()) {
        differs_ = true;
        // It counts only where the arguments of functions of which nothing is known are the same.
        if (argumentsProved()) break;
      } else if (attempt_.stopAtFirstFailure && (lineageIsRefuted() || hidesRelations())) {
        gaveUp_ = true;
        break;
      }
    }
    // Failed cut points are no longer assumed; what relied on them is cut again, further up.
    for (const EntryId e : failures())
      if (!excluded_[e]) excluded_[e] = !mayHoldWithout(e) && !mayHoldFurtherUp(e);
    todo.clear();
    for (const EntryId e : topological()) {
      if (leftOut_[e]) continue;
      const auto& used = chain_->assumed(e);
      const bool recut =
          std::any_of(used.begin(), used.end(), [&](EntryId f) { return excluded_[f] != 0; });
      if (recut || (!holds(e) && deepen(e))) todo.push_back(e);
    }
    if (round >= last) todo.clear();
    if (todo.empty() || round == kMostInferredRounds) {
      std::vector<EntryId> anew;
      if (round < last) anew = withoutInferredLemmas();
      if (anew.empty() && todo.empty()) anew = withoutCutPoints();
      if (!anew.empty()) {
        todo = std::move(anew);
        last = round + kMostRounds;
      }
    }
    if (todo.empty()) break;
  }
  if (hurry_ == Hurry::kLastResort) endLastResort();
  if (!cancelled() && allOutputsProved()) judgeLeftOut();
  conclude();
}

void Verification::judgeLeftOut() {
  std::vector<EntryId> todo;
  for (const EntryId e : topological())
    if (leftOut_[e] && todo.size() < kMostLeftOutJudged) todo.push_back(e);
  if (todo.empty()) return;
  const double seconds =
      std::exchange(proofSeconds_, std::min(options_.stageSeconds, kSecondsForLeftOut));
  cutAndProve(todo);
  proofSeconds_ = seconds;
  std::erase_if(todo, [&](EntryId e) { return holds(e); });
  firstFailures_.insert(firstFailures_.end(), todo.begin(), todo.end());
  for (Failure& failure : snapshot(todo)) firstOutcomes_.push_back(std::move(failure));
}

bool Verification::lineageIsRefuted() const {
  return std::any_of(firstOutcomes_.begin(), firstOutcomes_.end(), [&](const Failure& f) {
    const LineageEntry& entry = plan_.lineage[f.entry];
    return entry.role == Role::kCutPoint && !entry.inferred && isRefuted(f);
  });
}

bool Verification::hidesRelations() const {
  return attempt_.lemmas == Lemmas::kInferred &&
         std::any_of(leftOut_.begin(), leftOut_.end(), [](char left) { return left != 0; }) &&
         std::any_of(firstOutcomes_.begin(), firstOutcomes_.end(), isRefuted);
}

bool Verification::onlyGuessesFailed() const {
  return doubtful_.empty() &&
         std::all_of(firstFailures_.begin(), firstFailures_.end(),
                     [&](EntryId e) { return plan_.lineage[e].inferred || restsOnFailure(e); });
}

bool Verification::restsOnFailure(EntryId e) const {
  const auto& used = chain_->assumed(e);
  return std::any_of(used.begin(), used.end(),
                     [&](EntryId f) { return entries_[f].needed && !holds(f); });
}

bool Verification::mayHoldWithout(EntryId e) {
  EntryState& state = entries_[e];
  return !std::exchange(state.retried, state.retried || restsOnFailure(e)) && state.retried;
}

std::vector<EntryId> Verification::withoutInferredLemmas() {
  const auto inferred = [&](EntryId e) { return plan_.lineage[e].inferred; };
  if (std::none_of(topological().begin(), topological().end(),
                   [&](EntryId e) { return inferred(e) && !excluded_[e]; }))
    return {};
  return cutAnewWithout(inferred);
}

std::vector<EntryId> Verification::withoutCutPoints() {
  if (hurry_ == Hurry::kLastResort || planIndex_->operatorInstances() > kMostWithoutCutPoints)
    return {};
  const auto isCutPoint = [&](EntryId e) { return plan_.lineage[e].role == Role::kCutPoint; };
  if (std::none_of(topological().begin(), topological().end(),
                   [&](EntryId e) { return isCutPoint(e) && !leftOut_[e] && holds(e); }))
    return {};
  hurry_ = Hurry::kLastResort;
  gaveUp_ = outOfTime_ = false;
  beforeLastResort_ = {entries_, chain_->snapshot(), excluded_};
  proofSeconds_ = std::min(options_.stageSeconds, kSecondsWithoutCutPoints);
  return cutAnewWithout(isCutPoint);
}

void Verification::endLastResort() {
  gaveUp_ = outOfTime_ = false;  // what was given up was the resort
  hurry_ = Hurry::kNone;
  proofSeconds_ = options_.stageSeconds;
  if (allOutputsProved()) return;
  entries_ = std::move(beforeLastResort_.entries);
  chain_->restore(std::move(beforeLastResort_.claims));
  excluded_ = std::move(beforeLastResort_.excluded);
}

std::vector<EntryId> Verification::cutAnewWithout(const std::function<bool(EntryId)>& leftOut) {
  std::vector<EntryId> todo;
  const auto proved = chain_->proved();
  for (const EntryId e : topological()) {
    excluded_[e] = leftOut_[e] || leftOut(e);
    if (excluded_[e] || proved[e]) continue;
    entries_[e].deepened.clear();
    entries_[e].depth = 0;
    entries_[e].collapse = true;
    todo.push_back(e);
  }
  return todo;
}

bool Verification::refutesDoubtful(std::vector<EntryId>& todo) {
  const std::set<EntryId> doubtful(doubtful_.begin(), doubtful_.end());
  if (doubtful.empty() || !problem_.model.arguments.empty()) return false;
  std::vector<EntryId> others, outputs;
  for (const EntryId e : todo)
    (doubtful.contains(e) && plan_.lineage[e].role == Role::kOutput ? outputs : others)
        .push_back(e);
  hurry_ = Hurry::kBesideDoubtful;
  proofSeconds_ = std::min(options_.stageSeconds, kSecondsBesideDoubtful);
  cutAndProve(others);
  hurry_ = Hurry::kNone;
  proofSeconds_ = options_.stageSeconds;
  if (cancelled() || !report_.defects.empty()) return true;
  firstFailures_ = failures();
  firstOutcomes_ = snapshot(firstFailures_);
  differs_ = endToEndDiffers();
  // What was not decided in that time is tried again with all of it.
  if (std::all_of(classes_.begin(), classes_.end(), [](const ClassState& c) { return c.decided; }))
    todo = std::move(outputs);
  return differs_;
}

bool Verification::mayHoldFurtherUp(EntryId e) const {
  const LineageEntry& entry = plan_.lineage[e];
  const StageOutcome* outcome = outcomeOf(e);
  return entry.role == Role::kCutPoint && entry.inferred && outcome &&
         outcome->verdict() == StageVerdict::kRefuted && entries_[e].depth < kMostDepth &&
         !chain_->assumed(e).empty() && !restsOnFailure(e);
}

bool Verification::deepen(EntryId e) {
  EntryState& state = entries_[e];
  const auto& used = chain_->assumed(e);
  if (used.empty() ||
      (plan_.lineage[e].role == Role::kCutPoint && state.depth > 0 && !mayHoldFurtherUp(e)))
    return false;
  state.deepened.insert(state.deepened.end(), used.begin(), used.end());
  std::sort(state.deepened.begin(), state.deepened.end());
  ++state.depth;
  return true;
}

Verification::CutResult Verification::cutOne(EntryId e) const {
  const EntryState& state = entries_[e];
  CutResult result;
  CutChoice cut;
  cut.excluded = &excluded_;
  cut.deepened = state.deepened;
  cut.collapse = state.collapse;
  cut.budget = &budget_;
  if (merging_) cut.maxNodes = kMostMergedTensors;
  try {
    result.stage = chain_->cut(e, cut);
  } catch (const Unsupported& error) {
    result.failure = error.what();
  } catch (const CyclicWait& cycle) {
    result.failure = cycle.what();
    result.cycle = cycle;
  } catch (...) {  // must not leave a parallel region
    result.error = std::current_exception();
  }
  return result;
}

void Verification::tell(std::size_t done, std::size_t all, const char* phase) {
  if (!options_.progress) return;
  told_ = {done, all, round_ == 0 ? phase : phase + (", round " + std::to_string(round_ + 1))};
  tellAgain();
}

void Verification::tellAgain() const {
  if (options_.progress) options_.progress(told_.done, told_.all, told_.text.c_str());
}

void Verification::cutAll(const std::vector<EntryId>& todo) {
  // Between two looks at what may be spent, where each cut may be large.
  const std::size_t batch = merging_ ? 16 : 128;
  const auto start = Clock::now();
  for (std::size_t from = 0; from < todo.size() && !cancelled(); from += batch) {
    tell(from, todo.size(), "cutting stages");
    const std::size_t count = std::min(batch, todo.size() - from);
    std::vector<CutResult> results(count);
    if (merging_ && cutSize_ > mostCut_) {
      for (CutResult& result : results)
        result.failure = "too many stages would have to be merged with failed ones";
      for (std::size_t i = 0; i < count; ++i) enterClass(todo[from + i], std::move(results[i]));
      continue;
    }
#pragma omp parallel for schedule(dynamic, 4) num_threads(options_.jobs) if (count > 8)
    for (std::size_t i = 0; i < count; ++i) {
      if (!cancelled()) results[i] = cutOne(todo[from + i]);
    }
    for (std::size_t i = 0; i < count; ++i) enterClass(todo[from + i], std::move(results[i]));
    if (cutSize_ > kManyForHurried * report_.statistics.programNodes + kGrowthAllowance)
      giveUpIfHurried();
  }
  report_.statistics.secondsByPhase["cut"] += secondsSince(start);
}

void Verification::enterClass(EntryId e, CutResult result) {
  if (result.error) std::rethrow_exception(result.error);
  EntryState& state = entries_[e];
  StageReport& report = report_.stages[state.stage];
  chain_->withdraw(e);
  state.cutFailure = result.failure;
  // One that was given up had come that far.
  if (merging_ && !result.stage && !result.failure.empty()) cutSize_ += kMostMergedTensors;
  if (result.cycle) reportCycle(*result.cycle);
  if (result.stage) {
    const Stage& stage = result.stage->stage();
    report_.statistics.secondsByPhase["threads/classify"] += result.stage->secondsForForm();
    cutSize_ += stage.nodes.size() + stage.tensors.size();
    if (options_.record) state.forbidden = forbiddenNow(state);
    report.assumptions.assign(stage.usedEntries.begin(), stage.usedEntries.end());
    report.logicalNodes = stage.logicalNodes();
    report.parallelNodes = stage.parallelNodes();
    const auto [id, isNew] = chain_->enter(*result.stage, options_.shareClasses);
    if (isNew) {
      ClassState made;
      made.size = stage.nodes.size() + stage.tensors.size();
      made.representative = result.stage->takeStage();
      made.entry = e;
      classes_.push_back(std::move(made));
    }
    classes_[index(id)].entries.push_back(e);
  }
  report.classId = chain_->classOf(e);
}

std::int32_t Verification::forbiddenNow(const EntryState& state) {
  std::vector<EntryId> set = state.deepened;
  for (std::size_t f = 0; f < excluded_.size(); ++f) {
    if (excluded_[f]) set.push_back(EntryId(f));
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  const auto [it, inserted] =
      forbidden_.emplace(std::move(set), static_cast<std::int32_t>(forbidden_.size()));
  return it->second;
}

void Verification::reportCycle(const CyclicWait& cycle) {
  if (report_.defects.empty())
    report_.defects.push_back(
        dataCycle(*planIndex_, cycle.program, cycle.node, cycle.rank, cycle.microbatch));
}

void Verification::cutAndProve(const std::vector<EntryId>& todo) {
  cutAll(todo);
  runClasses();
  std::vector<EntryId> again;
  for (const EntryId e : todo) {
    const StageOutcome* outcome = outcomeOf(e);
    if (outcome && outcome->needsRefinement && entries_[e].collapse) {
      entries_[e].collapse = false;
      again.push_back(e);
    }
  }
  if (again.empty() || cancelled()) return;
  cutAll(again);
  runClasses();
}

}  // namespace shardproof
