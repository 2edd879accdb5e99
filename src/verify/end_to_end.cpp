#include "verify/end_to_end.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "shardproof/error.h"

namespace shardproof {

namespace {

// The end-to-end evaluation in numbers is made from the plan's inputs while it has at most this
// many operator instances, and from the lemmas before the first failure otherwise.
constexpr std::size_t kMostEndToEndNodes = 150'000;
constexpr double kManyInstances = 20'000;  // of the plan: one output is evaluated before all are

bool violates(const StageOutcome& outcome, const std::vector<EntryId>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](EntryId e) {
    return std::find(outcome.differingEntries.begin(), outcome.differingEntries.end(), e) !=
           outcome.differingEntries.end();
  });
}

// Whether both sides were evaluated to the end, with a difference or without.
bool ended(const StageOutcome& outcome) {
  return outcome.verdict == StageVerdict::kRefuted || outcome.reason == kNoDifferenceFound;
}

class EndToEndCheck {
 public:
  explicit EndToEndCheck(const EndToEndQuestion& question)
      : q_(question), plan_(question.planIndex.problem().plan) {}

  EndToEndResult run();

 private:
  // The first output whose chain of assumptions contains `lemma`, or -1.
  EntryId nearestOutput(EntryId lemma) const;
  // As evaluate(), with reduced causal masks first; what outputs show so is confirmed with whole
  // ones: on the one of these outputs that takes the least to compute, and only where that one does
  // not show it, on all. Where this cannot be afforded the outcome says that the mask is shortened.
  std::optional<StageOutcome> evaluateAndConfirm(const std::vector<EntryId>& claimed,
                                                 const CutOptions& cut);
  // The output among the entries that fewest operators lead to, or -1.
  EntryId leastOutput(const std::vector<EntryId>& entries, CutOptions cut) const;
  // In numbers, as one stage; nothing when it is too large.
  std::optional<StageOutcome> evaluate(const std::vector<EntryId>& claimed, CutOptions cut,
                                       bool wholeMasks = false);
  StageOutcome evaluateStage(const Stage& stage, bool wholeMasks);

  const EndToEndQuestion& q_;
  const Plan& plan_;
  EndToEndResult result_;
};

EndToEndResult EndToEndCheck::run() {
  std::vector<EntryId> outputs;
  EntryId first = q_.firstRefuted;
  for (const EntryId e : q_.topological) {
    if (plan_.lineage[e].role == Role::kOutput && !q_.proved[e]) outputs.push_back(e);
  }
  // The failed lemmas are looked at too: which of them are really wrong, and not just unprovable
  // from what their stage knows?
  std::vector<EntryId> all = outputs;
  for (const EntryId e : q_.failed) {
    if (plan_.lineage[e].role != Role::kOutput) all.push_back(e);
  }
  CutOptions cut;
  cut.maxNodes = 2 * kMostEndToEndNodes;
  cut.proved = &q_.proved;
  // In a large plan first the output that the first failed lemma reaches soonest; that is often
  // enough and always less.
  if (first < 0 && !q_.failed.empty()) first = q_.failed.front();
  const EntryId nearest =
      first && q_.planIndex.operatorInstances() > kManyInstances ? nearestOutput(first) : EntryId();
  std::optional<StageOutcome> outcome;
  if (nearest >= 0)
    outcome = evaluateAndConfirm(
        nearest == first ? std::vector{first} : std::vector{nearest, first}, cut);
  bool decisive = outcome && violates(*outcome, {nearest}) && !outcome->shortenedMask;
  if (!decisive) {
    auto whole = evaluateAndConfirm(all, cut);
    decisive = whole.has_value();
    if (whole) outcome = std::move(whole);
  }
  if (!outcome) return result_;
  if (outcome->shortenedMask) {  // a difference that was seen only with another mask than the
                                 // causal one is none
    for (const EntryId e : outputs) {
      if (result_.suspected < 0 && violates(*outcome, {e})) result_.suspected = e;
    }
    return result_;
  }
  result_.violated.insert(outcome->differingEntries.begin(), outcome->differingEntries.end());
  result_.evaluated = decisive && ended(*outcome);
  for (const EntryId e : outputs) {
    if (result_.shows < 0 && result_.violated.contains(e)) result_.shows = e;
  }
  result_.differs = result_.shows.valid();
  return result_;
}

