// SPDX-License-Identifier: Apache-2.0
#include "unreduced/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "shardproof/error.h"
#include "unreduced/binding.h"
#include "unreduced/evaluator.h"
#include "unreduced/integer_ranges.h"

namespace shardproof::unreduced {

namespace {

constexpr std::uint64_t kNoisyRuns = 3, kMovedRuns = 2;
constexpr double kSteady = 1.0 / 8;  // what noise may change of a difference that is one
constexpr double kRounding = 1e-9;   // relative; below it nobody asks for the cause
constexpr double kMove = 0x1p-10;
constexpr double kFieldShare = 0.35;  // of the time

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {  // splitmix64's finaliser
  h += v + 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

double unit(std::uint64_t h) { return static_cast<double>(h >> 11) * 0x1p-53; }  // [0, 1)

// How free reals are drawn.
struct Draw {
  double scale;
  bool positive;
  std::uint64_t moved = 0;  // another number moves them a little
};

// Signed values; positive ones, at which roots and logarithms are defined; small ones, at which
// nothing overflows.
constexpr Draw kDraws[] = {{0.25, false}, {1.0 / 16, true}, {1.0 / 256, true}};

class Sampler {
 public:
  Sampler(const Stage& stage, const SampleOptions& options)
      : stage_(stage), options_(options), binding_(stage), bounds_(integerBounds(stage)) {}

  SampleOutcome run() {
    choosePositions();
    outcome_.asked = static_cast<int>(places_.size());
    std::vector<char> agreed(places_.size(), 0), open(places_.size(), 1);
    until_ = start_ + options_.seconds * kFieldShare;
    const auto field = residues(0, open);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      places_[i].sameInField = field[i].known && field[i].logical == field[i].parallel;
      if (field[i].undefinedInPlan && !binding_.overdetermined() && dividesByZero(i)) {
        outcome_.difference = {places_[i].claim, nameOf(places_[i].logical),
                               doubles(kDraws[0], 0, open)[i].logical,
                               std::numeric_limits<double>::quiet_NaN()};
        return std::move(outcome_);
      }
    }
    until_ = start_ + options_.seconds;
    for (const Draw& draw : kDraws) {
      const bool smallest = draw.scale == kDraws[2].scale;
      for (std::size_t i = 0; i < open.size(); ++i) open[i] = !smallest || !agreed[i];
      const auto values = doubles(draw, 0, open);
      for (std::size_t i = 0; i < values.size() && !outcome_.difference; ++i)
        judge(i, values[i], draw, smallest, agreed[i]);
      if (outcome_.difference) return std::move(outcome_);
    }
    for (std::size_t i = 0; i < places_.size(); ++i) {
      outcome_.agreed += agreed[i];
      outcome_.agreedInField += agreed[i] && places_[i].sameInField;
    }
    if (outcome_.agreed == outcome_.asked) outcome_.reason.clear();
    else if (outcome_.reason.empty())
      outcome_.reason = binding_.overdetermined() ? "assumed lineage is over-determined"
                                                  : "the model is not defined at the values drawn";
    return std::move(outcome_);
  }

 private:
  // One element that a claim speaks of.
  struct Place {
    std::int32_t claim;
    ElementOf logical;
    std::vector<std::pair<ElementOf, std::int64_t>> parts;
    bool sameInField = false;
  };
  template <class A>
  struct Values {
    bool known = false;
    bool undefinedInPlan =
        false;  // in the prime field: the plan divides by zero, the model does not
    typename A::Element logical{}, parallel{};
  };

  void choosePositions() {
    std::mt19937_64 random(mix(options_.seed, 0x706f73));
    std::vector<std::int32_t> claims(stage_.claims.size());
    for (std::size_t c = 0; c < claims.size(); ++c) claims[c] = static_cast<std::int32_t>(c);
    for (std::size_t c = claims.size(); c > 1; --c) std::swap(claims[c - 1], claims[random() % c]);
    for (int i = 0; i < options_.positions && !claims.empty(); ++i) {
      const std::int32_t c = claims[at(i) % claims.size()];
      const Equation& e = stage_.claims[c];
      const StageTensor& tensor = stage_.tensors[e.logical];
      const Shape& shape = tensor.info.shape;
      const Index planes = tensor.info.element == ElementKind::kComplex ? 2 : 1,
                  plane = static_cast<Index>(random() % at(planes));
      Position whole(shape.size()), inside(shape.size());
      for (std::size_t d = 0; d < shape.size(); ++d) {
        inside[d] = choose(random, e.box[d].first, e.box[d].second) - e.box[d].first;
        whole[d] = e.box[d].first + inside[d];
      }
      Place place{c, {e.logical, ravel(shape, whole) * planes + plane}, {}};
      for (const auto& [local, weight] : e.parts) {
        place.parts.emplace_back(
            ElementOf{local, ravel(stage_.tensors[local].info.shape, inside) * planes + plane},
            weight);
      }
      const auto same = [&](const Place& p) {
        return p.claim == place.claim && p.logical == place.logical;
      };
      if (std::none_of(places_.begin(), places_.end(), same)) places_.push_back(std::move(place));
    }
  }

  // Ends are where boxes are off by one; rows of a table are looked at where tokens are.
  Index choose(std::mt19937_64& random, Index lo, Index hi) const {
    const std::uint64_t kind = random() % 8;
    if (kind == 0) return lo;
    if (kind == 1) return hi - 1;
    if (kind < 5) {
      std::vector<Index> tokens;
      for (const Index bound : bounds_) {
        if (bound < hi) continue;
        for (const Index v : integersBelow(bound)) {
          if (v >= lo && v < hi) tokens.push_back(v);
        }
        break;
      }
      if (!tokens.empty()) return tokens[random() % tokens.size()];
    }
    return lo + static_cast<Index>(random() % static_cast<std::uint64_t>(hi - lo));
  }

  bool isInteger(ElementOf e) const {
    return stage_.tensors[e.tensor].info.element == ElementKind::kInteger;
  }
  std::uint64_t hash(ElementOf e) const {
    return mix(mix(options_.seed, static_cast<std::uint64_t>(e.tensor)),
               static_cast<std::uint64_t>(e.flat));
  }
  Index integer(ElementOf e) {
    auto& values = integers_[bounds_[e.tensor]];
    if (values.empty()) values = integersBelow(bounds_[e.tensor]);
    return values[hash(e) % values.size()];
  }
  std::vector<Values<ModularAlgebra>> residues(std::uint64_t draw, const std::vector<char>& open) {
    return evaluate(
        ModularAlgebra(),
        [&](ElementOf e) {
          return ModularAlgebra::Element{isInteger(e) ? static_cast<std::uint64_t>(integer(e))
                                                      : mix(hash(e), draw) % ModularAlgebra::kPrime,
                                         false};
        },
        open);
  }
  // What is zero for all reals is zero in the prime field, where doubles see what rounding leaves
  // of it. The other way round it need not be: the order of residues and their roots are not those
  // of reals, but then it is zero for some draws only.
  bool dividesByZero(std::size_t i) {
    constexpr std::uint64_t kFieldDraws = 16;
    std::vector<char> only(places_.size(), 0);
    only[i] = 1;
    for (std::uint64_t draw = 1; draw <= kFieldDraws; ++draw) {
      if (!residues(draw, only)[i].undefinedInPlan) return false;
    }
    return true;
  }
  double real(ElementOf e, const Draw& draw) {
    if (isInteger(e)) return static_cast<double>(integer(e));
    const std::uint64_t h = hash(e);
    double x = (0.5 + unit(mix(h, 1))) * draw.scale;
    if (draw.moved != 0) x += x * kMove * (2 * unit(mix(h, draw.moved)) - 1);
    return !draw.positive && (h & 1) != 0 ? -x : x;
  }

  // Both sides at each open place: first those that are made from few elements, then as many of the
  // others as still fit. What cannot be evaluated stays unknown.
  template <class A, class F>
  std::vector<Values<A>> evaluate(A algebra, F&& supply, const std::vector<char>& open) {
    std::vector<Values<A>> values(places_.size());
    Evaluator<A> evaluator(stage_, binding_, algebra, supply);
    std::uint64_t left = options_.mostElements;
    std::vector<std::size_t> todo;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (open[i]) todo.push_back(i);
    }
    const std::uint64_t few = left / (2 * std::max<std::size_t>(1, todo.size()));
    for (const bool whatIsLeft : {false, true}) {
      std::vector<std::size_t> unfinished;
      for (const std::size_t i : todo) {
        const std::uint64_t allowed = whatIsLeft ? left : std::min(left, few);
        if (allowed == 0 || processorSeconds() > until_) break;
        evaluator.allow(allowed, until_);
        if (!evaluateAt(evaluator, places_[i], values[i])) unfinished.push_back(i);
        left -= allowed - evaluator.left();
      }
      todo = std::move(unfinished);
    }
    return values;
  }

