// SPDX-License-Identifier: Apache-2.0
#include "refute/end_to_end.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "ops/definition.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

// The end-to-end evaluation in numbers is made from the plan's inputs while it has at most this
// many operator instances, and from the lemmas before the first failure otherwise.
constexpr std::size_t kMostEndToEndNodes = 150'000;
constexpr std::size_t kMostReached = 24;   // outputs that are cut to find the one that takes least
constexpr double kManyInstances = 20'000;  // of the plan: one output is evaluated before all are

bool violates(const StageOutcome& outcome, const std::vector<EntryId>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](EntryId e) {
    return std::any_of(outcome.differing.begin(), outcome.differing.end(),
                       [&](const DifferingClaim& d) { return d.entry == e; });
  });
}

std::vector<EntryId> entriesOf(const std::vector<DifferingClaim>& differing) {
  std::vector<EntryId> entries;
  for (const DifferingClaim& d : differing)
    if (entries.empty() || entries.back() != d.entry) entries.push_back(d.entry);
  return entries;
}

// Whether an operator reads what another one computed for a certain microbatch.
bool namesMicrobatches(const Plan& plan) {
  return std::any_of(plan.programs.begin(), plan.programs.end(), [](const Program& p) {
    return std::any_of(p.graph.operands.begin(), p.graph.operands.end(),
                       [](const Operand& o) { return o.microbatch.isOne(); });
  });
}

// Whether what it shows counts.
bool counts(const StageOutcome& outcome) {
  return !outcome.shortenedMask || outcome.underCoarseMasks;
}

// Whether both sides were evaluated to the end, with a difference or without.
bool ended(const StageOutcome& outcome) {
  return outcome.verdict() == StageVerdict::kRefuted || outcome.reason == kNoDifferenceFound;
}

class EndToEndCheck {
 public:
  explicit EndToEndCheck(const EndToEndQuestion& question)
      : q_(question), plan_(question.planIndex.problem().plan) {
    for (const EntryId e : q_.topological) {
      if (plan_.lineage[e].role == Role::kOutput && !q_.proved[e]) outputs_.push_back(e);
    }
    cut_.maxNodes = 2 * kMostEndToEndNodes;
    cut_.proved = &q_.proved;
    cut_.budget = q_.budget;
  }

  EndToEndResult run();

 private:
  // Of all outputs, or of one that shows a difference.
  std::optional<StageOutcome> evaluateOutputs();
  std::optional<StageOutcome> evaluateAlone();
  void take(const StageOutcome& outcome);
  // The outputs whose chain of assumptions contains `lemma`, the nearest first.
  std::vector<EntryId> reachedBy(EntryId lemma) const;
  // As evaluate(), with reduced causal masks first; what outputs show so is confirmed with whole
  // ones: on the one of these outputs that takes the least to compute, and only where that one does
  // not show it, on all. Where this cannot be afforded the outcome says that the mask is shortened.
  std::optional<StageOutcome> evaluateAndConfirm(const std::vector<EntryId>& claimed);
  // The output among the entries that fewest operators lead to, or -1.
  EntryId leastOutput(const std::vector<EntryId>& entries) const;
  // Those with the fewest elements.
  std::vector<EntryId> smallest(std::vector<EntryId> outputs) const;
  // In numbers, as one stage; nothing when it is too large.
  std::optional<StageOutcome> evaluate(const std::vector<EntryId>& claimed,
                                       Masks masks = Masks::kReduced);
  StageOutcome evaluateStage(const Stage& stage, Masks masks);
  // Coarse causal masks are causal between representatives, which are intervals of positions in
  // their order, and what a plan tells apart lies in different ones. Of tables of known numbers no
  // such thing is true: with them, only what a stage has shown to be false by itself is followed to
  // an output so.
  bool coarseMasksMayDecide() const;

  const EndToEndQuestion& q_;
  const Plan& plan_;
  std::vector<EntryId> outputs_;  // that are not proved
  CutOptions cut_;
  bool late_ = false;      // an evaluation was not done in its time: larger ones are not begun
  bool decisive_ = false;  // what was evaluated settles all outputs
  // By inputs of one kind: whether a stage was evaluated, and one with axes taken together.
  bool evaluated_ = false, collapsed_ = false;
  EndToEndResult result_;
};

