// SPDX-License-Identifier: Apache-2.0
// The reduction rule of every operator: dimensions are reduced at random, as far as the operator's
// relate() allows, and op(reduced) is compared with op(full) at every full position.
//
// Both executions are made over terms without simplification and evaluated in doubles. Variables of
// one class get one value. Indicators and expert choices get an arbitrary smooth function of their
// arguments (of the class of the value, where values are reduced): what relate() promises must hold
// for any matrix in the place of a one-hot one, and for any choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>

#include "cases.h"
#include "ops/indexing.h"

namespace shardproof::ops::testing {
namespace {

using Key = std::pair<int, int>;  // slot, dim (kValues: the values of an integer tensor)
Key key(DimRef d) { return {d.slot, d.dim}; }

// Records relations as they are declared.
class Recorder final : public Relations {
 public:
  struct Range {
    Key whole;
    std::int64_t lo;
    Key part;
  };
  std::vector<std::pair<Key, Key>> equals, doubles;
  std::vector<Range> ranges;
  std::vector<std::pair<std::vector<Key>, std::vector<Key>>> regroups;
  std::vector<Key> sums, kept, positional;
  std::map<int, Shape> virtuals;

  void equal(DimRef a, DimRef b) override { equals.emplace_back(key(a), key(b)); }
  void range(DimRef whole, std::int64_t lo, DimRef part) override {
    ranges.push_back({key(whole), lo, key(part)});
  }
  void regroup(std::span<const DimRef> a, std::span<const DimRef> b) override {
    std::vector<Key> x, y;
    for (const DimRef d : a) x.push_back(key(d));
    for (const DimRef d : b) y.push_back(key(d));
    regroups.emplace_back(x, y);
  }
  void pairs(DimRef whole, DimRef half) override { doubles.emplace_back(key(whole), key(half)); }
  void summed(DimRef d) override { sums.push_back(key(d)); }
  void keep(DimRef d) override { kept.push_back(key(d)); }
  void absolute(DimRef d) override { positional.push_back(key(d)); }
  void iterates(std::span<const DimRef>) override {}
  void virtualTensor(int slot, const Shape& shape) override { virtuals[slot] = shape; }
};

// A partition of the positions of every dimension of a call, consistent with the declared
// relations: `color[dim][i]` names the class of position i.
class RandomReduction {
 public:
  RandomReduction(const Call& call, Random& random) {
    const OperatorInfo& op = Registry::instance().at(Registry::instance().find(call.op));
    const std::vector<TensorInfo> in = infosOf(call), out = inferResults(call);
    std::vector<const TensorInfo*> outPointers;
    for (const TensorInfo& t : out) outPointers.push_back(t.absent ? nullptr : &t);
    const auto inPointers = pointers(call, in);
    op.relate(Signature{call.attributes, inPointers, call.results}, outPointers, recorder_);

    // Every dimension that can be named, and its size.
    const auto name = [&](int slot, const TensorInfo& t) {
      for (std::size_t d = 0; d < t.shape.size(); ++d)
        size_[{slot, static_cast<int>(d)}] = t.shape[d];
      if (t.element == ElementKind::kInteger) size_[{slot, kValues}] = kValueCount;
    };
    for (std::size_t i = 0; i < in.size(); ++i)
      if (call.in[i].present) name(static_cast<int>(i), in[i]);
    for (std::size_t r = 0; r < out.size(); ++r)
      if (outPointers[r] != nullptr) name(static_cast<int>(in.size() + r), out[r]);
    for (const auto& [slot, shape] : recorder_.virtuals) {
      EXPECT_GE(slot, static_cast<int>(in.size() + out.size()));
      name(slot, TensorInfo{shape});
      size_[{slot, kValues}] = kValueCount;  // a virtual tensor may hold integers
    }
    // What is related must exist and fit, whether or not it is reduced.
    for (const auto& [a, b] : recorder_.equals) EXPECT_EQ(size_.at(a), size_.at(b));
    for (const auto& r : recorder_.ranges) EXPECT_LE(r.lo + size_.at(r.part), size_.at(r.whole));
    for (const auto& [whole, half] : recorder_.doubles)
      EXPECT_EQ(size_.at(whole), 2 * size_.at(half));
    for (const auto& [a, b] : recorder_.regroups) EXPECT_EQ(product(a), product(b));
    for (const auto& list : {recorder_.sums, recorder_.kept, recorder_.positional})
      for (const Key& k : list) EXPECT_TRUE(size_.contains(k));

    std::int64_t next = 0;
    for (const auto& [k, n] : size_)
      for (std::int64_t i = 0; i < n; ++i) parent_[{k, i}] = {k, i};
    for (const auto& [a, b] : recorder_.equals) unite(a, 0, b);
    for (const auto& r : recorder_.ranges) unite(r.whole, r.lo, r.part);

    // Random colours for connected positions, few enough that classes hold several; unique ones
    // where nothing may be reduced.
    std::set<Place> unique;
    for (const auto& list : {recorder_.kept, recorder_.positional})
      for (const Key& k : list)
        for (std::int64_t i = 0; i < size_.at(k); ++i) unique.insert(find({k, i}));
    // A regrouping other than a split or a merge of one dimension is executed unreduced here.
    for (const auto& [a, b] : recorder_.regroups) {
      if (a.size() == 1 || b.size() == 1) continue;
      for (const auto& side : {a, b})
        for (const Key& k : side)
          for (std::int64_t i = 0; i < size_.at(k); ++i) unique.insert(find({k, i}));
    }
    std::map<Place, std::int64_t> colorOf;
    const std::int64_t palette = std::uniform_int_distribution<std::int64_t>(1, 3)(random);
    for (const auto& [place, unused] : parent_) {
      const Place root = find(place);
      if (colorOf.contains(root)) continue;
      colorOf[root] = unique.contains(root)
                          ? 1000 + next++
                          : std::uniform_int_distribution<std::int64_t>(0, palette - 1)(random);
    }
    for (const auto& [k, n] : size_)
      for (std::int64_t i = 0; i < n; ++i) color[k].push_back(colorOf.at(find({k, i})));
    // Classes may not reach over a bound: each stretch of a range is a piece of its own, everywhere
    // it is seen. Pieces refine colours until nothing changes.
    for (int round = 0; round < 4; ++round) {
      for (const auto& r : recorder_.ranges)
        for (std::int64_t i = 0; i < size_.at(r.whole); ++i)
          refine(r.whole, i, i < r.lo ? 0 : i < r.lo + size_.at(r.part) ? 1 : 2);
      propagate();
    }
    for (const auto& [whole, half] : recorder_.doubles) tieDoubles(whole, half);
    for (const auto& [a, b] : recorder_.regroups) {
      if (a.size() == 1) compose(a[0], b);
      else if (b.size() == 1) compose(b[0], a);
    }
  }

