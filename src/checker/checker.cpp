// SPDX-License-Identifier: Apache-2.0
#include "checker/checker.h"

#include <chrono>
#include <cmath>
#include <random>
#include <set>
#include <unordered_set>
#include "smt/solver.h"
#include "terms/domain.h"

#include "checker/stage_checker.h"

namespace shardproof {

namespace {

constexpr std::int64_t kManyElements =
    100'000;  // a stage whose proof is work enough to look at numbers first
constexpr std::size_t kImpossibleBudget =
    500;  // what cancels to nothing does so in few steps, or it is left to numbers

}  // namespace

StageOutcome StageChecker::run() {
  try {
    decide();
  } catch (const Unsupported& error) {
    outcome_.verdict = StageVerdict::kUndecided;
    outcome_.method = Method::kNone;
    outcome_.reason = error.what();
  }
  return std::move(outcome_);
}

void StageChecker::decide() {
  if (options_.endToEnd) {
    evaluateEndToEnd();
    return;
  }
  try {
    reduce(ReductionOptions{});
    if (reduced_.largestIteration > kMostIteration)
      throw Unsupported(
          "an operator of the reduced stage runs through too many combinations of indices");
  } catch (const Unsupported&) {
    // Too large for a proof; in numbers a difference may still be found.
    if (options_.checker == Checker::kZ3 || !refuteInNumbers()) throw;
    return;
  }
  reducedForProof_ = true;
  describeShapes();
  if (options_.checker == Checker::kZ3) {
    decideBySolver();
    return;
  }
  if (totalElements() > kManyElements && differsAtFirstSight() && refuteInNumbers()) return;
  TermAlgebra algebra(TermAlgebra::Mode::kNormalized, mostTerms(options_.memoryMegabytes));
  Terms terms(stage_, reduced_, algebra);
  execute(terms, algebra);
  const auto unequal = differing(terms);
  undefined_ = undefinedInPlan(terms, algebra);
  if (unequal.empty() && undefined_.empty()) {
    // Flattened sums and products are compared summand by summand, and a summand involves at most
    // as many positions of a piece as the reduction kept apart (shape_reduction/reduction.h), so
    // the identity holds at full size.
    outcome_.verdict = StageVerdict::kProved;
    outcome_.method = Method::kNormalForm;
    return;
  }
  if ((!undefined_.empty() || fingerprintsDiffer()) && refuteInNumbers()) return;
  if (undefined_.empty() && proveExpanded(algebra, unequal)) return;
  if (proveByFractions()) return;
  if (!undefined_.empty()) throw Unsupported(undefined_);
  // A stage that only the solver may decide is worth the positions that its verdict needs.
  decideBySolver();
}

std::string StageChecker::undefinedInPlan(const Terms& terms, TermAlgebra& algebra) {
  Stopwatch watch(outcome_.seconds["check"]);
  std::set<std::pair<ConditionSet, ConditionSet>> seen;
  std::set<Condition> looked;
  bool partial = false;
  std::vector<std::pair<Term, Term>> expanded;
  for (const auto& pair : terms.pairs()) {
    if ((pair.logical.condition == 0 && pair.parallel.condition == 0) ||
        !seen.emplace(pair.logical.condition, pair.parallel.condition).second)
      continue;
    for (const Condition& c : algebra.conditions().members(pair.logical.condition))
      partial = partial || c.kind != Condition::Kind::kDefined;
    const std::string element = elementName(stage_.claims[pair.claim].logical, pair.logicalIndex);
    if (const auto never = impossible(algebra, pair.logical.condition, kImpossibleBudget, looked)) {
      throw Unsupported("the model has no value at " + element + " for any input: it " +
                        describe(*never, terms, algebra));
    }
    if (const auto missing = uncovered(algebra, pair.logical.condition, pair.parallel.condition,
                                       kDomainBudget, expanded)) {
      return "at " + element + " the plan " + describe(*missing, terms, algebra) +
             ", the model does not: where that is not defined the plan has no value and the "
             "model has";
    }
  }
  if (morePositionsNeeded(expanded, algebra))
    return "what the plan divides by or takes roots of is what it is in the model only after "
           "multiplying out, of more factors than positions are kept apart";
  if (partial) expectSomeValue(terms);
  return {};
}

bool StageChecker::morePositionsNeeded(const std::vector<std::pair<Term, Term>>& expanded,
                                       TermAlgebra& algebra) const {
  try {
    return extraSummandsFor(expanded, algebra, stage_, reduced_) > reductionOptions_.extraSummands;
  } catch (const Unsupported&) {  // it is not known how many
    return true;
  }
}

std::string StageChecker::describe(const Condition& c, const Terms& terms,
                                   const TermAlgebra& algebra) const {
  if (c.kind == Condition::Kind::kDefined) {
    const auto [tensor, index] = terms.definedElement(c.subject);
    return "uses " + elementName(tensor, index);
  }
  std::vector<std::string> names;
  for (const FreeElement& e : free_) names.push_back(elementName(e.tensor, e.index));
  return (c.kind == Condition::Kind::kNonZero ? "divides by (or takes the logarithm of) "
                                              : "takes a root (or the logarithm) of ") +
         algebra.toString(Term{c.subject}, names, 120);
}

void StageChecker::expectSomeValue(const Terms& terms) {
  constexpr int kMostDraws = 64;
  std::set<std::pair<std::size_t, std::int64_t>> missing;
  for (const auto& pair : terms.pairs()) {
    if (pair.logical.condition != 0) missing.emplace(pair.claim, pair.logicalIndex);
  }
  for (int k = 0; k < kMostDraws && !missing.empty(); ++k) {
    std::mt19937_64 random(0xD1B54A32D192ED03ULL + static_cast<std::uint64_t>(k));
    DoubleAlgebra algebra;
    Doubles interpreter(stage_, reduced_, algebra);
    interpreter.run([&](StageTensorId tensor, std::int64_t) {
      return isInteger(tensor) ? static_cast<double>(drawIndex(random, tensor, k))
                               : drawReal(random, k, true);
    });
    for (const auto& pair : interpreter.pairs()) {
      if (!std::isnan(pair.logical)) missing.erase({pair.claim, pair.logicalIndex});
    }
  }
  if (missing.empty()) return;
  const auto& [claim, index] = *missing.begin();
  throw Unsupported("no input was found at which the model has a value at " +
                    elementName(stage_.claims[claim].logical, index));
}

void StageChecker::reduce(const ReductionOptions& options) {
  Stopwatch watch(outcome_.seconds["reduce"]);
  reduced_ = reduceStage(stage_, options);
  reductionOptions_ = options;
}

void StageChecker::execute(Terms& terms, TermAlgebra& algebra) {
  Stopwatch watch(outcome_.seconds["execute"]);
  free_.clear();
  terms.run([&](StageTensorId tensor, std::int64_t index) {
    free_.push_back({tensor, index});
    return algebra.variable(isInteger(tensor), stage_.tensors[tensor].facts);
  });
  dropped_ = terms.droppedAssumption();
}

std::vector<std::pair<Term, Term>> StageChecker::differing(const Terms& terms) {
  std::vector<std::pair<Term, Term>> unequal;
  std::unordered_set<std::uint64_t> seen;
  for (const auto& pair : terms.pairs()) {
    if (pair.logical == pair.parallel) continue;
    if (seen.insert((std::uint64_t{pair.logical.id} << 32) | pair.parallel.id).second)
      unequal.emplace_back(pair.logical, pair.parallel);
  }
  return unequal;
}

std::string StageChecker::elementName(StageTensorId t, std::int64_t index) const {
  return shardproof::elementName(stage_, reduced_, t, index);
}

void StageChecker::describeShapes() {
  outcome_.reducedShapes.clear();
  for (auto& [t, name] : shownTensors(stage_)) {
    ReducedShape shape{std::move(name), stage_.tensors[t].info.shape, {}};
    for (const ops::ReducedDim* d : reduced_.dims[t]) shape.reduced.push_back(d->size());
    outcome_.reducedShapes.push_back(std::move(shape));
  }
}

std::vector<std::pair<std::int32_t, std::string>> shownTensors(const Stage& stage) {
  constexpr std::size_t kMostShown = 64;  // a message, not an archive
  std::vector<std::pair<std::int32_t, std::string>> shown;
  std::unordered_set<std::string> seen;
  for (std::size_t t = 0; t < stage.tensors.size() && shown.size() < kMostShown; ++t) {
    const StageTensor& tensor = stage.tensors[t];
    const std::string name = (tensor.logical ? "" : "local ") + tensorName(stage, StageTensorId(t));
    if (seen.insert(name).second) shown.emplace_back(static_cast<std::int32_t>(t), name);
  }
  return shown;
}

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
