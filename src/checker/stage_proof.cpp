// SPDX-License-Identifier: Apache-2.0
// Proofs beyond equal normal forms: by multiplying out, with as many positions kept apart as the
// product needs (docs/soundness.md, "Representatives with weights"), and by the solver.
#include <algorithm>
#include <chrono>
#include "smt/solver.h"
#include "terms/domain.h"

#include "checker/stage_checker.h"
#include "util/stopwatch.h"

namespace shardproof {

namespace {

constexpr std::size_t kExpansionBudget = 400'000;
constexpr int kMostExtraForFractions = 16;  // as kMostExtraPositions: terms stay small
constexpr double kSolverShare = 0.6;
constexpr double kLawlessShare = 0.3;  // it may be asked once more, with all positions
constexpr double kExpansionShare =
    0.2;  // of the time for a stage: the solver has the most of the rest
constexpr double kFractionShare = 0.4;  // for each time that the stage is executed with fractions

}  // namespace

void StageChecker::decideBySolver() {
  if (options_.checker ==
      Checker::kZ3) {  // the solver is told to look only where both sides are defined
    TermAlgebra algebra(TermAlgebra::Mode::kNormalized, mostTerms(options_.memoryMegabytes));
    Terms terms(stage_, reduced_, algebra);
    execute(terms, algebra);
    undefined_ = undefinedInPlan(terms, algebra);
    if (!undefined_.empty()) {
      if (!refuteInNumbers()) throw Unsupported(undefined_);
      return;
    }
  }
  const auto solveOn = [&](const ReductionOptions& atLeast) {
    Obligation obligation = buildObligation(stage_, atLeast, Positions::kConclusive,
                                            mostTerms(options_.memoryMegabytes), outcome_.seconds);
    const Laws laws = obligation.laws();
    reduced_ = std::move(obligation.reduced);
    reductionOptions_ = obligation.reduction;
    free_ = std::move(obligation.free);
    dropped_ = obligation.droppedAssumption;
    describeShapes();
    solve(obligation, laws);
    return laws;
  };
  if (solveOn(reductionOptions_) == Laws::kAll || outcome_.verdict != StageVerdict::kUndecided)
    return;
  // With all positions, if they are few, the solver may use what it knows of functions.
  ReductionOptions whole = reductionOptions_;
  whole.extraSummands = kMostExtraForSolver;
  try {
    if (!reduceStage(stage_, whole).standsForSummands) solveOn(whole);
  } catch (const Unsupported&) {
    return;  // undecided it is, with the reason there was
  }
}

bool StageChecker::proveExpanded(TermAlgebra& algebra,
                                 const std::vector<std::pair<Term, Term>>& unequal) {
  return proveExpanded(algebra, unequal, TermAlgebra::Reciprocals::kAtoms) ||
         proveExpanded(algebra, unequal, TermAlgebra::Reciprocals::kDivided);
}

bool StageChecker::proveExpanded(TermAlgebra& algebra,
                                 const std::vector<std::pair<Term, Term>>& unequal,
                                 TermAlgebra::Reciprocals reciprocals) {
  if (!expandedEqual(algebra, unequal, reciprocals)) return false;
  const Counting counting =
      reciprocals == TermAlgebra::Reciprocals::kAtoms ? Counting::kSummands : Counting::kFactors;
  int extra = 0;
  try {
    extra = extraSummandsFor(unequal, algebra, stage_, reduced_, counting);
  } catch (const Unsupported& error) {
    refusal_ = error.what();
    return false;
  }
  if (extra > reductionOptions_.extraSummands) {
    if (extra * reduced_.mostVariables > kMostExtraPositions) {
      refusal_ = "the expanded form multiplies more factors than positions can be kept apart";
      return false;
    }
    const ReductionOptions before = reductionOptions_;
    try {
      ReductionOptions wider = before;
      wider.extraSummands = extra;
      reduce(wider);
      TermAlgebra fresh(TermAlgebra::Mode::kNormalized, mostTerms(options_.memoryMegabytes));
      Terms again(stage_, reduced_, fresh);
      execute(again, fresh);
      const auto left = differing(again);
      if (!expandedEqual(fresh, left, reciprocals) ||
          extraSummandsFor(left, fresh, stage_, reduced_, counting) > extra)
        throw Unsupported(
            "the expanded form could not be confirmed with more positions kept apart");
    } catch (const Unsupported& error) {
      refusal_ = error.what();
      reduce(before);
      return false;
    }
  }
  outcome_.verdict = StageVerdict::kProved;
  outcome_.method = Method::kPolynomial;
  describeShapes();
  return true;
}

bool StageChecker::expandedEqual(TermAlgebra& algebra,
                                 const std::vector<std::pair<Term, Term>>& unequal,
                                 TermAlgebra::Reciprocals reciprocals) {
  Stopwatch watch(outcome_.seconds["expand"]);
  const auto start = std::chrono::steady_clock::now();
  try {
    return std::all_of(unequal.begin(), unequal.end(), [&](const auto& p) {
      if (secondsSince(start) > kExpansionShare * options_.timeoutSeconds)
        throw Unsupported("expanding the terms takes too long");
      return algebra.expand(p.first, kExpansionBudget, reciprocals) ==
             algebra.expand(p.second, kExpansionBudget, reciprocals);
    });
  } catch (const Unsupported& error) {
    refusal_ = error.what();
    return false;
  }
}

bool StageChecker::equalFractions(TermAlgebra& algebra) {
  Stopwatch watch(outcome_.seconds["fractions"]);
  const auto start = std::chrono::steady_clock::now();
  Terms terms(stage_, reduced_, algebra);
  execute(terms, algebra);
  const auto unequal = differing(terms);
  const bool equal = std::all_of(unequal.begin(), unequal.end(), [&](const auto& p) {
    if (secondsSince(start) > kFractionShare * options_.timeoutSeconds)
      throw Unsupported("common denominators take too long");
    return algebra.equalFractions(p.first, p.second, kExpansionBudget);
  });
  return equal && undefinedInPlan(terms, algebra).empty();
}

bool StageChecker::proveByFractions() {
  const ReductionOptions before = reductionOptions_;
  try {
    for (;;) {
      // Once more with as many as are needed; if then more are needed, what is multiplied grows
      // with the positions that are kept apart, and no number of them is enough.
      const bool again = reductionOptions_.extraSummands > before.extraSummands;
      TermAlgebra algebra(TermAlgebra::Mode::kFractions, mostTerms(options_.memoryMegabytes));
      if (reduced_.mostVariables > 0) {
        algebra.allowFractionSummands(
            again
                ? reductionOptions_.extraSummands
                : std::max(before.extraSummands, kMostExtraForFractions / reduced_.mostVariables));
      }
      if (!equalFractions(algebra)) break;
      const int needed = algebra.fractionSummands();
      if (needed > 0 && !stage_.collapsedAxes.empty())
        throw NeedsRefinement(
            "the proof multiplies more factors than coordinates of an interchangeable axis are "
            "kept apart");
      if (needed <= reductionOptions_.extraSummands || reduced_.mostVariables == 0) {
        outcome_.verdict = StageVerdict::kProved;
        outcome_.method = Method::kPolynomial;
        describeShapes();
        return true;
      }
      ReductionOptions wider = before;
      wider.extraSummands = needed;
      reduce(wider);
    }
  } catch (const Unsupported& error) {
    refusal_ = error.what();
  }
  if (reductionOptions_.extraSummands != before.extraSummands) reduce(before);
  return false;
}

void StageChecker::solve(Obligation& obligation, Laws laws) {
  std::vector<std::pair<Term, Term>> asked;
  bool unequal = false;
  for (const Obligation::Pair& p : obligation.pairs) {
    unequal = unequal || p.logical != p.parallel;
    if (options_.checker == Checker::kZ3 || p.logical != p.parallel)
      asked.emplace_back(p.logical, p.parallel);  // z3: even what is one term is asked
  }
  SmtResult result;
  {
    Stopwatch watch(outcome_.seconds["solve"]);
    result =
        askByDomain(obligation.terms, asked,
                    options_.timeoutSeconds * (laws == Laws::kAll ? kSolverShare : kLawlessShare),
                    [&](const std::vector<std::pair<Term, Term>>& some, unsigned milliseconds) {
                      return findDifference(obligation.terms, some, milliseconds,
                                            static_cast<unsigned>(options_.memoryMegabytes), laws);
                    });
  }
  if (result.verdict == SmtVerdict::kUnsat) {
    outcome_.verdict = StageVerdict::kProved;
    outcome_.method = Method::kSolver;
    return;
  }
  if (result.verdict == SmtVerdict::kSat) {
    // The solver knows nothing of known inputs.
    if (!reduced_.reducesAbsolute && !known_.any()) {
      Trial trial;
      const bool differs = attempt(
          [&](StageTensorId tensor, std::int64_t, std::size_t i) {
            const auto it = result.model.find(static_cast<std::uint32_t>(i));
            const double value = it == result.model.end() ? 1.0 : it->second;
            if (!isInteger(tensor)) return value;
            // An index that stands for many table rows is no index.
            const auto& values = reduced_.values[tensor];
            if (std::find(values.begin(), values.end(), static_cast<std::int64_t>(value)) !=
                values.end())
              return value;
            return values.empty() ? 0.0 : static_cast<double>(values.front());
          },
          trial, false);
      if (differs) {
        accept(trial, Method::kSolver);
        return;
      }
    }
    outcome_.reason = laws == Laws::kAll
                          ? "Z3 finds a difference only for other functions than the real ones"
                          : "the two sides are not the same polynomials of the same functions, and "
                            "what else Z3 could show of some positions would not hold for all";
    if (unequal && refuteInNumbers()) return;
  } else {
    outcome_.reason = result.reason;
    if (unequal && options_.checker == Checker::kZ3 && refuteInNumbers()) return;
  }
  if (dropped_) outcome_.reason += "; assumed lineage that is over-determined was left out";
  if (!refusal_.empty()) outcome_.reason += (outcome_.reason.empty() ? "" : "; ") + refusal_;
}

}  // namespace shardproof
