// SPDX-License-Identifier: Apache-2.0
// From proofs of stages to the verdict. An entry holds when its stage is proved and all entries
// that the stage assumes hold, down to input lineage; the plan is equivalent when every output of
// the model has entries that hold, and all entries of role output do. Anything else is told with
// its cause: what the end-to-end check found, else what is refuted where it stands.
#include <algorithm>
#include <set>

#include "describe/describe.h"
#include "report/ledger.h"
#include "verify/verification.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostDefectsShown = 20;
constexpr char kUnderCoarseMasks[] =
    " (evaluated with coarser causal masks, two of them: with the whole one it is too much)";

}  // namespace

std::vector<Verification::Failure> Verification::snapshot(
    const std::vector<EntryId>& failed) const {
  std::vector<Failure> failures;
  for (const EntryId e : failed) {
    Failure f{e, {}, nullptr};
    if (const StageOutcome* outcome = outcomeOf(e)) f.outcome = *outcome;
    else f.outcome.reason = "it was not tried, as the outputs differ";
    if (failures.size() < kMostDefectsShown) {
      try {
        CutOptions cut;
        cut.excluded = &excluded_;
        cut.collapse = entries_[e].collapse;
        cut.deepened = entries_[e].deepened;
        f.stage = std::make_unique<Stage>(cutStage(*planIndex_, e, cut));
        takeOwnNames(f, cut);
      } catch (const Unsupported&) {
      } catch (const CyclicWait&) {
      }
    }
    failures.push_back(std::move(f));
  }
  return failures;
}

void Verification::takeOwnNames(Failure& f, CutOptions cut) const {
  const ClassState* cls = classOf(f.entry);
  if (!cls || !f.outcome.counterexample) return;
  const std::int32_t decided = cls->entry;
  if (decided == f.entry) return;
  cut.collapse = entries_[decided].collapse;
  cut.deepened = entries_[decided].deepened;
  const Stage other = cutStage(*planIndex_, EntryId(decided), cut);
  if (canonicalForm(other) == canonicalForm(*f.stage))
    f.outcome.counterexample = renamed(*f.outcome.counterexample, other, *f.stage);
  else f.outcome.counterexample.reset();  // of a stage that is cut otherwise by now
}

void Verification::conclude() {
  const auto proved = chain_->proved();
  report_.outputsProved = chain_->outputsProved(proved);
  const bool all = chain_->allProved(proved);
  for (const EntryId e : topological()) {
    EntryState& state = entries_[e];
    StageReport& report = report_.stages[state.stage];
    const ClassState* cls = classOf(e);
    if (!cls) {
      report.reason = !state.cutFailure.empty() ? state.cutFailure
                      : all && leftOut_[e]      ? "no proof needs it, so it was not looked at"
                                                : "not decided before the run ended";
      continue;
    }
    const StageOutcome* outcome = &cls->outcome;
    report.verdict = outcome->verdict();
    report.method = outcome->method();
    report.reason = outcome->reason;
    report.reducedShapes = outcome->reducedShapes;
    if (cls->entry == e) {
      for (const auto& [phase, seconds] : outcome->seconds) report.seconds += seconds;
    }
    if (outcome->verdict() == StageVerdict::kProved && !proved[e]) {
      report.verdict = StageVerdict::kUndecided;
      report.reason = "its proof relies on lineage that is not proved";
    }
  }
  // A lemma that failed where it stands is wrong even when nothing relies on it any more.
  for (const Failure& f : firstOutcomes_) {
    StageReport& report = report_.stages[index(entries_[f.entry].stage)];
    const bool wrong = endToEnd_.evaluated ? endToEnd_.violated.contains(f.entry)
                                           : f.outcome.verdict() == StageVerdict::kRefuted;
    if (wrong && plan_.lineage[f.entry].role == Role::kCutPoint && all) {
      report.verdict = StageVerdict::kWrongLineage;
      report.method = f.outcome.method();
      report.reason = f.outcome.counterexample
                          ? "the model has " + numberText(f.outcome.counterexample->logical) +
                                " at " + f.outcome.counterexample->element + ", the plan " +
                                numberText(f.outcome.counterexample->parallel)
                          : f.outcome.reason;
    }
  }
  report_.statistics.stages = report_.stages.size();
  report_.statistics.classes = classes_.size();
  report_.interrupted = interrupted();
  if (!report_.defects.empty()) {  // a cycle: the plan cannot run
    report_.verdict = Verdict::kNotEquivalent;
    return;
  }
  if (const auto verdict = chain_->verdict(options_)) {
    report_.verdict = *verdict;
    if (verdict == Verdict::kConditional) report_.reason = conditionNames(report_, {});
    report_.interrupted = false;  // it came too late to change anything
    if (options_.record && options_.shareClasses) record(proved, *options_.record);
    return;
  }
  const bool differs = differs_ || refutedOutput();
  if (differs && argumentsProved()) {
    report_.verdict = Verdict::kNotEquivalent;
    listDefects();
    return;
  }
  report_.verdict = Verdict::kUndecided;
  report_.reason =
      report_.interrupted ? "the run was interrupted"
      : exhausted()       ? exhaustedReason()
      : differs ? "arguments of a function of which nothing is known are not proved to be "
                  "the model's, so its results may be others"
      : report_.outputs == 0 ? "the model names no outputs, so there is nothing to prove"
      : report_.outputsProved == report_.outputs
          ? "lineage that places a dropout's mask, or an output's, is not proved"
          : std::to_string(report_.outputs - report_.outputsProved) + " of " +
                std::to_string(report_.outputs) + " outputs could not be decided";
  if (endToEnd_.suspected >= 0) {
    report_.reason += "; output '" + tensorName(plan_.lineage[endToEnd_.suspected].tensor) +
                      "' differs when causal masks (or tables of known numbers) are shortened, "
                      "which is too large to be confirmed at full length";
  }
  listSuspects();
}