  // False: not with so many elements.
  template <class A>
  bool evaluateAt(Evaluator<A>& evaluator, const Place& place, Values<A>& values) {
    bool inPlan = false;
    const auto leave = [&](const std::exception& error) {
      evaluator.recover();
      if (outcome_.reason.empty()) outcome_.reason = error.what();
    };
    try {
      Values<A> v;
      v.logical = evaluator.element(place.logical.tensor, place.logical.flat);
      inPlan = true;
      std::vector<typename A::Element> parts;
      std::vector<std::int64_t> weights;
      for (const auto& [part, weight] : place.parts) {
        parts.push_back(evaluator.element(part.tensor, part.flat));
        weights.push_back(weight);
      }
      v.parallel =
          parts.size() == 1 && weights[0] == 1 ? parts[0] : evaluator.algebra().sum(parts, weights);
      v.known = true;
      values = v;
    } catch (const TooMuch& error) {
      leave(error);
      return false;
    } catch (const Undefined& error) {
      values.undefinedInPlan = inPlan;
      leave(error);
    } catch (const Unsupported& error) {
      leave(error);
    }
    return true;
  }

  std::vector<Values<DoubleAlgebra>> doubles(const Draw& draw, std::uint64_t noise,
                                             const std::vector<char>& open) {
    return evaluate(
        noise == 0 ? DoubleAlgebra() : DoubleAlgebra(noise),
        [&](ElementOf e) { return real(e, draw); }, open);
  }