EndToEndResult EndToEndCheck::run() {
  // With inputs that are the same along interchangeable axes there is far less to evaluate. Most
  // mistakes show with such inputs; what does not is looked for with others.
  struct Inputs {
    std::int32_t apart;
    bool sameInMicrobatches;
  };
  std::vector<Inputs> tried{{CollapsedAxis::kNoneApart, false}, {CollapsedAxis::kApart, false}};
  if (namesMicrobatches(plan_)) tried.insert(tried.begin(), {CollapsedAxis::kNoneApart, true});
  for (const Inputs& inputs : tried) {
    cut_.apart = inputs.apart;
    cut_.sameInMicrobatches = inputs.sameInMicrobatches;
    evaluated_ = collapsed_ = false;
    auto outcome = evaluateOutputs();
    // Where no axis was taken together, inputs differed along all of them already.
    if (evaluated_ && !collapsed_ && !inputs.sameInMicrobatches) cut_.apart = CollapsedAxis::kApart;
    if (outcome) take(*outcome);
    if (result_.differs || late_ || cut_.apart == CollapsedAxis::kApart) break;
  }
  return result_;
}

std::optional<StageOutcome> EndToEndCheck::evaluateOutputs() {
  // The failed lemmas are looked at too: which of them are really wrong, and not just unprovable
  // from what their stage knows?
  std::vector<EntryId> all = outputs_;
  for (const EntryId e : q_.failed) {
    if (plan_.lineage[e].role != Role::kOutput) all.push_back(e);
  }
  // In a large plan first the output that the first failed lemma reaches soonest; that is often
  // enough and always less.
  EntryId first = q_.firstRefuted;
  if (first < 0 && !q_.failed.empty()) first = q_.failed.front();
  std::vector<EntryId> reached;
  if (first && q_.planIndex.operatorInstances() > kManyInstances) reached = reachedBy(first);
  EntryId nearest = reached.empty() ? EntryId() : reached.front();
  std::optional<StageOutcome> outcome;
  const auto evaluateBeside = [&](EntryId output) {
    return evaluateAndConfirm(output == first ? std::vector{first} : std::vector{output, first});
  };
  if (nearest >= 0) {
    outcome = evaluateBeside(nearest);
    // Too large, as a gradient in pieces on hundreds of ranks is. A number, such as the loss, is
    // not.
    if (!outcome) {
      const EntryId least = leastOutput(smallest(reached));
      if (least >= 0 && least != nearest) outcome = evaluateBeside(least);
      if (outcome) nearest = least;
    }
  }
  decisive_ = outcome && violates(*outcome, {nearest}) && counts(*outcome);
  if (decisive_) return outcome;
  // What it shows with another mask than the causal one only, another output may show with the
  // whole one: the one that takes the least to compute of all that the lemma reaches, or of the
  // smallest.
  if (outcome && (late_ || violates(*outcome, {nearest}))) {
    reached.resize(std::min(reached.size(), kMostReached));
    EntryId before = nearest;
    for (const auto& outputs : {reached, smallest(outputs_)}) {
      const EntryId least = leastOutput(outputs);
      if (least < 0 || least == before || least == nearest) continue;
      auto alone = evaluate({least}, Masks::kWhole);
      decisive_ = alone && violates(*alone, {least}) && !alone->shortenedMask;
      if (decisive_) return alone;
      before = least;
    }
  }
  if (late_) return outcome;  // all of them take longer
  auto whole = evaluateAndConfirm(all);
  decisive_ = whole.has_value();
  if (!whole || whole->reason == kNoDifferenceFound) {
    if (auto alone = evaluateAlone()) return alone;
  }
  return whole ? std::move(whole) : std::move(outcome);
}

// A tie anywhere makes an evaluation say nothing (an optimiser's, or that of a maximum): outputs
// that it does not lead to are asked by themselves, those first that the least is computed for.
std::optional<StageOutcome> EndToEndCheck::evaluateAlone() {
  constexpr std::size_t kMostAlone = 6;
  constexpr std::size_t kMostOutputs = 100;  // each is cut to find the least
  if (outputs_.size() < 2 || outputs_.size() > kMostOutputs) return std::nullopt;
  std::vector<EntryId> left = outputs_;
  for (std::size_t k = 0; k < kMostAlone && !left.empty(); ++k) {
    const EntryId next = leastOutput(left);
    if (next < 0) break;
    std::erase(left, next);
    auto outcome = evaluateAndConfirm({next});
    if (outcome && violates(*outcome, {next}) && counts(*outcome)) return outcome;
  }
  return std::nullopt;
}

