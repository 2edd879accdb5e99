// SPDX-License-Identifier: Apache-2.0
// Looks for a difference between the two sides of one stage, in numbers. It proves nothing.
// stage_numbers.cpp has one evaluation of both sides, stage_refutation.cpp which reductions of the
// stage are evaluated, and which difference counts.
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

#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "prover/stage_interpreter.h"
#include "prover/stage_prover.h"
#include "refute/known_inputs.h"
#include "refute/stage_outcome.h"
#include "shape_reduction/reduction.h"

namespace shardproof {

// The stage is the whole plan, or what leads to one output. Causal masks are reduced where they can
// be (hence are not quite causal), and then the outcome says so (StageOutcome::shortenedMask). With
// kWhole what an output shows so is looked for again with whole masks, which is far more work;
// where that cannot be afforded it still says so, and whether a finer mask shows it too
// (underCoarseMasks).
enum class Masks : std::uint8_t { kReduced, kWhole };

// The reason of an end-to-end outcome that evaluated both sides and found them equal.
inline constexpr const char* kNoDifferenceFound = "no input was found on which the sides differ";

class StageRefuter : public ValueWitness {
 public:
  // Of a single stage. What is found goes to `outcome`.
  StageRefuter(const Stage& stage, StageOutcome& outcome)
      : stage_(stage), known_(stage), outcome_(outcome) {}
  // Of stages that end at outputs.
  StageRefuter(const Stage& stage, StageOutcome& outcome, Masks masks)
      : stage_(stage), known_(stage), endToEnd_(masks), outcome_(outcome) {}

  // Whether a difference was found: first on the smallest image of the stage, then on the one that
  // a proof was tried on (`proof`; nullptr: none was), which tells more positions apart.
  bool refute(const ReductionOptions* proof);
  // One evaluation of the smallest image, which costs little next to the terms of a large stage.
  bool differsAtFirstSight();
  // A hint only: equal fingerprints make a difference very unlikely, so the search for one in
  // doubles is spared.
  bool fingerprintsDiffer(const ReducedStage& reduced);
  // At the values that a solver has found: of variable i, what it stands for.
  bool refuteAt(const ReducedStage& reduced, const std::map<std::uint32_t, double>& values);
  // From end to end: which of the claims differ? Refuted when any does. Throws Unsupported,
  // NeedsRefinement.
  void evaluateEndToEnd();

  std::optional<ClaimedElement> withoutValue(const ReducedStage& reduced,
                                             std::set<ClaimedElement> elements) override;

  // Why the last search found nothing; once.
  std::string takeRefusal() { return std::exchange(refusal_, {}); }

 private:
  using Doubles = StageInterpreter<ops::RealNumbers>;

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
  // thousands of times larger than rounding (numbers/double_algebra.h) leaves the difference as it
  // is.
  bool attempt(const Supply& supply, Trial& trial, bool undefinedCounts);

  struct Candidate {
    std::size_t pair;
    double logical, parallel;
  };

  // Is the difference the same with noise as without? Were both sides equal, the noise would make a
  // difference of its own that is thousands of times larger than the one that rounding made.
  static bool staysDifferent(const Candidate& c, double logical, double parallel);

  bool refuteOn(const ReductionOptions& options);

  std::optional<Trial> searchWithReducedMasks();
  std::optional<Trial> searchWithWholeMasks();
  std::optional<Trial> searchWithFinerMasks(ReductionOptions options);

  bool isOutput(std::int32_t claim) const { return stage_.claims[claim].output; }
  bool anyOutput(const std::set<std::int32_t>& claims) const;

  // Adds the claims that differ in some attempt; the first such attempt, if any.
  std::optional<Trial> searchClaims();

  void reduceTo(const ReductionOptions& options);
  void reduceWhole(ReductionOptions options);
  // From end to end a difference decides; of one stage it is a hint, and not worth as much.
  void expectAffordable(double mostElements, double mostIteration) const;

  bool attemptAtRandom(int k, Trial& trial);

  // What a product with this tensor sums over, where it is a matrix of parameters: its last
  // dimension. (Reduced positions repeat, so sums grow with their length, not with its root.)
  double fanIn(StageTensorId t) const;

  bool searchDifference(Trial& trial);

  void accept(const Trial& trial, Method method);

  // Lists only inputs that the differing element depends on: those whose change changes either
  // side. Where there are too many values to find them, the first ones.
  void listAssignment(const Trial& trial, Counterexample& example);
  static constexpr std::size_t kMostProbed = 400;
  // Adds the first few of them; how many values were looked at.
  std::size_t findRelevant(const Trial& trial, std::vector<std::size_t>& relevant);
  // Whether either side changes when these values do, all at once. Each probe evaluates the stage.
  bool matter(const Trial& trial, std::size_t from, std::size_t to);

  bool isInteger(StageTensorId tensor) const {
    return stage_.tensors[tensor].info.element == ElementKind::kInteger;
  }
  std::string elementName(StageTensorId t, std::int64_t index) const {
    return shardproof::elementName(stage_, *reduced_, t, index);
  }

  const Stage& stage_;
  const KnownInputs known_;
  const std::optional<Masks> endToEnd_;
  StageOutcome& outcome_;
  ReducedStage own_;
  const ReducedStage* reduced_ = nullptr;  // that is evaluated: own_, or the prover's
  std::set<std::int32_t> differing_;       // end to end: the claims that some attempt made differ
  bool outOfDomain_ = false;               // an integer was drawn that its tensor may not hold
  std::string refusal_;
};

// The stage is the whole plan, or what leads to one output: both sides are evaluated in numbers
// only. It decides whether a difference that a stage has shown reaches an output. Never throws
// Unsupported nor NeedsRefinement: both are undecided, with the reason.
StageOutcome evaluateEndToEnd(const Stage& stage, Masks masks);

// How many elements the reduced tensors of a stage have together.
DifferingClaim claimOf(const Stage& stage, const Equation& claim);
std::int64_t totalElements(const ReducedStage& reduced);

}  // namespace shardproof