  std::map<Key, std::vector<std::int64_t>> color;
  const Recorder& recorder() const { return recorder_; }

  ReducedDim dim(Key k) const {
    const std::vector<std::int64_t>& c = color.at(k);
    ReducedDim d;
    d.full = static_cast<std::int64_t>(c.size());
    d.position.clear();
    d.weight.clear();
    std::map<std::int64_t, std::size_t> place;
    for (std::size_t i = 0; i < c.size(); ++i) {
      const auto [it, fresh] = place.emplace(c[i], d.position.size());
      if (fresh) {
        d.position.push_back(static_cast<std::int64_t>(i));
        d.weight.push_back(0);
      }
      ++d.weight[it->second];
    }
    return d;
  }
  // The first position of the class of position i.
  std::int64_t representative(Key k, std::int64_t i) const {
    const auto& c = color.at(k);
    return std::find(c.begin(), c.end(), c[static_cast<std::size_t>(i)]) - c.begin();
  }
  std::int64_t reducedIndex(Key k, std::int64_t i) const {
    const ReducedDim d = dim(k);
    return std::find(d.position.begin(), d.position.end(), representative(k, i)) -
           d.position.begin();
  }
  std::vector<ReducedDim> dims(int slot, std::size_t rank) const {
    std::vector<ReducedDim> all;
    for (std::size_t d = 0; d < rank; ++d) all.push_back(dim({slot, static_cast<int>(d)}));
    return all;
  }
  // The reduced element of a full one (both row-major).
  std::size_t reducedElement(int slot, const Shape& shape, std::int64_t linear) const {
    std::vector<std::int64_t> index(shape.size());
    for (std::size_t d = shape.size(); d-- > 0;) {
      index[d] = linear % shape[d];
      linear /= shape[d];
    }
    std::int64_t r = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const Key k{slot, static_cast<int>(d)};
      r = r * dim(k).size() + reducedIndex(k, index[d]);
    }
    return static_cast<std::size_t>(r);
  }