  static bool masked(double x) { return x == -std::numeric_limits<double>::infinity(); }
  // Minus infinity is a value: the entry of a mask. Anything else that is not finite is none.
  static bool defined(double x) { return std::isfinite(x) || masked(x); }

  void judge(std::size_t i, const Values<DoubleAlgebra>& v, const Draw& draw, bool smallest,
             char& agreed) {
    if (!v.known || !defined(v.logical)) return;
    if (!defined(v.parallel)) {
      if (!smallest) return;  // with larger values it may be overflow
    } else if (masked(v.logical) || masked(v.parallel)) {
      if (v.logical == v.parallel) {
        agreed = 1;
        return;
      }
    } else if (std::abs(v.logical - v.parallel) <=
               kRounding * (std::abs(v.logical) + std::abs(v.parallel))) {
      agreed = 1;
      return;
    }
    if (binding_.overdetermined()) return;
    if (!stays(i, v, draw)) {
      agreed = agreed ||
               (std::isfinite(v.logical) && std::isfinite(v.parallel));  // no more than rounding
      return;
    }
    outcome_.difference = {places_[i].claim, nameOf(places_[i].logical), v.logical, v.parallel};
  }

  bool stays(std::size_t i, const Values<DoubleAlgebra>& first, const Draw& draw) {
    std::vector<char> only(places_.size(), 0);
    only[i] = 1;
    const double gap = first.logical - first.parallel;
    const auto again = [&](const Draw& d, std::uint64_t noise, double most) {
      const Values<DoubleAlgebra> v = doubles(d, noise, only)[i];
      if (!v.known || !defined(v.logical)) return false;
      if (!std::isfinite(gap))
        return std::isfinite(v.logical) == std::isfinite(first.logical) &&
               defined(v.parallel) == defined(first.parallel) &&
               !std::isfinite(v.logical - v.parallel);
      return std::abs((v.logical - v.parallel) - gap) <= most * std::abs(gap);
    };
    for (std::uint64_t k = 1; k <= kNoisyRuns; ++k) {
      if (!again(draw, mix(k, options_.seed), kSteady)) return false;
    }
    for (std::uint64_t k = 1; k <= kMovedRuns; ++k) {
      Draw moved = draw;
      moved.moved = k + 1;
      if (!again(moved, 0, 0.5)) return false;
    }
    return true;
  }

  std::string nameOf(ElementOf e) const {
    const StageTensor& tensor = stage_.tensors[e.tensor];
    const Index planes = tensor.info.element == ElementKind::kComplex ? 2 : 1;
    const Position p = unravel(tensor.info.shape, e.flat / planes);
    std::string text = tensorName(stage_, e.tensor) + "[";
    for (std::size_t d = 0; d < p.rank(); ++d) text += (d ? ", " : "") + std::to_string(p[d]);
    return text + "]" + (planes == 1 ? "" : e.flat % 2 == 0 ? ".real" : ".imag");
  }

  const Stage& stage_;
  const SampleOptions& options_;
  const double start_ = processorSeconds();
  double until_ = start_;
  Binding binding_;
  std::vector<std::int64_t> bounds_;
  std::map<std::int64_t, std::vector<Index>> integers_;  // by bound
  std::vector<Place> places_;
  SampleOutcome outcome_;
};

}  // namespace

SampleOutcome sampleStage(const Stage& stage, const SampleOptions& options) {
  try {
    return Sampler(stage, options).run();
  } catch (const Unsupported& error) {
    SampleOutcome outcome;
    outcome.reason = error.what();
    return outcome;
  }
}

}  // namespace shardproof::unreduced
