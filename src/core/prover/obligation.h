// SPDX-License-Identifier: Apache-2.0
// What a solver is asked about one stage: both sides executed as terms that nothing has rewritten,
// on a reduction of the stage's shapes. `--checker z3` gives it to Z3 (checker.cpp), `--smt2`
// writes it (obligations/written_obligation.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shape_reduction/reduction.h"
#include "smt/solver.h"
#include "stages/stage.h"
#include "terms/term_algebra.h"

namespace shardproof {

struct FreeElement {
  StageTensorId tensor;
  std::int64_t index;  // row-major over reduced positions and planes
};

struct Obligation {
  struct Pair {
    std::size_t claim;
    std::int64_t logicalIndex;
    Term logical, parallel;
  };
  TermAlgebra terms{TermAlgebra::Mode::kRaw};
  std::vector<Pair> pairs;        // claimed to be equal, each combination of terms once
  std::vector<FreeElement> free;  // what variable i of the terms stands for
  bool droppedAssumption = false;
  ReducedStage reduced;
  ReductionOptions reduction;
  // So many positions are kept apart that a solver's proof of the reduced stage is one at full
  // size, whatever the solver multiplies out (docs/soundness.md, "Representatives with weights"),
  // if it is told no more than `laws`.
  bool conclusive = true;
  std::vector<std::pair<Term, Term>> equations() const;  // of `pairs`
  Laws laws() const { return reduced.standsForSummands ? Laws::kNone : Laws::kAll; }
};

// Asks a solver about all pairs, those together that are defined for the same values: the facts
// that it is told of a division or a root hold where that is defined, and what one pair divides by
// must not keep another from being looked at where it is zero. `ask` gets pairs and milliseconds;
// `seconds` are for all questions together. Unsat if all are, else the first answer that is not.
SmtResult askByDomain(
    TermAlgebra& terms, const std::vector<std::pair<Term, Term>>& pairs, double seconds,
    const std::function<SmtResult(const std::vector<std::pair<Term, Term>>&, unsigned)>& ask);

enum class Positions : std::uint8_t {
  kConclusive,  // as many as a solver's proof needs, or Unsupported
  kTractable,   // ... or, where those are too many, as many as the normal form needs: `conclusive`
                // says which
};

// Seconds by phase are added to `seconds` ("reduce", "execute"). Throws Unsupported and
// NeedsRefinement as checkStage's parts do.
Obligation buildObligation(const Stage& stage, const ReductionOptions& atLeast, Positions positions,
                           std::size_t maxTerms, std::map<std::string, double>& seconds);

// As extraSummandsFor() says, times the variables of a summand, for a solver: at most. More than
// for the expanded form, which grows with each position as no solver's input does; the reduction's
// own limits bound the stage.
constexpr int kMostExtraForSolver = 24;
// Combinations of indices that one operator may run through as terms.
constexpr double kMostIteration = 1e8;
// As many terms as fit into so much memory.
std::size_t mostTerms(std::size_t megabytes);

// How many positions a monomial of an expansion may touch is told by the number of its atoms, each
// of which touches as many as an operator's summand at most, or more closely by that of the
// summands that were multiplied. The latter only where reciprocals of sums are atoms
// (Reciprocals::kAtoms): a division replaces one summand by others.
enum class Counting { kFactors, kSummands };

// For how many summands more positions must be kept apart than for the stage's own
// (ReductionOptions::extraSummands), when `pairs` are compared by multiplying out. Throws
// NeedsRefinement, and Unsupported where it is not known.
int extraSummandsFor(const std::vector<std::pair<Term, Term>>& pairs, TermAlgebra& algebra,
                     const Stage& stage, const ReducedStage& reduced,
                     Counting counting = Counting::kFactors);
// Beyond this many positions of a piece nothing is multiplied out rather than the stage grown.
constexpr int kMostExtraPositions = 8;

// A tensor as elementName() begins: "y", "local y.part@rank 3 microbatch 1".
std::string instanceName(const Stage& stage, StageTensorId tensor);
// An element as messages name it, by its full-size position: "y[4, 0]", "local y.part@rank 0
// microbatch 1[0, 1]".
std::string elementName(const Stage& stage, const ReducedStage& reduced, StageTensorId tensor,
                        std::int64_t index);

}  // namespace shardproof
