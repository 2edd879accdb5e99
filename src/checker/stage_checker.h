// SPDX-License-Identifier: Apache-2.0
// One stage being decided. checker.cpp has the order of what is tried, stage_proof.cpp the proofs
// that are more than a comparison of normal forms, stage_numbers.cpp one evaluation of both sides
// in numbers, stage_refutation.cpp which reductions of the stage are evaluated so, and what counts.
// Internal to src/checker/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checker/checker.h"
#include "checker/known_inputs.h"
#include "checker/obligation.h"
#include "checker/stage_interpreter.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "terms/double_algebra.h"
#include "terms/modular_algebra.h"
#include "terms/term_algebra.h"
#include "util/stopwatch.h"

namespace shardproof {

class StageChecker {
 public:
  StageChecker(const Stage& stage, const CheckOptions& options)
      : stage_(stage), options_(options), known_(stage) {}

  StageOutcome run();

 private:
  using Terms = StageInterpreter<TermAlgebra>;

  void decide();

  // Terms are compared as expressions; that the plan has a value wherever the model has one is
  // shown besides, element by element. Empty, or what is missing.
  std::string undefinedInPlan(const Terms& terms, TermAlgebra& algebra);

  // Conditions that are the same only after multiplying out: than the reduction keeps apart.
  bool morePositionsNeeded(const std::vector<std::pair<Term, Term>>& expanded,
                           TermAlgebra& algebra) const;

  std::string describe(const Condition& c, const Terms& terms, const TermAlgebra& algebra) const;

  // Conditions that cannot all be met would make any claim true. Each claimed element of the model
  // must have a value at some point; where none is found the claim is not proved.
  void expectSomeValue(const Terms& terms);

  // The terms as they are executed, without any normal form, on a reduction wide enough for a proof
  // that may expand them.
  void decideBySolver();

  void reduce(const ReductionOptions& options);

  bool isInteger(StageTensorId tensor) const {
    return stage_.tensors[tensor].info.element == ElementKind::kInteger;
  }

  void execute(Terms& terms, TermAlgebra& algebra);

  static std::vector<std::pair<Term, Term>> differing(const Terms& terms);

  // A hint only: equal fingerprints make a difference very unlikely, so the search for one in
  // doubles is spared.
  bool fingerprintsDiffer();

  using Doubles = StageInterpreter<DoubleAlgebra>;

  // Attempts with values so small that no exponential overflows: only in these does "not a number"
  // mean "not defined".
  static constexpr int kSmallAttempt = 4;
  static constexpr double kTiny = 1.0 / 256;
  static bool tiny(int attempt) { return attempt % 8 == 3 || attempt % 8 == 4 || attempt % 8 == 7; }
  static constexpr int kGridAttempts = 8;  // those after them are off the grid

  // Values near rational points: small multiples of 1/16, away from zero. Later attempts are
  // positive (square roots and logarithms are defined there) and smaller (so that a changed epsilon
  // shows). `offGrid`: beside these points. Sums and differences of multiples of 1/16 are often
  // exactly zero, where a slope has no side: among hundreds of elements some always are.
  static double drawReal(std::mt19937_64& random, int attempt, bool offGrid);

  // As KnownInputs::drawInteger; where there is none, any.
  std::int64_t drawIndex(std::mt19937_64& random, StageTensorId tensor, int attempt);
  static std::uint64_t residue(std::int64_t value) {
    return value >= 0 ? static_cast<std::uint64_t>(value)
                      : ModularAlgebra::kPrime - static_cast<std::uint64_t>(-value);
  }

  using Supply = std::function<double(StageTensorId, std::int64_t, std::size_t)>;
  // Integers that were drawn, of which others are the numbers.
  using Drawn = std::map<std::pair<StageTensorId, std::int64_t>, double>;

  // The value of the i-th input element that is asked for: what it is known to be, or else
  // supply(tensor, index, i).
  double inputValue(StageTensorId tensor, std::int64_t index, std::size_t i, const Supply& supply,
                    Drawn& drawn) const;