 private:
  static constexpr std::int64_t kValueCount = 12;
  using Place = std::pair<Key, std::int64_t>;

  std::int64_t product(const std::vector<Key>& keys) const {
    return std::accumulate(keys.begin(), keys.end(), std::int64_t{1},
                           [this](std::int64_t p, const Key& k) { return p * size_.at(k); });
  }
  Place find(Place p) {
    while (parent_.at(p) != p) p = parent_.at(p);
    return p;
  }
  void unite(Key whole, std::int64_t lo, Key part) {
    for (std::int64_t i = 0; i < size_.at(part); ++i) {
      const Place a = find({whole, lo + i}), b = find({part, i});
      if (a != b) parent_[a] = b;
    }
  }
  void refine(Key k, std::int64_t i, std::int64_t piece) {
    std::int64_t& c = color[k][static_cast<std::size_t>(i)];
    c = token({c, piece});
  }
  // Connected positions always have one colour: the finest of what was said of any of them.
  void propagate() {
    std::map<Place, std::vector<std::int64_t>> said;
    for (const auto& [k, c] : color)
      for (std::size_t i = 0; i < c.size(); ++i)
        said[find({k, static_cast<std::int64_t>(i)})].push_back(c[i]);
    for (auto& [k, c] : color)
      for (std::size_t i = 0; i < c.size(); ++i)
        c[i] = token(said.at(find({k, static_cast<std::int64_t>(i)})));
  }
  // Position i of k follows from other dimensions: so does everything connected to it.
  void overwrite(Key k, std::int64_t i, std::int64_t value) {
    const Place root = find({k, i});
    for (auto& [other, c] : color)
      for (std::size_t j = 0; j < c.size(); ++j)
        if (find({other, static_cast<std::int64_t>(j)}) == root) c[j] = value;
  }
  void tieDoubles(Key whole, Key half) {
    for (std::int64_t i = 0; i < size_.at(whole); ++i)
      overwrite(whole, i, token({-1, color[half][static_cast<std::size_t>(i / 2)], i % 2}));
  }
  void compose(Key one, const std::vector<Key>& many) {
    for (std::int64_t i = 0; i < size_.at(one); ++i) {
      std::vector<std::int64_t> parts{-2};
      std::int64_t rest = i;
      for (std::size_t d = many.size(); d-- > 0;) {
        parts.push_back(color[many[d]][static_cast<std::size_t>(rest % size_.at(many[d]))]);
        rest /= size_.at(many[d]);
      }
      overwrite(one, i, token(parts));
    }
  }
  std::int64_t token(const std::vector<std::int64_t>& v) {
    return tokens_.emplace(v, static_cast<std::int64_t>(tokens_.size()) + 5000).first->second;
  }

