// SPDX-License-Identifier: Apache-2.0
// One evaluation of both sides of a reduced stage, over fingerprints and in doubles. Neither proves
// anything. A difference in doubles counts only when noise on every result that may have been
// rounded, thousands of times larger than rounding, and a small move of the inputs leave it as it
// is; values are tiny, beside ties, and such as are known of the inputs (docs/soundness.md,
// "Fingerprints and doubles").
#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "refute/stage_refuter.h"
#include "util/stopwatch.h"

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
constexpr std::size_t kShownAssignments = 40;

}  // namespace

bool StageRefuter::fingerprintsDiffer(const ReducedStage& reduced) {
  Stopwatch watch(outcome_.seconds["check"]);
  reduced_ = &reduced;
  try {
    ModularAlgebra algebra;
    StageInterpreter<ops::Residues> interpreter(stage_, reduced, algebra);
    std::mt19937_64 random(0x5eed);
    interpreter.run([&](StageTensorId tensor, std::int64_t) {
      return ops::Residue{isInteger(tensor) ? residue(drawIndex(random, tensor, 1))
                                            : random() % ModularAlgebra::kPrime,
                          false};
    });
    return std::any_of(interpreter.pairs().begin(), interpreter.pairs().end(),
                       [](const auto& p) { return !(p.logical == p.parallel); });
  } catch (const Unsupported&) {
    return true;
  }
}

std::optional<ClaimedElement> StageRefuter::withoutValue(const ReducedStage& reduced,
                                                         std::set<ClaimedElement> elements) {
  constexpr int kMostDraws = 64;
  reduced_ = &reduced;
  for (int k = 0; k < kMostDraws && !elements.empty(); ++k) {
    std::mt19937_64 random(0xD1B54A32D192ED03ULL + static_cast<std::uint64_t>(k));
    DoubleAlgebra algebra;
    Doubles interpreter(stage_, reduced, algebra);
    interpreter.run([&](StageTensorId tensor, std::int64_t) {
      return isInteger(tensor) ? static_cast<double>(drawIndex(random, tensor, k))
                               : drawReal(random, k, true);
    });
    for (const auto& pair : interpreter.pairs()) {
      if (!std::isnan(pair.logical)) elements.erase({pair.claim, pair.logicalIndex});
    }
  }
  if (elements.empty()) return std::nullopt;
  return *elements.begin();
}

bool StageRefuter::refuteAt(const ReducedStage& reduced,
                            const std::map<std::uint32_t, double>& values) {
  // A solver knows nothing of masks that are not whole, nor of known inputs.
  if (reduced.reducesAbsolute || known_.any()) return false;
  reduced_ = &reduced;
  Trial trial;
  const bool differs = attempt(
      [&](StageTensorId tensor, std::int64_t, std::size_t i) {
        const auto it = values.find(static_cast<std::uint32_t>(i));
        const double value = it == values.end() ? 1.0 : it->second;
        if (!isInteger(tensor)) return value;
        // An index that stands for many table rows is no index.
        const auto& indices = reduced.values[tensor];
        if (std::find(indices.begin(), indices.end(), static_cast<std::int64_t>(value)) !=
            indices.end())
          return value;
        return indices.empty() ? 0.0 : static_cast<double>(indices.front());
      },
      trial, false);
  if (differs) accept(trial, Method::kSolver);
  return differs;
}

double StageRefuter::drawReal(std::mt19937_64& random, int attempt, bool offGrid) {
  double magnitude = static_cast<double>(1 + random() % 32) / 16.0;
  if (offGrid) magnitude += (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) / 32.0;
  const double scale = tiny(attempt) ? kTiny : attempt % 4 == 2 ? 0.125 : 1.0;
  const bool negative = attempt % 2 == 0 && random() % 2 == 0;
  return (negative ? -magnitude : magnitude) * scale;
}

std::int64_t StageRefuter::drawIndex(std::mt19937_64& random, StageTensorId tensor, int attempt) {
  const auto index = known_.drawInteger(*reduced_, tensor, random, attempt % 2 != 0);
  outOfDomain_ = outOfDomain_ || !index;
  return index.value_or(0);
}

double StageRefuter::inputValue(StageTensorId tensor, std::int64_t index, std::size_t i,
                                const Supply& supply, Drawn& drawn) const {
  if (const auto number = known_.number(*reduced_, tensor, index)) return *number;
  const auto integer = [&](StageTensorId of) {
    const auto [it, added] = drawn.try_emplace({of, index}, 0);
    if (added) it->second = supply(of, index, i);
    return it->second;
  };
  if (known_.isNumberOf(tensor)) {
    const StageTensor& t = stage_.tensors[tensor];
    const StageTensorId of = knownSource(stage_, t);
    return integer(of < 0 ? tensor : of) + static_cast<double>(t.known->plus);
  }
  return isInteger(tensor) ? integer(tensor) : supply(tensor, index, i);
}

