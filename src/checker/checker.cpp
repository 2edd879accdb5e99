#include "checker/checker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "checker/known_inputs.h"
#include "checker/obligation.h"
#include "checker/stage_interpreter.h"
#include "checker/stopwatch.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "smt/solver.h"
#include "terms/domain.h"
#include "terms/double_algebra.h"
#include "terms/modular_algebra.h"
#include "terms/term_algebra.h"

namespace shardproof {

namespace {

// A difference in numbers counts when so many noisy evaluations change it by at most this part of
// itself.
constexpr std::uint64_t kNoisyRuns = 3;
// And it must stay when every real input moves by up to so much of itself: where the inputs meet a
// tie, a kink or a threshold, it does not.
constexpr std::uint64_t kMovedRuns = 2;
constexpr double kMove = 0x1p-20;
constexpr double kSteady = 1.0 / 8;
// A stage with a causal mask is evaluated at full sequence length up to this many elements in a
// tensor.
constexpr std::int64_t kMostConfirmedElements = 20'000'000;
constexpr std::int64_t kManyElements =
    100'000;  // a stage whose proof is work enough to look at numbers first
constexpr double kMostConfirmedTotal = 300e6;  // in all of its tensors
constexpr std::int64_t kMostStageElements =
    300'000;  // the same of one stage, or of what is no mask
constexpr double kMostStageTotal = 50e6, kMostStageIteration = 2e6;
constexpr double kMostConfirmedIteration =
    1e9;  // combinations of indices in one operator, as numbers at full sequence length
constexpr std::size_t kShownAssignments = 40;
constexpr std::size_t kExpansionBudget = 200'000;
constexpr double kSolverShare = 0.6;
constexpr double kExpansionShare =
    0.2;  // of the time for a stage: the solver has the most of the rest
constexpr std::size_t kDomainBudget = 20'000;
constexpr std::size_t kImpossibleBudget =
    500;  // what cancels to nothing does so in few steps, or it is left to numbers

class StageChecker {
 public:
  StageChecker(const Stage& stage, const CheckOptions& options)
      : stage_(stage), options_(options), known_(stage) {}

  StageOutcome run() {
    try {
      decide();
    } catch (const Unsupported& error) {
      outcome_.verdict = StageVerdict::kUndecided;
      outcome_.method = Method::kNone;
      outcome_.reason = error.what();
    }
    return std::move(outcome_);
  }

 private:
  using Terms = StageInterpreter<TermAlgebra>;

  void decide() {
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
    if (!undefined_.empty()) throw Unsupported(undefined_);
    if (proveExpanded(algebra, unequal)) return;
    // A stage that only the solver may decide is worth the positions that its verdict needs.
    decideBySolver();
  }

  // Terms are compared as expressions; that the plan has a value wherever the model has one is
  // shown besides, element by element. Empty, or what is missing.
  std::string undefinedInPlan(const Terms& terms, TermAlgebra& algebra) {
    Stopwatch watch(outcome_.seconds["check"]);
    std::set<std::pair<ConditionSet, ConditionSet>> seen;
    std::set<Condition> looked;
    bool partial = false;
    for (const auto& pair : terms.pairs()) {
      if ((pair.logical.condition == 0 && pair.parallel.condition == 0) ||
          !seen.emplace(pair.logical.condition, pair.parallel.condition).second)
        continue;
      for (const Condition& c : algebra.conditions().members(pair.logical.condition))
        partial = partial || c.kind != Condition::Kind::kDefined;
      const std::string element = elementName(stage_.claims[pair.claim].logical, pair.logicalIndex);
      if (const auto never =
              impossible(algebra, pair.logical.condition, kImpossibleBudget, looked)) {
        throw Unsupported("the model has no value at " + element + " for any input: it " +
                          describe(*never, terms, algebra));
      }
      if (const auto missing =
              uncovered(algebra, pair.logical.condition, pair.parallel.condition, kDomainBudget)) {
        return "at " + element + " the plan " + describe(*missing, terms, algebra) +
               ", the model does not: where that is not defined the plan has no value and the "
               "model has";
      }
    }
    if (partial) expectSomeValue(terms);
    return {};
  }