  Recorder recorder_;
  std::map<Key, std::int64_t> size_;
  std::map<Place, Place> parent_;
  std::map<std::vector<std::int64_t>, std::int64_t> tokens_;
};

// Evaluates terms in doubles, with arbitrary functions in place of indicators and choices.
class Interpreter {
 public:
  Interpreter(const TermAlgebra& terms, std::function<double(std::uint32_t)> variable,
              std::function<std::int64_t(std::int64_t)> valueClass)
      : terms_(terms), variable_(std::move(variable)), valueClass_(std::move(valueClass)) {}

  double operator()(Term t) {
    if (const auto it = known_.find(t.id); it != known_.end()) return it->second;
    const double v = compute(t);
    known_.emplace(t.id, v);
    return v;
  }

 private:
  double compute(Term t) {
    switch (terms_.kind(t)) {
      case TermKind::kConstant:
        return terms_.constantValue(t).toDouble();
      case TermKind::kNegativeInfinity:
        return -1e300;
      case TermKind::kVariable:
        return variable_(terms_.variableIndex(t));
      case TermKind::kSum: {
        double s = terms_.constantValue(t).toDouble();
        for (const auto& p : terms_.parts(t)) s += p.factor.toDouble() * (*this)(p.term);
        return s;
      }
      case TermKind::kProduct: {
        double s = 1;
        for (const auto& p : terms_.parts(t)) s *= std::pow((*this)(p.term), p.factor.toDouble());
        return s;
      }
      case TermKind::kExp:
        return std::exp((*this)(terms_.arguments(t)[0]));
      case TermKind::kSqrt:
        return std::sqrt((*this)(terms_.arguments(t)[0]));
      case TermKind::kIndicator: {
        const double index = (*this)(terms_.arguments(t)[0]);
        const std::int64_t value = valueClass_(terms_.parameters(t)[0]);
        return 0.6 + 0.4 * std::sin(1.3 * index + 2.1 * static_cast<double>(value));
      }
      case TermKind::kFunction:
        break;
    }
    std::vector<double> arguments;
    for (const Term a : terms_.arguments(t)) arguments.push_back((*this)(a));
    const std::vector<std::int64_t> params = terms_.parameters(t);
    if (terms_.function(t) == Function::kGateChoice) {
      double s = 0.7 * static_cast<double>(params.at(0));
      for (std::size_t i = 0; i < arguments.size(); ++i)
        s += static_cast<double>(i + 1) * std::sin(arguments[i]);
      return s;
    }
    return evaluate(terms_.function(t), params, arguments);
  }