std::string Verification::exhaustedReason() const {
  if (interrupted()) return {};
  if (budget_.timedOut()) return kTimeIsOver;
  if (ownMemory_.exceeded())
    return "the stages of the plan need more than " + totalMemoryText(totalMemoryLimit());
  return {};
}

bool Verification::refutedOutput() const {
  if (endToEnd_.evaluated) return false;
  return std::any_of(topological().begin(), topological().end(), [&](EntryId e) {
    const ClassState* cls = classOf(e);
    if (!cls) return false;
    // Stages of one class may start from inputs that stand for different numbers.
    const bool itself = !knownInputs_ || cls->entry == e;
    return plan_.lineage[e].role == Role::kOutput && itself &&
           cls->outcome.verdict() == StageVerdict::kRefuted && chain_->assumed(e).empty();
  });
}

void Verification::takeWhatIsRefutedNow(std::size_t most) {
  std::vector<EntryId> now;
  for (const EntryId e : topological()) {
    const StageOutcome* outcome = outcomeOf(e);
    if (outcome && outcome->verdict() == StageVerdict::kRefuted && now.size() < most)
      now.push_back(e);
  }
  firstOutcomes_ = snapshot(now);
}

// A guess that is wrong is no suspect: nobody has claimed it.
void Verification::listSuspects() {
  if (std::none_of(firstOutcomes_.begin(), firstOutcomes_.end(), isRefuted))
    takeWhatIsRefutedNow(kMostDefectsShown);
  std::size_t taken = 0;
  for (const Failure& f : firstOutcomes_) {
    if (!isRefuted(f) || plan_.lineage[f.entry].isGuess() || taken++ >= kMostDefectsShown) continue;
    std::vector<Failure> now;  // the first round's stages are kept for its first failures only
    if (!f.stage) now = snapshot({f.entry});
    const Failure& shown = f.stage ? f : now.front();
    if (shown.stage && isRefuted(shown))
      report_.suspects.push_back(describeFailure(*planIndex_, *shown.stage, shown.outcome));
  }
}