  struct Trial {
    std::vector<FreeElement> elements;
    std::vector<double> values;
    std::int32_t claim = -1;
    std::int64_t logicalIndex = 0;
    std::size_t pair = 0;
    double logical = 0, parallel = 0;
    std::set<std::int32_t> claims;  // all that differ
  };

  // Evaluates both sides with the true functions. True when they really differ: when noise that is
  // thousands of times larger than rounding (terms/double_algebra.h) leaves the difference as it
  // is.
  bool attempt(const Supply& supply, Trial& trial, bool undefinedCounts);

  struct Candidate {
    std::size_t pair;
    double logical, parallel;
  };

  // Is the difference the same with noise as without? Were both sides equal, the noise would make a
  // difference of its own that is thousands of times larger than the one that rounding made.
  static bool staysDifferent(const Candidate& c, double logical, double parallel);

  // First on the smallest image of the stage, then on the one that the proof was tried on, which
  // tells more positions apart.
  bool refuteInNumbers();

  bool refuteOn(const ReductionOptions& options);

  // From end to end: which of the claims differ? Reported as refuted when any does.
  void evaluateEndToEnd();
  std::optional<Trial> searchWithReducedMasks();
  std::optional<Trial> searchWithWholeMasks();
  std::optional<Trial> searchWithFinerMasks(ReductionOptions options);

  bool isOutput(std::int32_t claim) const { return stage_.claims[claim].output; }
  bool anyOutput(const std::set<std::int32_t>& claims) const;

  // Adds the claims that differ in some attempt; the first such attempt, if any.
  std::optional<Trial> searchClaims();

  void reduceAgain(const ReductionOptions& options);

  void reduceWhole(ReductionOptions options);
  // From end to end a difference decides; of one stage it is a hint, and not worth as much.
  void expectAffordable(double mostElements, double mostIteration) const;

  std::int64_t totalElements() const;

  // One evaluation of the smallest image, which costs little next to the terms of a large stage.
  bool differsAtFirstSight();

  bool attemptAtRandom(int k, Trial& trial);

  // What a product with this tensor sums over, where it is a matrix of parameters: its last
  // dimension. (Reduced positions repeat, so sums grow with their length, not with its root.)
  double fanIn(StageTensorId t) const;

  bool searchDifference(Trial& trial);

  void accept(const Trial& trial, Method method);

  // Lists only the inputs that the differing element depends on: those whose change changes either
  // side.
  void listAssignment(const Trial& trial, Counterexample& example);
  static constexpr std::size_t kMostProbed = 400;

  bool matters(const Trial& trial, std::size_t input);

  // Expanding multiplies summands together: a monomial of k factors may involve k times as many
  // positions of a piece as one summand. So many must be kept apart before the identity says
  // something about the full size.
  bool proveExpanded(TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& unequal);

  bool proveExpanded(TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& unequal,
                     TermAlgebra::Reciprocals reciprocals);
  bool expandedEqual(TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& unequal,
                     TermAlgebra::Reciprocals reciprocals);

  // Executed once more with fractions that are added up (Mode::kFractions), with as many positions
  // kept apart as that needs; the conditions are those of these terms.
  bool proveByFractions();
  bool equalFractions(TermAlgebra& algebra);

  void solve(Obligation& obligation, Laws laws);

  std::string elementName(StageTensorId t, std::int64_t index) const;

  void describeShapes();

  const Stage& stage_;
  const CheckOptions& options_;
  const KnownInputs known_;
  StageOutcome outcome_;
  ReducedStage reduced_;
  ReductionOptions reductionOptions_;
  std::vector<FreeElement> free_;
  std::set<std::int32_t> differing_;  // end to end: the claims that some attempt made differ
  bool reducedForProof_ = false;
  bool dropped_ = false;
  bool outOfDomain_ = false;  // an integer was drawn that its tensor may not hold
  std::string undefined_;     // why the plan may be undefined where the model is not
  std::string refusal_;
};

}  // namespace shardproof