  const TermAlgebra& terms_;
  std::function<double(std::uint32_t)> variable_;
  std::function<std::int64_t(std::int64_t)> valueClass_;
  std::unordered_map<std::uint32_t, double> known_;
};

// Runs a call full and under a random reduction; returns how many dimensions were reduced.
int compare(const Call& call, Random& random) {
  const RandomReduction reduction(call, random);
  const std::vector<TensorInfo> infos = inferResults(call);
  // Variables: reduced ones first (each with a random value), full ones take the value of their
  // reduced element.
  TermAlgebra full(TermAlgebra::Mode::kRaw), reduced(TermAlgebra::Mode::kRaw);
  std::vector<double> reducedValues, fullValues;
  std::vector<TensorValue<TermAlgebra>> fullOperands(call.in.size()),
      reducedOperands(call.in.size());
  std::uniform_real_distribution<double> real(-1.5, 1.5), positive(0.5, 2);
  int reducedDims = 0;
  std::optional<Key> values;  // the range of values by which indicators are reduced
  for (const auto& r : reduction.recorder().ranges)
    if (r.whole.second == kValues) values = r.whole;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const OperandSpec& spec = call.in[i];
    if (!spec.present) continue;
    const int slot = static_cast<int>(i);
    TensorValue<TermAlgebra>&f = fullOperands[i], &r = reducedOperands[i];
    f.element = r.element = spec.element;
    for (const std::int64_t n : spec.shape) f.dims.push_back(ReducedDim::whole(n));
    r.dims = reduction.dims(slot, spec.shape.size());
    for (const ReducedDim& d : r.dims) reducedDims += d.reduced() ? 1 : 0;
    const bool integer = spec.element == ElementKind::kInteger;
    const std::size_t first = reducedValues.size();
    for (std::int64_t k = 0; k < r.positions() * r.planes(); ++k) {
      reducedValues.push_back(spec.positive ? positive(random) : real(random));
      r.data.push_back(reduced.variable(integer));
    }
    for (std::int64_t k = 0; k < f.positions(); ++k)
      for (std::int64_t p = 0; p < f.planes(); ++p) {
        const std::size_t e =
            reduction.reducedElement(slot, spec.shape, k) * static_cast<std::size_t>(f.planes()) +
            static_cast<std::size_t>(p);
        fullValues.push_back(reducedValues[first + e]);
        f.data.push_back(full.variable(integer));
      }
  }
  std::vector<std::vector<ReducedDim>> dims;
  for (std::size_t r = 0; r < infos.size(); ++r)
    dims.push_back(infos[r].absent ? std::vector<ReducedDim>{}
                                   : reduction.dims(static_cast<int>(call.in.size() + r),
                                                    infos[r].shape.size()));
  const auto fullResults = run(full, call, fullOperands);
  const auto reducedResults = run(reduced, call, reducedOperands, dims);

  const auto valueClass = [&](std::int64_t v) {
    return values ? reduction.representative(*values, v) : v;
  };
  Interpreter onFull(
      full, [&](std::uint32_t v) { return fullValues.at(v); }, valueClass);
  Interpreter onReduced(
      reduced, [&](std::uint32_t v) { return reducedValues.at(v); }, valueClass);
  for (std::size_t r = 0; r < infos.size(); ++r) {
    if (infos[r].absent) continue;
    const auto planes = static_cast<std::size_t>(fullResults[r].planes());
    for (std::size_t k = 0; k < fullResults[r].data.size(); ++k) {
      const std::size_t e =
          reduction.reducedElement(static_cast<int>(call.in.size() + r), infos[r].shape,
                                   static_cast<std::int64_t>(k / planes));
      const double expected = onFull(fullResults[r].data[k]),
                   found = onReduced(reducedResults[r].data[e * planes + k % planes]);
      EXPECT_NEAR(found, expected, 1e-8 * (1 + std::abs(expected)))
          << "result " << r << " element " << k;
      if (std::abs(found - expected) > 1e-8 * (1 + std::abs(expected))) return reducedDims;
    }
  }
  return reducedDims;
}