void EndToEndCheck::take(const StageOutcome& outcome) {
  if (!counts(outcome)) {  // a difference that was seen only with another mask than the causal one
    for (const EntryId e : outputs_) {
      if (result_.suspected < 0 && violates(outcome, {e})) result_.suspected = e;
    }
    return;
  }
  for (const EntryId e : outputs_) {
    if (result_.shows < 0 && violates(outcome, {e})) result_.shows = e;
  }
  result_.differs = result_.shows.valid();
  // That inputs of one kind show no difference says nothing of others.
  if (!result_.differs && cut_.apart < CollapsedAxis::kApart) return;
  for (const DifferingClaim& d : outcome.differing) result_.violated.emplace(d.entry, d);
  result_.evaluated = decisive_ && ended(outcome);
  result_.underCoarseMasks = result_.differs && outcome.shortenedMask;
}

std::vector<EntryId> EndToEndCheck::reachedBy(EntryId lemma) const {
  std::vector<char> reached(plan_.lineage.size(), 0);
  std::vector<EntryId> outputs;
  for (const EntryId e : q_.topological) {
    const auto& used = q_.usedBy(e);
    reached[e] = e == lemma ||
                 std::any_of(used.begin(), used.end(), [&](EntryId f) { return reached[f] != 0; });
    if (reached[e] && plan_.lineage[e].role == Role::kOutput && !q_.proved[e]) outputs.push_back(e);
  }
  return outputs;
}

std::optional<StageOutcome> EndToEndCheck::evaluateAndConfirm(const std::vector<EntryId>& claimed) {
  auto outcome = evaluate(claimed);
  const EntryId least =
      outcome && outcome->shortenedMask ? leastOutput(entriesOf(outcome->differing)) : EntryId();
  if (least < 0) return outcome;
  const auto alone = evaluate({least}, Masks::kWhole);
  if (!alone || !ended(*alone)) return outcome;
  const bool differs = violates(*alone, {least});
  if (alone->shortenedMask) {
    outcome->underCoarseMasks = differs && alone->underCoarseMasks && coarseMasksMayDecide();
    if (outcome->underCoarseMasks) result_.shows = least;
    return outcome;
  }
  if (differs) {
    outcome->shortenedMask = false;
    result_.shows = least;
    return outcome;
  }
  if (claimed.size() == 1) return alone;
  auto exact = evaluate(claimed, Masks::kWhole);
  return exact && ended(*exact) ? exact : outcome;
}

bool EndToEndCheck::coarseMasksMayDecide() const {
  const auto& tensors = q_.planIndex.problem().model.graph.tensors;
  return q_.firstRefuted.valid() ||
         std::none_of(tensors.begin(), tensors.end(),
                      [](const Tensor& t) { return t.known != nullptr; });
}

EntryId EndToEndCheck::leastOutput(const std::vector<EntryId>& entries) const {
  EntryId least;
  CutOptions cut = cut_;
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

std::vector<EntryId> EndToEndCheck::smallest(std::vector<EntryId> outputs) const {
  const auto& tensors = q_.planIndex.problem().model.graph.tensors;
  const auto size = [&](EntryId e) {
    return ops::elements(tensors[plan_.lineage[e].tensor].shape);
  };
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const EntryId e : outputs) least = std::min(least, size(e));
  std::erase_if(outputs, [&](EntryId e) { return size(e) > least; });
  outputs.resize(std::min(outputs.size(), kMostReached));
  return outputs;
}

std::optional<StageOutcome> EndToEndCheck::evaluate(const std::vector<EntryId>& claimed,
                                                    Masks masks) {
  CutOptions cut = cut_;
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
    StageOutcome outcome = evaluateStage(*stage, masks);
    if (!outcome.needsRefinement || !cut.collapse) {
      evaluated_ = true;
      collapsed_ = collapsed_ || cut.collapse;
      return outcome;
    }
    cut.collapse = false;
  }
}

StageOutcome EndToEndCheck::evaluateStage(const Stage& stage, Masks masks) {
  StageOutcome outcome;
  const auto statistics = runPool(
      {0}, [&](std::size_t) { return serialize(shardproof::evaluateEndToEnd(stage, masks)); },
      [&](std::size_t, const TaskResult& result) {
        if (result.outcome == TaskOutcome::kDone) outcome = deserialize(result.payload);
        else outcome.reason = result.reason;
        late_ = late_ || (masks == Masks::kReduced && result.outcome == TaskOutcome::kTimedOut);
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
