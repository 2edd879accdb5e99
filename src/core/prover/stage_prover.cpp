// SPDX-License-Identifier: Apache-2.0
#include "prover/stage_prover.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <unordered_set>

#include "smt/solver.h"
#include "terms/domain.h"
#include "util/stopwatch.h"

namespace shardproof {

namespace {

constexpr std::size_t kImpossibleBudget =
    500;  // what cancels to nothing does so in few steps, or it is left to numbers
constexpr std::size_t kExpansionBudget = 400'000;
constexpr int kMostExtraForFractions = 16;  // as kMostExtraPositions: terms stay small
// Of the time for a stage.
constexpr double kExpansionShare = 0.2;
constexpr double kFractionShare = 0.4;  // each time that the stage is executed with fractions
constexpr double kSolverShare = 0.6;
constexpr double kLawlessShare = 0.3;  // it may be asked once more, with all positions

}  // namespace

Proof StageProver::proved(Method method) const {
  if (!definedEverywhere_)
    throw std::logic_error("a proof of a stage that may have no value in the plan");
  return {method, canonicalForm(stage_)};
}

void StageProver::expectReduced() const {
  if (!isReduced_) throw std::logic_error("a stage that is not reduced");
}

void StageProver::expectNoSize() const {
  if (size_ != nullptr) throw std::logic_error("this method knows of no size that is a symbol");
}

std::vector<std::string> StageProver::freeNames() const {
  std::vector<std::string> names;
  for (const FreeElement& e : free_)
    names.push_back(e.tensor.valid() ? elementName(e.tensor, e.index) : "size");
  return names;
}

void StageProver::forgetNormalForm() {
  algebra_.reset();
  unequal_.clear();
}

void StageProver::reduce() {
  forgetNormalForm();
  reduceTo(ReductionOptions{});
  if (reduced_.largestIteration > kMostIteration)
    throw Unsupported(
        "an operator of the reduced stage runs through too many combinations of indices");
  isReduced_ = true;
}

void StageProver::reduceTo(const ReductionOptions& options) {
  Stopwatch watch(seconds_["reduce"]);
  reduced_ = reduceStage(stage_, options);
  reduction_ = options;
}

void StageProver::execute(Terms& terms, TermAlgebra& algebra) {
  Stopwatch watch(seconds_["execute"]);
  free_.clear();
  if (size_ != nullptr) {
    algebra.readNumbersBy(*size_);
    free_.push_back({StageTensorId(), 0});
  }
  terms.run([&](StageTensorId tensor, std::int64_t index) {
    free_.push_back({tensor, index});
    return algebra.variable(isInteger(tensor), stage_.tensors[tensor].facts);
  });
  dropped_ = terms.droppedAssumption();
}

StageProver::Pairs StageProver::differing(const Terms& terms) {
  Pairs unequal;
  std::unordered_set<std::uint64_t> seen;
  for (const auto& pair : terms.pairs()) {
    if (pair.logical == pair.parallel) continue;
    if (seen.insert((std::uint64_t{pair.logical.id} << 32) | pair.parallel.id).second)
      unequal.emplace_back(pair.logical, pair.parallel);
  }
  return unequal;
}

std::optional<Proof> StageProver::byNormalForm() {
  expectReduced();
  forgetNormalForm();
  definedEverywhere_ = false;
  auto algebra =
      std::make_unique<TermAlgebra>(TermAlgebra::Mode::kNormalized, mostTerms(limits_.megabytes));
  Terms terms(stage_, reduced_, *algebra);
  execute(terms, *algebra);
  unequal_ = differing(terms);
  undefined_ = undefinedInPlan(terms, *algebra);
  definedEverywhere_ = undefined_.empty();
  algebra_ = std::move(algebra);
  // Flattened sums and products are compared summand by summand, and a summand involves at most as
  // many positions of a piece as the reduction kept apart (shape_reduction/reduction.h), so the
  // identity holds at full size.
  if (!unequal_.empty() || !definedEverywhere_) return std::nullopt;
  return proved(Method::kNormalForm);
}

std::string StageProver::undefinedInPlan(const Terms& terms, TermAlgebra& algebra) {
  Stopwatch watch(seconds_["check"]);
  std::set<std::pair<ConditionSet, ConditionSet>> seen;
  std::set<Condition> looked;
  bool partial = false;
  Pairs expanded;
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

bool StageProver::morePositionsNeeded(const Pairs& expanded, TermAlgebra& algebra) const {
  try {
    return extraSummandsFor(expanded, algebra, stage_, reduced_) > reduction_.extraSummands;
  } catch (const Unsupported&) {  // it is not known how many
    return true;
  }
}

std::string StageProver::describe(const Condition& c, const Terms& terms,
                                  const TermAlgebra& algebra) const {
  if (c.kind == Condition::Kind::kDefined) {
    const auto [tensor, index] = terms.definedElement(c.subject);
    return "uses " + elementName(tensor, index);
  }
  const std::vector<std::string> names = freeNames();
  return (c.kind == Condition::Kind::kNonZero ? "divides by (or takes the logarithm of) "
                                              : "takes a root (or the logarithm) of ") +
         algebra.toString(Term{c.subject}, names, 120);
}

void StageProver::expectSomeValue(const Terms& terms) {
  std::set<ClaimedElement> elements;
  for (const auto& pair : terms.pairs()) {
    if (pair.logical.condition != 0) elements.insert({pair.claim, pair.logicalIndex});
  }
  if (const auto missing = witness_.withoutValue(reduced_, std::move(elements)))
    throw Unsupported("no input was found at which the model has a value at " +
                      elementName(stage_.claims[missing->claim].logical, missing->index));
}

std::optional<Proof> StageProver::byExpansion() {
  if (!algebra_ || !definedEverywhere_) throw std::logic_error("there is no normal form to expand");
  if (expandsEqual(TermAlgebra::Reciprocals::kAtoms) ||
      expandsEqual(TermAlgebra::Reciprocals::kDivided))
    return proved(Method::kPolynomial);
  return std::nullopt;
}

bool StageProver::expandsEqual(TermAlgebra::Reciprocals reciprocals) {
  if (!expandedEqual(*algebra_, unequal_, reciprocals)) return false;
  const Counting counting =
      reciprocals == TermAlgebra::Reciprocals::kAtoms ? Counting::kSummands : Counting::kFactors;
  int extra = 0;
  try {
    extra = extraSummandsFor(unequal_, *algebra_, stage_, reduced_, counting);
  } catch (const Unsupported& error) {
    refusal_ = error.what();
    return false;
  }
  if (extra <= reduction_.extraSummands) return true;
  if (extra * reduced_.mostVariables > kMostExtraPositions) {
    refusal_ = "the expanded form multiplies more factors than positions can be kept apart";
    return false;
  }
  const ReductionOptions before = reduction_;
  try {
    ReductionOptions wider = before;
    wider.extraSummands = extra;
    reduceTo(wider);
    TermAlgebra fresh(TermAlgebra::Mode::kNormalized, mostTerms(limits_.megabytes));
    Terms again(stage_, reduced_, fresh);
    execute(again, fresh);
    const Pairs left = differing(again);
    if (!expandedEqual(fresh, left, reciprocals) ||
        extraSummandsFor(left, fresh, stage_, reduced_, counting) > extra)
      throw Unsupported("the expanded form could not be confirmed with more positions kept apart");
  } catch (const Unsupported& error) {
    refusal_ = error.what();
    reduceTo(before);
    return false;
  }
  return true;
}

bool StageProver::expandedEqual(TermAlgebra& algebra, const Pairs& unequal,
                                TermAlgebra::Reciprocals reciprocals) {
  Stopwatch watch(seconds_["expand"]);
  const auto start = ProcessorClock::now();
  try {
    return std::all_of(unequal.begin(), unequal.end(), [&](const auto& p) {
      if (secondsSince(start) > kExpansionShare * limits_.seconds)
        throw Unsupported("expanding the terms takes too long");
      return algebra.expand(p.first, kExpansionBudget, reciprocals) ==
             algebra.expand(p.second, kExpansionBudget, reciprocals);
    });
  } catch (const Unsupported& error) {
    refusal_ = error.what();
    return false;
  }
}

std::optional<Proof> StageProver::byFractions() {
  expectReduced();
  expectNoSize();
  forgetNormalForm();
  const ReductionOptions before = reduction_;
  try {
    if (fractionsEqual()) return proved(Method::kPolynomial);
  } catch (const Unsupported& error) {
    refusal_ = error.what();
  }
  if (reduction_.extraSummands != before.extraSummands) reduceTo(before);
  return std::nullopt;
}

bool StageProver::fractionsEqual() {
  const ReductionOptions before = reduction_;
  for (;;) {
    // Once more with as many as are needed; if then more are needed, what is multiplied grows with
    // the positions that are kept apart, and no number of them is enough.
    const bool again = reduction_.extraSummands > before.extraSummands;
    TermAlgebra algebra(TermAlgebra::Mode::kFractions, mostTerms(limits_.megabytes));
    if (reduced_.mostVariables > 0) {
      algebra.allowFractionSummands(
          again ? reduction_.extraSummands
                : std::max(before.extraSummands, kMostExtraForFractions / reduced_.mostVariables));
    }
    if (!equalFractions(algebra)) return false;
    const int needed = algebra.fractionSummands();
    if (needed > 0 && !stage_.collapsedAxes.empty())
      throw NeedsRefinement(
          "the proof multiplies more factors than coordinates of an interchangeable axis are "
          "kept apart");
    if (needed <= reduction_.extraSummands || reduced_.mostVariables == 0) {
      definedEverywhere_ = true;
      return true;
    }
    ReductionOptions wider = before;
    wider.extraSummands = needed;
    reduceTo(wider);
  }
}

bool StageProver::equalFractions(TermAlgebra& algebra) {
  Stopwatch watch(seconds_["fractions"]);
  const auto start = ProcessorClock::now();
  Terms terms(stage_, reduced_, algebra);
  execute(terms, algebra);
  const Pairs unequal = differing(terms);
  const bool equal = std::all_of(unequal.begin(), unequal.end(), [&](const auto& p) {
    if (secondsSince(start) > kFractionShare * limits_.seconds)
      throw Unsupported("common denominators take too long");
    return algebra.equalFractions(p.first, p.second, kExpansionBudget);
  });
  return equal && undefinedInPlan(terms, algebra).empty();
}

StageProver::Solved StageProver::bySolver(bool all) { return solve(reduction_, all); }

std::optional<StageProver::Solved> StageProver::bySolverWithAllPositions(bool all) {
  ReductionOptions whole = reduction_;
  whole.extraSummands = kMostExtraForSolver;
  try {
    if (reduceStage(stage_, whole).standsForSummands) return std::nullopt;
    return solve(whole, all);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

// What Z3 is asked are the terms as they are executed, without any normal form, on a reduction wide
// enough for a proof that may expand them.
StageProver::Solved StageProver::solve(const ReductionOptions& atLeast, bool all) {
  expectReduced();
  expectNoSize();
  forgetNormalForm();
  if (!definedEverywhere_)
    throw std::logic_error(
        "a stage that may have no value in the plan is no question for a solver");
  Obligation obligation = buildObligation(stage_, atLeast, Positions::kConclusive,
                                          mostTerms(limits_.megabytes), seconds_);
  Solved solved;
  solved.laws = obligation.laws();
  reduced_ = std::move(obligation.reduced);
  reduction_ = obligation.reduction;
  free_ = std::move(obligation.free);
  dropped_ = obligation.droppedAssumption;
  Pairs asked;
  for (const Obligation::Pair& p : obligation.pairs) {
    solved.unequal = solved.unequal || p.logical != p.parallel;
    if (all || p.logical != p.parallel) asked.emplace_back(p.logical, p.parallel);
  }
  Stopwatch watch(seconds_["solve"]);
  const double share = solved.laws == Laws::kAll ? kSolverShare : kLawlessShare;
  solved.result =
      askByDomain(obligation.terms, asked, limits_.seconds * share,
                  [&](const Pairs& some, unsigned milliseconds) {
                    return findDifference(obligation.terms, some, milliseconds,
                                          static_cast<unsigned>(limits_.megabytes), solved.laws);
                  });
  if (solved.result.verdict == SmtVerdict::kUnsat) solved.proof = proved(Method::kSolver);
  return solved;
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

std::vector<ReducedShape> shownShapes(const Stage& stage, const ReducedStage& reduced) {
  std::vector<ReducedShape> shapes;
  for (auto& [t, name] : shownTensors(stage)) {
    ReducedShape shape{std::move(name), stage.tensors[t].info.shape, {}};
    for (const ops::ReducedDim* d : reduced.dims[t]) shape.reduced.push_back(d->size());
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

}  // namespace shardproof