  std::string describe(const Condition& c, const Terms& terms, const TermAlgebra& algebra) const {
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

  // Conditions that cannot all be met would make any claim true. Each claimed element of the model
  // must have a value at some point; where none is found the claim is not proved.
  void expectSomeValue(const Terms& terms) {
    constexpr int kMostDraws = 64;
    std::set<std::pair<std::size_t, std::int64_t>> missing;
    for (const auto& pair : terms.pairs()) {
      if (pair.logical.condition != 0) missing.emplace(pair.claim, pair.logicalIndex);
    }
    for (int k = 0; k < kMostDraws && !missing.empty(); ++k) {
      std::mt19937_64 random(0xD1B54A32D192ED03ULL + static_cast<std::uint64_t>(k));
      DoubleAlgebra algebra;
      Doubles interpreter(stage_, reduced_, algebra);
      interpreter.run([&](std::int32_t tensor, std::int64_t) {
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

  // The terms as they are executed, without any normal form, on a reduction wide enough for a proof
  // that may expand them.
  void decideBySolver() {
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
    Obligation obligation = buildObligation(stage_, reductionOptions_, Positions::kConclusive,
                                            mostTerms(options_.memoryMegabytes), outcome_.seconds);
    reduced_ = std::move(obligation.reduced);
    reductionOptions_ = obligation.reduction;
    free_ = std::move(obligation.free);
    dropped_ = obligation.droppedAssumption;
    describeShapes();
    solve(obligation);
  }

  void reduce(const ReductionOptions& options) {
    Stopwatch watch(outcome_.seconds["reduce"]);
    reduced_ = reduceStage(stage_, options);
    reductionOptions_ = options;
  }

  bool isInteger(std::int32_t tensor) const {
    return stage_.tensors[static_cast<std::size_t>(tensor)].info.element == ElementKind::kInteger;
  }

  void execute(Terms& terms, TermAlgebra& algebra) {
    Stopwatch watch(outcome_.seconds["execute"]);
    free_.clear();
    terms.run([&](std::int32_t tensor, std::int64_t index) {
      free_.push_back({tensor, index});
      return algebra.variable(isInteger(tensor),
                              stage_.tensors[static_cast<std::size_t>(tensor)].facts);
    });
    dropped_ = terms.droppedAssumption();
  }

  static std::vector<std::pair<Term, Term>> differing(const Terms& terms) {
    std::vector<std::pair<Term, Term>> unequal;
    std::unordered_set<std::uint64_t> seen;
    for (const auto& pair : terms.pairs()) {
      if (pair.logical == pair.parallel) continue;
      if (seen.insert((std::uint64_t{pair.logical.id} << 32) | pair.parallel.id).second)
        unequal.emplace_back(pair.logical, pair.parallel);
    }
    return unequal;
  }

  // ---- fingerprints

  // A hint only: equal fingerprints make a difference very unlikely, so the search for one in
  // doubles is spared.
  bool fingerprintsDiffer() {
    Stopwatch watch(outcome_.seconds["check"]);
    try {
      ModularAlgebra algebra;
      StageInterpreter<ModularAlgebra> interpreter(stage_, reduced_, algebra);
      std::mt19937_64 random(0x5eed);
      interpreter.run([&](std::int32_t tensor, std::int64_t) {
        return ModularAlgebra::Element{isInteger(tensor) ? residue(drawIndex(random, tensor, 1))
                                                         : random() % ModularAlgebra::kPrime,
                                       false};
      });
      return std::any_of(interpreter.pairs().begin(), interpreter.pairs().end(),
                         [](const auto& p) { return !(p.logical == p.parallel); });
    } catch (const Unsupported&) {
      return true;
    }
  }

  // ---- counterexamples

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
  static double drawReal(std::mt19937_64& random, int attempt, bool offGrid) {
    double magnitude = static_cast<double>(1 + random() % 32) / 16.0;
    if (offGrid) magnitude += (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) / 32.0;
    const double scale = tiny(attempt) ? kTiny : attempt % 4 == 2 ? 0.125 : 1.0;
    const bool negative = attempt % 2 == 0 && random() % 2 == 0;
    return (negative ? -magnitude : magnitude) * scale;
  }

  // As KnownInputs::drawInteger; where there is none, any.
  std::int64_t drawIndex(std::mt19937_64& random, std::int32_t tensor, int attempt) {
    const auto index = known_.drawInteger(reduced_, tensor, random, attempt % 2 != 0);
    outOfDomain_ = outOfDomain_ || !index;
    return index.value_or(0);
  }
  static std::uint64_t residue(std::int64_t value) {
    return value >= 0 ? static_cast<std::uint64_t>(value)
                      : ModularAlgebra::kPrime - static_cast<std::uint64_t>(-value);
  }

  using Supply = std::function<double(std::int32_t, std::int64_t, std::size_t)>;
  // Integers that were drawn, of which others are the numbers.
  using Drawn = std::map<std::pair<std::int32_t, std::int64_t>, double>;

  // The value of the i-th input element that is asked for: what it is known to be, or else
  // supply(tensor, index, i).
  double inputValue(std::int32_t tensor, std::int64_t index, std::size_t i, const Supply& supply,
                    Drawn& drawn) const {
    if (const auto number = known_.number(reduced_, tensor, index)) return *number;
    const auto integer = [&](std::int32_t of) {
      const auto [it, added] = drawn.try_emplace({of, index}, 0);
      if (added) it->second = supply(of, index, i);
      return it->second;
    };
    if (known_.isNumberOf(tensor)) {
      const StageTensor& t = stage_.tensors[static_cast<std::size_t>(tensor)];
      const std::int32_t of = knownSource(stage_, t);
      return integer(of < 0 ? tensor : of) + static_cast<double>(t.known->plus);
    }
    return isInteger(tensor) ? integer(tensor) : supply(tensor, index, i);
  }

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
  bool attempt(const Supply& supply, Trial& trial, bool undefinedCounts) {
    trial = {};
    outOfDomain_ = false;
    Drawn drawn;
    DoubleAlgebra algebra;
    Doubles interpreter(stage_, reduced_, algebra);
    interpreter.run([&](std::int32_t tensor, std::int64_t index) {
      const double value = inputValue(tensor, index, trial.values.size(), supply, drawn);
      trial.elements.push_back({tensor, index});
      trial.values.push_back(value);
      return value;
    });
    if (interpreter.droppedAssumption() || outOfDomain_)
      return false;  // the values might not be ones that the assumed lineage allows
    // Lineage says nothing of a local element where the model has no value: there it has one that
    // is not known here. And a number that a double cannot hold is no number that does not exist.
    undefinedCounts =
        undefinedCounts && !algebra.outOfRange() &&
        std::none_of(stage_.assumptions.begin(), stage_.assumptions.end(), [&](const Equation& e) {
          const auto& values = interpreter.value(e.logical).data;
          return std::any_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
        });
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < interpreter.pairs().size(); ++i) {
      const auto& p = interpreter.pairs()[i];
      if (std::isnan(p.logical)) continue;  // the model itself is undefined here
      if (std::isnan(p.parallel) ? undefinedCounts : p.logical != p.parallel)
        candidates.push_back({i, p.logical, p.parallel});
    }
    for (std::uint64_t seed = 1; seed <= kNoisyRuns && !candidates.empty(); ++seed) {
      DoubleAlgebra noisy(seed * 0x9E3779B97F4A7C15ULL);
      Doubles again(stage_, reduced_, noisy);
      std::size_t next = 0;
      again.run([&](std::int32_t tensor, std::int64_t) {
        const double value = trial.values[next++];
        return known_.size(tensor) == 0 ? value : noisy.approximation(value, known_.size(tensor));
      });
      if (noisy.decisions() != algebra.decisions()) {
        refusal_ =
            "the sides differ only where some threshold or choice is a tie, or where what is "
            "divided by vanishes";
        return false;
      }
      std::erase_if(candidates, [&](const Candidate& c) {
        return !staysDifferent(c, again.pairs()[c.pair].logical, again.pairs()[c.pair].parallel);
      });
    }
    for (std::uint64_t seed = 1; seed <= kMovedRuns && !candidates.empty(); ++seed) {
      std::mt19937_64 random(seed);
      DoubleAlgebra beside;
      Doubles again(stage_, reduced_, beside);
      std::size_t next = 0;
      again.run([&](std::int32_t tensor, std::int64_t) {
        const double value = trial.values[next++];
        return isInteger(tensor) || known_.isNumberOf(tensor) || known_.size(tensor) != 0
                   ? value
                   : value * (1 + kMove * (static_cast<double>(random() >> 11) * 0x1p-52 - 1));
      });
      std::erase_if(candidates, [&](const Candidate& c) {
        return !staysDifferent(c, again.pairs()[c.pair].logical, again.pairs()[c.pair].parallel);
      });
    }
    for (const Candidate& c : candidates) {
      const auto& p = interpreter.pairs()[c.pair];
      if (trial.claims.insert(static_cast<std::int32_t>(p.claim)).second &&
          trial.claims.size() == 1) {
        trial.claim = static_cast<std::int32_t>(p.claim);
        trial.logicalIndex = p.logicalIndex;
        trial.logical = p.logical + 0.0;  // minus zero is zero
        trial.parallel = p.parallel + 0.0;
        trial.pair = c.pair;
      }
    }
    return !trial.claims.empty();
  }

  struct Candidate {
    std::size_t pair;
    double logical, parallel;
  };

  // Is the difference the same with noise as without? Were both sides equal, the noise would make a
  // difference of its own that is thousands of times larger than the one that rounding made.
  static bool staysDifferent(const Candidate& c, double logical, double parallel) {
    if (std::isnan(logical)) return false;
    if (!std::isfinite(c.logical) || !std::isfinite(c.parallel)) {
      const auto same = [](double x, double y) {
        return std::isnan(x) ? std::isnan(y) : std::isinf(x) ? x == y : std::isfinite(y);
      };
      return same(c.logical, logical) && same(c.parallel, parallel);
    }
    const double gap = c.logical - c.parallel;
    return std::abs((logical - parallel) - gap) <= kSteady * std::abs(gap);
  }

  // First on the smallest image of the stage, then on the one that the proof was tried on, which
  // tells more positions apart.
  bool refuteInNumbers() {
    Stopwatch watch(outcome_.seconds["refute"]);
    const ReductionOptions proof = reductionOptions_;
    ReductionOptions smallest;
    smallest.numbersOnly = smallest.knownInputs = true;
    if (refuteOn(smallest)) return true;
    ReductionOptions numbers = proof;
    numbers.knownInputs = true;
    if (reducedForProof_ && refuteOn(numbers)) return true;
    if (reducedForProof_) reduceAgain(proof);
    return false;
  }

  bool refuteOn(const ReductionOptions& options) {
    reduceAgain(options);
    Trial trial;
    if (!searchDifference(trial)) return false;
    if (reduced_.reducesAbsolute) {
      // The dimension is kept whole to confirm what was found with another mask, or nothing is
      // refuted.
      try {
        reduceWhole(options);
      } catch (const Unsupported&) {
        // Not a refutation of this stage, but reason enough not to look for a proof: the end-to-end
        // evaluation decides.
        outcome_.shortenedMask = true;
        throw Unsupported(
            "the sides differ with a shortened causal mask (or table of known numbers); at full "
            "length the stage is too large to confirm it");
      }
      if (!searchDifference(trial)) return false;
    }
    accept(trial, Method::kNumeric);
    return true;
  }

  // From end to end: which of the claims differ? Reported as refuted when any does.
  void evaluateEndToEnd() {
    Stopwatch watch(outcome_.seconds["refute"]);
    ReductionOptions options;
    options.numbersOnly = options.knownInputs = true;
    reduceAgain(options);
    std::optional<Trial> trial = searchClaims();
    outcome_.reason = kNoDifferenceFound;
    if (!anyOutput(differing_)) {
      // More positions kept apart show more, where they can be afforded; otherwise it is not known
      // whether there is a difference.
      options.numbersOnly = false;
      try {
        reduceAgain(options);
        expectAffordable();
        if (auto more = searchClaims()) trial = std::move(more);
      } catch (const Unsupported& tooLarge) {
        outcome_.reason = tooLarge.what();
      }
    }
    outcome_.shortenedMask = anyOutput(differing_) && reduced_.reducesAbsolute;
    if (outcome_.shortenedMask && options_.wholeMasks) {
      const std::set<std::int32_t> before = differing_;
      try {
        reduceWhole(options);
        outcome_.shortenedMask = false;
        std::erase_if(differing_, [&](std::int32_t c) { return isOutput(c); });
        if (auto exact = searchClaims()) trial = std::move(exact);
      } catch (const Unsupported&) {
        differing_ = before;
      }
    }
    if (!trial || differing_.empty()) return;
    outcome_.reason.clear();
    std::set<std::int32_t> entries;
    for (const std::int32_t c : differing_)
      entries.insert(stage_.claims[static_cast<std::size_t>(c)].entry);
    outcome_.differingEntries.assign(entries.begin(), entries.end());
    outcome_.verdict = StageVerdict::kRefuted;
    outcome_.method = Method::kNumeric;
  }

  bool isOutput(std::int32_t claim) const {
    return stage_.claims[static_cast<std::size_t>(claim)].output;
  }
  bool anyOutput(const std::set<std::int32_t>& claims) const {
    return std::any_of(claims.begin(), claims.end(), [&](std::int32_t c) { return isOutput(c); });
  }

  // Adds the claims that differ in some attempt; the first such attempt, if any.
  std::optional<Trial> searchClaims() {
    // From end to end, exponentials overflow with all but small values.
    constexpr int kSmallFirst[] = {3, 4, 7, 2, 0, 1, 5, 6};
    constexpr int kMostFound =
        3;  // attempts for claims that only some inputs refute, and their time
    constexpr double kEnoughSeconds = 0.5,
                     kMostSeconds = 4;  // ... once an output differs, and when none does
    std::optional<Trial> first;
    int found = 0;
    const auto start = std::chrono::steady_clock::now();
    constexpr int kRounds = 3;  // of these, while they cost little: a choice among experts may
                                // differ for few inputs only
    constexpr double kLittleSeconds = 0.5;
    for (int i = 0; i < kRounds * static_cast<int>(std::size(kSmallFirst)); ++i) {
      const int period = static_cast<int>(std::size(kSmallFirst)),
                k = kSmallFirst[i % period] + i / period * period;
      if (i >= period &&
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >
              kLittleSeconds)
        break;
      Trial trial;
      const bool differs = attemptAtRandom(k, trial);
      const double elapsed =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (differs) {
        differing_.insert(trial.claims.begin(), trial.claims.end());
        if (!first) first = std::move(trial);
        if (anyOutput(differing_) &&
            (options_.wholeMasks || ++found == kMostFound || elapsed > kEnoughSeconds))
          break;  // whole masks only confirm
      }
      if (elapsed > kMostSeconds) break;
    }
    return first;
  }

  void reduceAgain(const ReductionOptions& options) {
    reduced_ = reduceStage(stage_, options);
    reductionOptions_ = options;
  }

  void reduceWhole(ReductionOptions options) {
    options.keepAbsolute = true;
    options.maxElements = options_.endToEnd ? kMostConfirmedElements : kMostStageElements;
    reduceAgain(options);
    expectAffordable();
  }
  // From end to end a difference decides; of one stage it is a hint, and not worth as much.
  void expectAffordable() const {
    const bool whole = options_.endToEnd && options_.wholeMasks;
    if (static_cast<double>(totalElements()) > (whole ? kMostConfirmedTotal : kMostStageTotal) ||
        reduced_.largestIteration > (whole ? kMostConfirmedIteration : kMostStageIteration)) {
      throw Unsupported("too many elements to be evaluated in numbers");
    }
  }

  std::int64_t totalElements() const {
    std::int64_t total = 0;
    for (const auto& dims : reduced_.dims) {
      std::int64_t elements = 1;
      for (const ops::ReducedDim* d : dims) elements *= d->size();
      total += elements;
    }
    return total;
  }

  // One evaluation of the smallest image, which costs little next to the terms of a large stage.
  bool differsAtFirstSight() {
    Stopwatch watch(outcome_.seconds["refute"]);
    const ReductionOptions proof = reductionOptions_;
    ReductionOptions smallest;
    smallest.numbersOnly = true;  // of known numbers the first ones: it only is a first sight
    reduceAgain(smallest);
    Trial trial;
    const bool differs = attemptAtRandom(kSmallAttempt, trial);
    reduceAgain(proof);
    return differs;
  }

  bool attemptAtRandom(int k, Trial& trial) {
    std::mt19937_64 random(0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(k));
    return attempt(
        [&](std::int32_t tensor, std::int64_t, std::size_t) {
          if (isInteger(tensor) || known_.isNumberOf(tensor))
            return static_cast<double>(drawIndex(random, tensor, k));
          // From end to end small means: as large as what training starts from, so that nothing
          // saturates or drowns in an epsilon.
          const double value = drawReal(random, k, options_.endToEnd || k >= kGridAttempts);
          return options_.endToEnd && tiny(k) ? value / kTiny / fanIn(tensor) : value;
        },
        trial, tiny(k));
  }

  // What a product with this tensor sums over, where it is a matrix of parameters: its last
  // dimension. (Reduced positions repeat, so sums grow with their length, not with its root.)
  double fanIn(std::int32_t t) const {
    const StageTensor& tensor = stage_.tensors[static_cast<std::size_t>(t)];
    const bool matrix = tensor.kind == TensorKind::kParameter && tensor.info.shape.size() > 1;
    return matrix ? static_cast<double>(std::max<std::int64_t>(1, tensor.info.shape.back())) : 1;
  }

  bool searchDifference(Trial& trial) {
    constexpr int kAttempts = 10;
    for (int k = 0; k < kAttempts; ++k) {
      if (attemptAtRandom(k, trial)) return true;
    }
    refusal_ = kNoDifferenceFound;
    return false;
  }

  void accept(const Trial& trial, Method method) {
    outcome_.verdict = StageVerdict::kRefuted;
    outcome_.method = method;
    outcome_.claim = trial.claim;
    Counterexample example;
    example.logical = trial.logical;
    example.parallel = trial.parallel;
    example.element = elementName(stage_.claims[static_cast<std::size_t>(trial.claim)].logical,
                                  trial.logicalIndex);
    listAssignment(trial, example);
    outcome_.counterexample = std::move(example);
  }

  // Lists only the inputs that the differing element depends on: those whose change changes either
  // side.
  void listAssignment(const Trial& trial, Counterexample& example) {
    std::vector<std::size_t> relevant;
    if (trial.values.size() <= kMostProbed) {
      for (std::size_t i = 0; i < trial.values.size(); ++i) {
        if (matters(trial, i)) relevant.push_back(i);
      }
    }
    if (relevant.empty()) {
      relevant.resize(trial.values.size());
      for (std::size_t i = 0; i < relevant.size(); ++i) relevant[i] = i;
    }
    for (const std::size_t i : relevant) {
      if (example.assignment.size() == kShownAssignments) break;
      example.assignment.push_back(
          {elementName(trial.elements[i].tensor, trial.elements[i].index), trial.values[i]});
    }
    example.omitted = relevant.size() - example.assignment.size();
  }
  static constexpr std::size_t kMostProbed = 400;

  bool matters(const Trial& trial, std::size_t input) {
    DoubleAlgebra algebra;
    Doubles interpreter(stage_, reduced_, algebra);
    std::size_t next = 0;
    interpreter.run([&](std::int32_t tensor, std::int64_t) {
      const std::size_t i = next++;
      double value = trial.values[i];
      if (i == input)
        value = isInteger(tensor)
                    ? value - 1
                    : value * 1.5 + (value < 0 ? -0.25 : 0.25);  // another value, whatever it was
      return value;
    });
    const auto& p = interpreter.pairs()[trial.pair];
    return p.logical != trial.logical || p.parallel != trial.parallel;
  }

  // ---- polynomial form

  // Expanding multiplies summands together: a monomial of k factors may involve k times as many
  // positions of a piece as one summand. So many must be kept apart before the identity says
  // something about the full size.
  bool proveExpanded(TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& unequal) {
    if (!expandedEqual(algebra, unequal)) return false;
    const int extra = extraPositionsFor(unequal, algebra, stage_, reduced_);
    if (extra > reductionOptions_.extraPositions) {
      if (extra > kMostExtraPositions) {
        refusal_ = "the expanded form multiplies more factors than positions can be kept apart";
        return false;
      }
      const ReductionOptions before = reductionOptions_;
      try {
        ReductionOptions wider = before;
        wider.extraPositions = extra;
        reduce(wider);
        TermAlgebra fresh(TermAlgebra::Mode::kNormalized, mostTerms(options_.memoryMegabytes));
        Terms again(stage_, reduced_, fresh);
        execute(again, fresh);
        const auto left = differing(again);
        if (!expandedEqual(fresh, left) || extraPositionsFor(left, fresh, stage_, reduced_) > extra)
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

  bool expandedEqual(TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& unequal) {
    Stopwatch watch(outcome_.seconds["expand"]);
    const auto start = std::chrono::steady_clock::now();
    try {
      return std::all_of(unequal.begin(), unequal.end(), [&](const auto& p) {
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >
            kExpansionShare * options_.timeoutSeconds)
          throw Unsupported("expanding the terms takes too long");
        return algebra.expand(p.first, kExpansionBudget) ==
               algebra.expand(p.second, kExpansionBudget);
      });
    } catch (const Unsupported& error) {
      refusal_ = error.what();
      return false;
    }
  }

  // ---- solver

  void solve(Obligation& obligation) {
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
          askByDomain(obligation.terms, asked, options_.timeoutSeconds * kSolverShare,
                      [&](const std::vector<std::pair<Term, Term>>& some, unsigned milliseconds) {
                        return findDifference(obligation.terms, some, milliseconds,
                                              static_cast<unsigned>(options_.memoryMegabytes));
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
            [&](std::int32_t tensor, std::int64_t, std::size_t i) {
              const auto it = result.model.find(static_cast<std::uint32_t>(i));
              const double value = it == result.model.end() ? 1.0 : it->second;
              if (!isInteger(tensor)) return value;
              // An index that stands for many table rows is no index.
              const auto& values = reduced_.values[static_cast<std::size_t>(tensor)];
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
      outcome_.reason = "Z3 finds a difference only for other functions than the real ones";
      if (unequal && refuteInNumbers()) return;
    } else {
      outcome_.reason = result.reason;
      if (unequal && options_.checker == Checker::kZ3 && refuteInNumbers()) return;
    }
    if (dropped_) outcome_.reason += "; assumed lineage that is over-determined was left out";
    if (!refusal_.empty()) outcome_.reason += (outcome_.reason.empty() ? "" : "; ") + refusal_;
  }

  // ---- names

  std::string elementName(std::int32_t t, std::int64_t index) const {
    return shardproof::elementName(stage_, reduced_, t, index);
  }

  void describeShapes() {
    outcome_.reducedShapes.clear();
    for (auto& [t, name] : shownTensors(stage_)) {
      ReducedShape shape{
          std::move(name), stage_.tensors[static_cast<std::size_t>(t)].info.shape, {}};
      for (const ops::ReducedDim* d : reduced_.dims[static_cast<std::size_t>(t)])
        shape.reduced.push_back(d->size());
      outcome_.reducedShapes.push_back(std::move(shape));
    }
  }

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

}  // namespace

std::vector<std::pair<std::int32_t, std::string>> shownTensors(const Stage& stage) {
  constexpr std::size_t kMostShown = 64;  // a message, not an archive
  std::vector<std::pair<std::int32_t, std::string>> shown;
  std::unordered_set<std::string> seen;
  for (std::size_t t = 0; t < stage.tensors.size() && shown.size() < kMostShown; ++t) {
    const StageTensor& tensor = stage.tensors[t];
    const std::string name =
        (tensor.logical ? "" : "local ") + tensorName(stage, static_cast<std::int32_t>(t));
    if (seen.insert(name).second) shown.emplace_back(static_cast<std::int32_t>(t), name);
  }
  return shown;
}

StageOutcome checkStage(const Stage& stage, const CheckOptions& options) {
  return StageChecker(stage, options).run();
}

}  // namespace shardproof