// Of an entry that was not tried by itself: the claim of it that the evaluation found to differ.
Defect Verification::describe(const Failure& f) const {
  StageOutcome outcome = f.outcome;
  const auto known = endToEnd_.violated.find(f.entry);
  if (outcome.claim < 0 && known != endToEnd_.violated.end()) {
    const auto& claims = f.stage->claims;
    const auto same = std::find_if(claims.begin(), claims.end(), [&](const Equation& claim) {
      return claimOf(*f.stage, claim) == known->second;
    });
    if (same != claims.end()) outcome.claim = static_cast<std::int32_t>(same - claims.begin());
  }
  return describeFailure(*planIndex_, *f.stage, outcome);
}

void Verification::listDefects() {
  const auto list = [&](auto&& wanted) {
    for (const Failure& f : firstOutcomes_) {
      if (f.stage && wanted(f) && report_.defects.size() < kMostDefectsShown)
        report_.defects.push_back(describe(f));
    }
  };
  list([&](const Failure& f) {
    return isRefuted(f) && (!endToEnd_.evaluated || endToEnd_.violated.contains(f.entry));
  });
  const auto guessed = [&](EntryId e) { return plan_.lineage[e].isGuess(); };
  // Guesses that are wrong are no evidence: an output is.
  if (endToEnd_.shows >= 0 && !report_.defects.empty() &&
      std::all_of(report_.defects.begin(), report_.defects.end(),
                  [&](const Defect& d) { return guessed(EntryId(d.entry)); })) {
    const std::vector<Failure> shown = snapshot({EntryId(endToEnd_.shows)});
    if (shown.front().stage) report_.defects.push_back(describe(shown.front()));
  }
  if (report_.defects.empty()) list(isRefuted);
  if (report_.defects.empty())
    list([&](const Failure& f) { return endToEnd_.violated.contains(f.entry); });
  if (report_.defects.empty()) {
    takeWhatIsRefutedNow(3);
    list(isRefuted);
  }
  if (report_.defects.empty() && endToEnd_.shows >= 0) {
    const std::string tensor = tensorName(plan_.lineage[endToEnd_.shows].tensor);
    Defect found;
    found.tensor = tensor;
    found.message = "output '" + tensor +
                    "' of the plan is not what the model computes, evaluated from the inputs" +
                    (endToEnd_.underCoarseMasks ? kUnderCoarseMasks : "");
    report_.defects.push_back(std::move(found));
    return;
  }
  if (differs_ && !report_.defects.empty() && endToEnd_.shows >= 0) {
    const auto given = std::find_if(
        report_.defects.begin(), report_.defects.end(),
        [&](const Defect& d) { return d.entry < 0 || !plan_.lineage[EntryId(d.entry)].isGuess(); });
    Defect& first = given == report_.defects.end() ? report_.defects.front() : *given;
    first.message += "; it shows in output '" + tensorName(plan_.lineage[endToEnd_.shows].tensor) +
                     "'" + (endToEnd_.underCoarseMasks ? kUnderCoarseMasks : "");
  }
}

void Verification::record(const std::vector<char>& proved, ProofRecord& record) const {
  record = {};
  record.entries.resize(entries_.size());
  std::vector<std::int32_t> number(classes_.size(), -1), numberOfSet(forbidden_.size(), -1);
  numberOfSet[0] = 0;
  std::vector<const std::vector<EntryId>*> sets(forbidden_.size());
  for (const auto& [set, n] : forbidden_) sets[n] = &set;
  for (const EntryId e : topological()) {
    const ClassState* cls = classOf(e);
    if (!proved[e] || !cls) continue;
    const EntryState& state = entries_[e];
    const std::int32_t classId = chain_->classOf(e);
    std::int32_t& id = number[classId];
    if (id < 0) {
      id = static_cast<std::int32_t>(record.classes.size());
      record.classes.push_back({chain_->form(classId), cls->outcome.method()});
    }
    std::int32_t& set = numberOfSet[state.forbidden];
    if (set < 0) {
      set = static_cast<std::int32_t>(record.forbidden.size());
      record.forbidden.push_back(*sets[state.forbidden]);
    }
    record.entries[e] = {true,          id, chain_->assumed(e), set, planIndex_->entryKey(e),
                         state.collapse};
  }
}

}  // namespace shardproof