EntryId EndToEndCheck::nearestOutput(EntryId lemma) const {
  std::vector<char> reached(plan_.lineage.size(), 0);
  for (const EntryId e : q_.topological) {
    const auto& used = q_.usedBy(e);
    reached[e] = e == lemma ||
                 std::any_of(used.begin(), used.end(), [&](EntryId f) { return reached[f] != 0; });
    if (reached[e] && plan_.lineage[e].role == Role::kOutput) return e;
  }
  return EntryId();
}

std::optional<StageOutcome> EndToEndCheck::evaluateAndConfirm(const std::vector<EntryId>& claimed,
                                                              const CutOptions& cut) {
  auto outcome = evaluate(claimed, cut);
  const EntryId least =
      outcome && outcome->shortenedMask ? leastOutput(outcome->differingEntries, cut) : EntryId();
  if (least < 0) return outcome;
  const auto alone = evaluate({least}, cut, true);
  if (!alone || !ended(*alone) || alone->shortenedMask) return outcome;
  if (violates(*alone, {least})) {
    outcome->shortenedMask = false;
    result_.shows = least;
    return outcome;
  }
  if (claimed.size() == 1) return alone;
  auto exact = evaluate(claimed, cut, true);
  return exact && ended(*exact) ? exact : outcome;
}

EntryId EndToEndCheck::leastOutput(const std::vector<EntryId>& entries, CutOptions cut) const {
  EntryId least;
  for (const EntryId e : entries) {
    if (plan_.lineage[e].role != Role::kOutput) continue;
    try {
      const std::size_t nodes = cutStages(q_.planIndex, {e}, cut).nodes.size();
      if (least >= 0 && nodes >= cut.maxNodes) continue;
      least = e;
      cut.maxNodes = nodes;  // one that needs more need not be cut to its end
    } catch (const Unsupported&) {
    } catch (const CyclicWait&) {
    }
  }
  return least;
}

std::optional<StageOutcome> EndToEndCheck::evaluate(const std::vector<EntryId>& claimed,
                                                    CutOptions cut, bool wholeMasks) {
  for (;;) {
    std::unique_ptr<Stage> stage;
    try {
      stage = std::make_unique<Stage>(cutStages(q_.planIndex, claimed, cut));
    } catch (const Unsupported&) {
      return std::nullopt;
    } catch (const CyclicWait& cycle) {
      result_.cycles.push_back(cycle);
      return std::nullopt;
    }
    if (stage->nodes.size() > kMostEndToEndNodes) return std::nullopt;
    StageOutcome outcome = evaluateStage(*stage, wholeMasks);
    if (!outcome.needsRefinement || !cut.collapse) return outcome;
    cut.collapse = false;
  }
}

StageOutcome EndToEndCheck::evaluateStage(const Stage& stage, bool wholeMasks) {
  StageOutcome outcome;
  CheckOptions check = q_.check;
  check.endToEnd = true;
  check.wholeMasks = wholeMasks;
  const auto statistics = runPool(
      {0}, [&](std::size_t) { return serialize(checkStage(stage, check)); },
      [&](std::size_t, const TaskResult& result) {
        if (result.outcome == TaskOutcome::kDone) outcome = deserialize(result.payload);
        else outcome.reason = result.reason;
      },
      q_.pool);
  result_.peakWorkerBytes = std::max(result_.peakWorkerBytes, statistics.peakWorkerBytes);
  return outcome;
}

}  // namespace

EndToEndResult checkEndToEnd(const EndToEndQuestion& question) {
  return EndToEndCheck(question).run();
}

}  // namespace shardproof