TEST(Reduction, EveryOperatorAgreesWithItselfOnReducedDimensions) {
  Random random(17);
  std::map<std::string, int> reducedDims;
  std::set<std::string> seen;
  for (int round = 0; round < 12; ++round) {
    for (const Call& forward : forwardCalls(random)) {
      std::vector<Call> calls{forward};
      if (hasBackward(forward)) calls.push_back(backwardCall(forward));
      for (const Call& call : calls) {
        SCOPED_TRACE(describe(call));
        seen.insert(call.op);
        try {
          reducedDims[call.op] += compare(call, random);
        } catch (const std::exception& e) {
          FAIL() << e.what();
        }
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
  // No operator may pass by never being reduced, and none may be missing.
  for (std::size_t i = 0; i < Registry::instance().size(); ++i) {
    const std::string& name =
        Registry::instance().at(OperatorId(static_cast<std::int64_t>(i))).name;
    EXPECT_TRUE(seen.contains(name)) << name;
    EXPECT_GT(reducedDims[name], 0) << name;
  }
}

TEST(Reduction, SomeGradientsAbsent) {
  Random random(23);
  const Shape q{3, 4, 4, 6}, k{3, 4, 3, 6};
  for (int round = 0; round < 20; ++round)
    for (const bool first : {false, true}) {
      Call call{"apply_rotary_emb_backward",
                {},
                {{q}, {k}, {q}, {k}, {{4, 3}, ElementKind::kComplex}},
                3};
      call.in[first ? 0 : 1].present = false;
      SCOPED_TRACE(describe(call));
      compare(call, random);
    }
}

// Whatever a result element reads at two positions of one operand dimension is summed (or chosen)
// over that dimension, and relate() must say so. Found from the terms themselves: the variables
// that occur in a result element, independently of the rules by which backward operators derive it.
void checkSums(const Call& call, Random& random) {
  const RandomReduction reduction(call, random);
  const Recorder& r = reduction.recorder();
  std::map<Key, Key> parent;
  const auto find = [&](Key k) {
    while (parent.contains(k)) k = parent.at(k);
    return k;
  };
  const auto unite = [&](Key a, Key b) {
    if (find(a) != find(b)) parent[find(a)] = find(b);
  };
  for (const auto& [a, b] : r.equals) unite(a, b);
  for (const auto& range : r.ranges) unite(range.whole, range.part);
  std::set<Key> declared, halves;
  for (const Key& k : r.sums) declared.insert(find(k));
  for (const auto& [whole, half] : r.doubles)
    halves.insert(find(whole));  // a pair is read together

  TermAlgebra terms(TermAlgebra::Mode::kRaw);
  std::vector<TensorValue<TermAlgebra>> operands(call.in.size());
  std::vector<std::pair<std::size_t, std::int64_t>> origin;  // variable -> operand, position
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    if (!call.in[i].present) continue;
    operands[i].element = call.in[i].element;
    for (const std::int64_t n : call.in[i].shape) operands[i].dims.push_back(ReducedDim::whole(n));
    for (std::int64_t k = 0; k < operands[i].positions() * operands[i].planes(); ++k) {
      operands[i].data.push_back(terms.variable(call.in[i].element == ElementKind::kInteger));
      origin.emplace_back(i, k / operands[i].planes());
    }
  }
  for (const auto& result : run(terms, call, operands))
    for (const Term element : result.data) {
      std::set<std::uint32_t> seen;
      std::vector<Term> open{element};
      std::map<Key, std::set<std::int64_t>> read;
      while (!open.empty()) {
        const Term t = open.back();
        open.pop_back();
        if (!seen.insert(t.id).second) continue;
        switch (terms.kind(t)) {
          case TermKind::kConstant:
          case TermKind::kNegativeInfinity:
            break;
          case TermKind::kSum:
          case TermKind::kProduct:
            for (const auto& p : terms.parts(t)) open.push_back(p.term);
            break;
          case TermKind::kVariable: {
            auto [i, k] = origin.at(terms.variableIndex(t));
            for (std::size_t d = call.in[i].shape.size(); d-- > 0;) {
              read[{static_cast<int>(i), static_cast<int>(d)}].insert(k % call.in[i].shape[d]);
              k /= call.in[i].shape[d];
            }
            break;
          }
          default:
            for (const Term a : terms.arguments(t)) open.push_back(a);
        }
      }
      for (auto& [k, positions] : read) {
        std::set<std::int64_t> distinct = positions;
        if (halves.contains(find(k))) {
          distinct.clear();
          for (const std::int64_t i : positions) distinct.insert(i / 2);
        }
        EXPECT_TRUE(distinct.size() < 2 || declared.contains(find(k)))
            << "operand " << k.first << " dimension " << k.second;
      }
    }
}

TEST(Reduction, EverySumIsDeclared) {
  Random random(31);
  for (const Call& forward : forwardCalls(random)) {
    std::vector<Call> calls{forward};
    if (hasBackward(forward)) calls.push_back(backwardCall(forward));
    for (const Call& call : calls) {
      SCOPED_TRACE(describe(call));
      checkSums(call, random);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
}

// The position is read in full coordinates, also when the classes are interleaved.
TEST(Reduction, BoundsMapThroughClasses) {
  ReducedDim d;
  d.full = 6;
  d.position = {0, 1, 4};
  d.weight = {2, 2, 2};  // {0, 2}, {1, 3}, {4, 5}
  EXPECT_EQ(d.reducedBound(0), 0);
  EXPECT_EQ(d.reducedBound(4), 2);
  EXPECT_EQ(d.reducedBound(6), 3);
  EXPECT_THROW(d.reducedBound(2), std::logic_error);
  EXPECT_THROW(d.reducedBound(7), std::logic_error);
  EXPECT_EQ(ReducedDim::whole(3).position, (std::vector<std::int64_t>{0, 1, 2}));
}

TEST(Reduction, ContradictingShapesAreNeverExecuted) {
  ReducedDim half;
  half.full = 4;
  half.position = {0, 2};
  half.weight = {2, 2};
  DoubleAlgebra a;
  const auto tensor = [](std::vector<ReducedDim> dims) {
    TensorValue<RealNumbers> t;
    t.dims = std::move(dims);
    t.data.assign(static_cast<std::size_t>(t.positions()), 1);
    return t;
  };
  const ReducedDim whole = ReducedDim::whole(4);
  const Call add{"add", {}, {{{4}}, {{4}}}};
  EXPECT_THROW(run(a, add, {tensor({half}), tensor({whole})}, {{half}}), std::logic_error);
  EXPECT_THROW(run(a, add, {tensor({half}), tensor({half})}, {{whole}}), std::logic_error);
  const Call linear{"linear", {}, {{{2, 4}}, {{3, 4}}}};
  EXPECT_THROW(
      run(a, linear, {tensor({ReducedDim::whole(2), half}), tensor({ReducedDim::whole(3), whole})}),
      std::logic_error);
  const Call chunk{"chunk", numbers({{"dim", 0}, {"parts", 4}, {"index", 1}}), {{{4}}}};
  EXPECT_THROW(run(a, chunk, {tensor({half})}), std::logic_error);
  const Call view{"view", {{"size", std::vector<std::int64_t>{2, 2}}}, {{{4}}}};
  ReducedDim pair;
  pair.full = 2;
  pair.position = {0};
  pair.weight = {2};
  EXPECT_THROW(run(a, view, {tensor({half})}, {{pair, ReducedDim::whole(2)}}), std::logic_error);
  EXPECT_NO_THROW(run(a, view, {tensor({half})}, {{ReducedDim::whole(2), pair}}));
}

// Within one reduced piece, but on the diagonal of a position that stands for itself alone.
TEST(Reduction, ReducedMaskEntriesAreOpaque) {
  TermAlgebra terms;
  ReducedDim half;
  half.full = 4;
  half.position = {0, 1};
  half.weight = {1, 3};
  half.factors = 1;
  half.places = {{.piece = 7, .start = 0, .offset = 0, .reduced = true, .weighted = false},
                 {.piece = 7, .start = 0, .offset = 1, .reduced = true, .weighted = true}};
  const Call call{"create_mask", {}, {{{2, 4}, ElementKind::kInteger, false, 5}}};
  TensorValue<TermAlgebra> tokens;
  tokens.element = ElementKind::kInteger;
  tokens.dims = {ReducedDim::whole(2), half};
  const auto mask = run(terms, call, {tokens}, {{ReducedDim{}, ReducedDim{}, half, half}});
  std::set<std::uint32_t> ids;
  EXPECT_TRUE(terms.isZero(mask[0].data.at(0)));
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(terms.kind(mask[0].data.at(i)), TermKind::kFunction);
    ids.insert(mask[0].data[i].id);
  }
  EXPECT_EQ(ids.size(), 3u);
}

}  // namespace
}  // namespace shardproof::ops::testing
