// SPDX-License-Identifier: Apache-2.0
#include "certificate/second_method.h"

#include <algorithm>
#include <set>
#include <utility>

#include "certificate/cvc5_solver.h"
#include "prover/obligation.h"
#include "prover/stage_interpreter.h"
#include "shardproof/error.h"
#include "smt/solver.h"
#include "terms/domain.h"
#include "terms/term_algebra.h"
#include "util/stopwatch.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostMonomials = 1'000'000;  // the time of the task is the limit that counts

// Both sides in the normal form, on the reduction that it needs: are they the same, and is the plan
// defined where the model is? Throws Unsupported where the second is not shown.
bool equalInNormalForm(const Stage& stage, const SecondLimits& limits, SecondOutcome& outcome) {
  ReducedStage reduced;
  {
    Stopwatch watch(outcome.seconds["reduce"]);
    reduced = reduceStage(stage, ReductionOptions{});
  }
  if (reduced.largestIteration > kMostIteration)
    throw Unsupported(
        "an operator of the reduced stage runs through too many combinations of indices");
  Stopwatch watch(outcome.seconds["execute"]);
  TermAlgebra algebra(TermAlgebra::Mode::kNormalized, mostTerms(limits.megabytes));
  StageInterpreter<TermAlgebra> interpreter(stage, reduced, algebra);
  interpreter.run([&](StageTensorId t, std::int64_t) {
    const StageTensor& tensor = stage.tensors[t];
    return algebra.variable(tensor.info.element == ElementKind::kInteger, tensor.facts);
  });
  bool equal = true;
  std::vector<std::pair<Term, Term>> expanded;
  std::set<std::pair<ConditionSet, ConditionSet>> seen;
  for (const auto& p : interpreter.pairs()) {
    equal = equal && p.logical == p.parallel;
    if (p.parallel.condition == 0 ||
        !seen.emplace(p.logical.condition, p.parallel.condition).second)
      continue;
    if (uncovered(algebra, p.logical.condition, p.parallel.condition, kDomainBudget, expanded))
      throw Unsupported("it is not shown that the plan is defined wherever the model is");
  }
  if (extraSummandsFor(expanded, algebra, stage, reduced) > ReductionOptions{}.extraSummands)
    throw Unsupported("it is not shown that the plan is defined wherever the model is");
  return equal;
}

// By what the solver or the expansion says of the obligation: empty, or why it is not proved.
std::string whyNot(Obligation& o, SecondMethod method, const SecondLimits& limits,
                   SecondOutcome& outcome) {
  if (method == SecondMethod::kExpandedForm) {
    Stopwatch watch(outcome.seconds["expand"]);
    const bool equal = std::all_of(o.pairs.begin(), o.pairs.end(), [&](const Obligation::Pair& p) {
      return o.terms.expand(p.logical, kMostMonomials) ==
             o.terms.expand(p.parallel, kMostMonomials);
    });
    return equal ? "" : "the expanded forms of the two sides differ";
  }
  const auto pairs = o.equations();
  Stopwatch watch(outcome.seconds["solve"]);
  const SmtResult result =
      askByDomain(o.terms, pairs, limits.seconds * 0.8,
                  [&](const std::vector<std::pair<Term, Term>>& asked, unsigned milliseconds) {
                    return method == SecondMethod::kZ3
                               ? findDifference(o.terms, asked, milliseconds,
                                                static_cast<unsigned>(limits.megabytes), o.laws())
                               : findDifferenceByCvc5(o.terms, asked, milliseconds, o.laws());
                  });
  if (result.verdict == SmtVerdict::kUnsat) return {};
  return result.verdict == SmtVerdict::kSat
             ? "a difference for some functions, if not for the real ones"
             : result.reason;
}

}  // namespace

const char* toString(SecondMethod method) {
  switch (method) {
    case SecondMethod::kNormalForm:
      return "normal-form";
    case SecondMethod::kExpandedForm:
      return "expanded-form";
    case SecondMethod::kZ3:
      return "z3";
    case SecondMethod::kCvc5:
      return "cvc5";
  }
  return "";
}

std::vector<SecondMethod> methodsBesides(Method method, Checker checker) {
  if (checker == Checker::kZ3)
    return {SecondMethod::kNormalForm, SecondMethod::kExpandedForm, SecondMethod::kCvc5};
  switch (method) {
    case Method::kNormalForm:
      return {SecondMethod::kZ3, SecondMethod::kExpandedForm, SecondMethod::kCvc5};
    case Method::kPolynomial:
      return {SecondMethod::kZ3, SecondMethod::kCvc5};
    default:
      return {SecondMethod::kCvc5};
  }
}

SecondOutcome checkStageBy(const Stage& stage, SecondMethod method, const SecondLimits& limits) {
  SecondOutcome outcome;
  try {
    const bool equal = equalInNormalForm(stage, limits, outcome);
    if (method == SecondMethod::kNormalForm) {
      if (!equal) outcome.reason = "the normal forms of the two sides differ";
    } else {
      Obligation o = buildObligation(stage, ReductionOptions{}, Positions::kConclusive,
                                     mostTerms(limits.megabytes), outcome.seconds);
      outcome.reason = whyNot(o, method, limits, outcome);
    }
    outcome.proved = outcome.reason.empty();
  } catch (const Unsupported& error) {
    outcome.reason = error.what();
  } catch (const NeedsRefinement& error) {
    outcome.needsRefinement = true;
    outcome.reason = error.what();
  }
  return outcome;
}

}  // namespace shardproof