bool StageRefuter::attempt(const Supply& supply, Trial& trial, bool undefinedCounts) {
  trial = {};
  outOfDomain_ = false;
  Drawn drawn;
  DoubleAlgebra algebra;
  algebra.recordDecisions();
  Doubles interpreter(stage_, *reduced_, algebra);
  interpreter.run([&](StageTensorId tensor, std::int64_t index) {
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
    noisy.follow(algebra);
    Doubles again(stage_, *reduced_, noisy);
    std::size_t next = 0;
    again.run([&](StageTensorId tensor, std::int64_t) {
      const double value = trial.values[next++];
      return known_.size(tensor) == 0 ? value : noisy.approximation(value, known_.size(tensor));
    });
    if (noisy.strayed()) candidates.clear();
    // What wavered has no value in this evaluation, which would pass for a plan that has none.
    std::erase_if(candidates, [&](const Candidate& c) {
      return (noisy.wavered() && std::isnan(c.parallel)) ||
             !staysDifferent(c, again.pairs()[c.pair].logical, again.pairs()[c.pair].parallel);
    });
    if (candidates.empty() && noisy.wavered())
      refusal_ =
          "the sides differ only where some threshold or choice is a tie, or where what is "
          "divided by vanishes";
  }
  for (std::uint64_t seed = 1; seed <= kMovedRuns && !candidates.empty(); ++seed) {
    std::mt19937_64 random(seed);
    DoubleAlgebra beside;
    Doubles again(stage_, *reduced_, beside);
    std::size_t next = 0;
    again.run([&](StageTensorId tensor, std::int64_t) {
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

bool StageRefuter::staysDifferent(const Candidate& c, double logical, double parallel) {
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

void StageRefuter::accept(const Trial& trial, Method method) {
  outcome_.refutedBy = method;
  outcome_.claim = trial.claim;
  Counterexample example;
  example.logical = trial.logical;
  example.parallel = trial.parallel;
  example.element = elementName(stage_.claims[trial.claim].logical, trial.logicalIndex);
  listAssignment(trial, example);
  outcome_.counterexample = std::move(example);
}

void StageRefuter::listAssignment(const Trial& trial, Counterexample& example) {
  std::vector<std::size_t> relevant;
  const std::size_t count = trial.values.size();
  std::size_t probed = count;
  if (count <= kMostProbed) probed = findRelevant(trial, relevant);
  if (relevant.empty()) {
    probed = std::min(count, kShownAssignments);
    relevant.resize(probed);
    for (std::size_t i = 0; i < probed; ++i) relevant[i] = i;
  }
  for (const std::size_t i : relevant)
    example.assignment.push_back(
        {elementName(trial.elements[i].tensor, trial.elements[i].index), trial.values[i]});
  example.omitted = count - probed;
}

std::size_t StageRefuter::findRelevant(const Trial& trial, std::vector<std::size_t>& relevant) {
  // Of values that do not matter most have neighbours that do not, either.
  constexpr std::size_t kBlock = 8;
  const std::size_t count = trial.values.size();
  for (std::size_t from = 0; from < count; from += kBlock) {
    const std::size_t to = std::min(count, from + kBlock);
    if (!matter(trial, from, to)) continue;
    for (std::size_t i = from; i < to; ++i) {
      if (relevant.size() == kShownAssignments) return i;
      if (matter(trial, i, i + 1)) relevant.push_back(i);
    }
  }
  return count;
}

bool StageRefuter::matter(const Trial& trial, std::size_t from, std::size_t to) {
  DoubleAlgebra algebra;
  Doubles interpreter(stage_, *reduced_, algebra);
  std::size_t next = 0;
  interpreter.run([&](StageTensorId tensor, std::int64_t) {
    const std::size_t i = next++;
    double value = trial.values[i];
    if (from <= i && i < to)
      value = isInteger(tensor)
                  ? value - 1
                  : value * 1.5 + (value < 0 ? -0.25 : 0.25);  // another value, whatever it was
    return value;
  });
  const auto& p = interpreter.pairs()[trial.pair];
  return p.logical != trial.logical || p.parallel != trial.parallel;
}

bool StageRefuter::attemptAtRandom(int k, Trial& trial) {
  std::mt19937_64 random(0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(k));
  return attempt(
      [&](StageTensorId tensor, std::int64_t, std::size_t) {
        if (isInteger(tensor) || known_.isNumberOf(tensor))
          return static_cast<double>(drawIndex(random, tensor, k));
        // From end to end small means: as large as what training starts from, so that nothing
        // saturates or drowns in an epsilon.
        const double value = drawReal(random, k, endToEnd_.has_value() || k >= kGridAttempts);
        return endToEnd_.has_value() && tiny(k) ? value / kTiny / fanIn(tensor) : value;
      },
      trial, tiny(k));
}

double StageRefuter::fanIn(StageTensorId t) const {
  const StageTensor& tensor = stage_.tensors[t];
  const bool matrix = tensor.kind == TensorKind::kParameter && tensor.info.shape.size() > 1;
  return matrix ? static_cast<double>(std::max<std::int64_t>(1, tensor.info.shape.back())) : 1;
}

bool StageRefuter::differsAtFirstSight() {
  Stopwatch watch(outcome_.seconds["refute"]);
  ReductionOptions smallest;
  smallest.numbersOnly = true;  // of known numbers the first ones: it only is a first sight
  reduceTo(smallest);
  Trial trial;
  return attemptAtRandom(kSmallAttempt, trial);
}

bool StageRefuter::searchDifference(Trial& trial) {
  constexpr int kAttempts = 10;
  for (int k = 0; k < kAttempts; ++k) {
    if (attemptAtRandom(k, trial)) return true;
  }
  refusal_ = kNoDifferenceFound;
  return false;
}

}  // namespace shardproof
