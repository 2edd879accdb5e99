// Gradients by automatic differentiation in reverse, over any algebra: an operator's eval runs on
// Differentiable<A>, which records for each value how it depends on others; adjoints then flow back
// along the record. Exact: over terms the result is a term.
//
// Reduced dimensions. Let L = sum over full positions p of g(p) y(p), a number, so that the
// gradient of an operand x is dL/dx. On inputs that are constant on every class
// (docs/soundness.md), L is the sum over reduced elements o of weight(o) g(o) y(o). Its derivative
// by the reduced element e of x moves all weight(e) positions of the class at once, and is
// therefore weight(e) times the gradient at any one of them. Hence: seed with weight(o) g(o),
// divide by weight(e). Operands that were broadcast are summed back because their elements were
// used many times.
//
// Reverse accumulation: Griewank and Walther, Evaluating Derivatives, chapter 3.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/algebra.h"
#include "ops/indexing.h"
#include "ops/interface.h"
#include "shardproof/error.h"

namespace shardproof::ops {

template <class A>
class Differentiable {
 public:
  using Base = typename A::Element;
  struct Element {
    Base value{};
    std::int32_t node = -1;  // -1: does not depend on anything that is differentiated
  };

  explicit Differentiable(A& base) : base_(base) {}

  A& base() { return base_; }
  static Element passive(Base value) { return {value, -1}; }
  Element variable(Base value) { return {value, open()}; }

  Element constant(const Rational& value) { return passive(base_.constant(value)); }
  Element negativeInfinity() { return passive(base_.negativeInfinity()); }
  // True only for a constant: a zero that depends on an operand may still have a gradient.
  bool isZero(Element e) const { return e.node < 0 && base_.isZero(e.value); }

  Element add(Element a, Element b) {
    const Base value = base_.add(a.value, b.value);
    if (a.node < 0 && b.node < 0) return passive(value);
    const std::int32_t node = open();
    edge(a.node, Rational(1));
    edge(b.node, Rational(1));
    return {value, node};
  }

  Element mul(Element a, Element b) {
    const Base value = base_.mul(a.value, b.value);
    if (a.node < 0 && b.node < 0) return passive(value);
    const std::int32_t node = open();
    edge(a.node, b.value);
    edge(b.node, a.value);
    return {value, node};
  }

  Element scale(const Rational& factor, Element a) {
    const Base value = base_.scale(factor, a.value);
    if (a.node < 0) return passive(value);
    const std::int32_t node = open();
    edge(a.node, factor);
    return {value, node};
  }

  Element sum(std::span<const Element> terms, std::span<const std::int64_t> weights) {
    std::vector<Base> values;
    values.reserve(terms.size());
    bool active = false;
    for (const Element& t : terms) {
      values.push_back(t.value);
      active = active || t.node >= 0;
    }
    const Base value = base_.sum(std::span<const Base>(values), weights);
    if (!active) return passive(value);
    const std::int32_t node = open();
    for (std::size_t i = 0; i < terms.size(); ++i)
      edge(terms[i].node, Rational(weights.empty() ? 1 : weights[i]));
    return {value, node};
  }

  // d(x^(h/2)) = h/2 x^(h/2 - 1)
  Element power(Element x, int halves) {
    const Base value = base_.power(x.value, halves);
    if (x.node < 0 || halves == 0) return passive(value);
    const Base slope = halves == 2
                           ? base_.constant(Rational(1))
                           : base_.scale(Rational(halves, 2), base_.power(x.value, halves - 2));
    return dependent(value, x.node, slope);
  }

  Element exp(Element x) {
    const Base value = base_.exp(x.value);
    return x.node < 0 ? passive(value) : dependent(value, x.node, value);
  }

  Element apply(Function f, std::span<const std::int64_t> params,
                std::span<const Element> arguments) {
    std::vector<Base> values;
    values.reserve(arguments.size());
    bool active = false;
    for (const Element& a : arguments) {
      values.push_back(a.value);
      active = active || a.node >= 0;
    }
    const Base value = base_.apply(f, params, std::span<const Base>(values));
    if (!active) return passive(value);
    const std::optional<Base> slope = derivative(f, value, values);
    if (!slope) return passive(value);
    return dependent(value, arguments[0].node, *slope);
  }

  // An integer index does not move under an infinitesimal change of anything.
  Element indicator(Element index, std::int64_t value) {
    return passive(base_.indicator(index.value, value));
  }
  auto known(Element index) const requires requires(const A& base, typename A::Element x) {
    base.known(x);
  }
  { return base_.known(index.value); }
  Element select(Element chosen, Element x) {
    const Base value = base_.select(chosen.value, x.value);
    if (x.node < 0) return passive(value);
    const std::int32_t node = open();
    edges_.push_back({x.node, kSelects, chosen.value});
    return {value, node};
  }

  // The adjoints of the first `variables` nodes (which must have been opened by variable()), given
  // those of some nodes.
  std::vector<Base> adjoints(std::span<const std::pair<std::int32_t, Base>> seeds,
                             std::size_t variables) {
    // Contributions to one node are collected and added up in one n-ary sum: sums of sums would
    // only cost terms.
    struct Contribution {
      Base value;
      std::int32_t next;
    };
    std::vector<Contribution> pool;
    std::vector<std::int32_t> head(first_.size(), -1);
    const auto contribute = [&](std::int32_t node, const Base& value) {
      pool.push_back({value, head[at(node)]});
      head[at(node)] = static_cast<std::int32_t>(pool.size()) - 1;
    };
    // Zeros go along: 0 times a slope is 0 only where the slope exists, and a slope of 0 yields 0
    // only where the gradient does.
    for (const auto& [node, value] : seeds)
      if (node >= 0) contribute(node, value);
    std::vector<Base> result(variables, base_.constant(Rational(0)));
    std::vector<Base> terms;
    for (std::size_t n = first_.size(); n-- > 0;) {
      if (head[n] < 0) continue;
      terms.clear();
      for (std::int32_t c = head[n]; c >= 0; c = pool[at(c)].next)
        terms.push_back(pool[at(c)].value);
      std::reverse(terms.begin(), terms.end());
      const Base adjoint =
          terms.size() == 1 ? terms[0] : base_.sum(std::span<const Base>(terms), {});
      if (n < variables) result[n] = adjoint;
      const std::size_t end = n + 1 < first_.size() ? first_[n + 1] : edges_.size();
      for (std::size_t i = first_[n]; i < end; ++i) {
        const Edge& e = edges_[i];
        if (e.factor >= 0) {
          const Rational& factor = factors_[at(e.factor)];
          contribute(e.parent, factor.isOne() ? adjoint : base_.scale(factor, adjoint));
        } else if (e.factor == kSelects) {
          contribute(e.parent, base_.select(e.slope, adjoint));
        } else {
          contribute(e.parent, base_.mul(adjoint, e.slope));
        }
      }
    }
    return result;
  }

 private:
  struct Edge {
    std::int32_t parent;
    std::int32_t
        factor;  // index into factors_, or -1: `slope` counts, or kSelects: `slope` is an indicator
    Base slope;
  };

  static constexpr std::int32_t kSelects = -2;

  std::int32_t open() {
    first_.push_back(edges_.size());
    return static_cast<std::int32_t>(first_.size()) - 1;
  }
  void edge(std::int32_t parent, const Rational& factor) {
    if (parent < 0) return;
    std::int32_t index = 0;  // factors_[0] is 1, by far the most frequent
    if (!factor.isOne()) {
      if (factors_.size() == 1 || !(factors_.back() == factor)) factors_.push_back(factor);
      index = static_cast<std::int32_t>(factors_.size()) - 1;
    }
    edges_.push_back({parent, index, Base{}});
  }
  void edge(std::int32_t parent, const Base& slope) {
    if (parent >= 0) edges_.push_back({parent, -1, slope});
  }
  Element dependent(const Base& value, std::int32_t parent, const Base& slope) {
    const std::int32_t node = open();
    edge(parent, slope);
    return {value, node};
  }

  // The derivative of a function by its only argument; nothing where it is constant almost
  // everywhere.
  std::optional<Base> derivative(Function f, const Base& value,
                                 const std::vector<Base>& arguments) {
    const Base one = base_.constant(Rational(1));
    const auto minus = [this](const Base& x) { return base_.scale(Rational(-1), x); };
    switch (f) {
      case Function::kSigmoid:
        return base_.mul(value, base_.add(one, minus(value)));
      case Function::kTanh:
        return base_.add(one, minus(base_.power(value, 4)));
      case Function::kLog:  // 1/x where there is a logarithm, which is not everywhere that 1/x is
        return base_.add(base_.power(arguments[0], -2), base_.scale(Rational(0), value));
      case Function::kNormalCdf:
        return base_.apply(Function::kNormalPdf, {}, std::span<const Base>(arguments));
      case Function::kNormalPdf:
        return minus(base_.mul(arguments[0], value));
      case Function::kStep:
      case Function::kSqrtTwoOverPi:
      case Function::kGateChoice:
      case Function::kMaskEntry:
      case Function::kDropoutMask:
        return std::nullopt;
      case Function::kMaximum:
      case Function::kMinimum:
      case Function::kSine:  // of operators without a gradient
      case Function::kCosine:
      case Function::kErf:
      case Function::kFloor:
      case Function::kCeil:
      case Function::kRound:
      case Function::kTruncate:
        break;
    }
    throw Unsupported(std::string("no derivative of ") + name(f));
  }

  A& base_;
  std::vector<std::size_t> first_;  // node -> its first edge
  std::vector<Edge> edges_;
  std::vector<Rational> factors_{Rational(1)};
};

// The gradients of a sum of products without a tape. False when some operand's needs one.
template <class Op, class A>
bool contractGradients(Evaluation<A>& e, std::size_t results, std::size_t operands) {
  const std::span<const TensorValue<A>* const> given(e.in.data() + results, operands);
  if (e.in[0] == nullptr ||
      std::any_of(given.begin(), given.end(), [](const auto* x) { return x == nullptr; }))
    return false;
  std::vector<TensorValue<A>*> none(1, nullptr);
  const std::vector<const TensorValue<A>*> in(given.begin(), given.end());
  const Evaluation<A> forward{e.algebra, e.attributes, in, none};
  const SumOfProducts products = Op::products(forward);
  for (std::size_t i = 0; i < operands; ++i) {
    if (e.out[i] == nullptr) continue;
    expectDims(e.out[i]->dims, given[i]->dims);
    if (given[i]->element != ElementKind::kReal ||
        !contractGradient(e.algebra, products, *e.in[0], given, i, *e.out[i]))
      return false;
  }
  return true;
}

// How many of the first dimensions of x the operator's result is computed along independently: at
// each place there it reads x, and what else has these dimensions, at that place only.
template <class Op>
std::size_t independentDims(const Interface& interface, const Attributes& attributes,
                            std::size_t rank) {
  if constexpr (requires { Op::independentDims(attributes, rank); })
    return Op::independentDims(attributes, rank);
  return interface.pointwise && !interface.followsLogicalPosition ? rank : 0;
}

template <class Op, class A>
void evaluateBackwardWhole(Evaluation<A>& e, const Interface& interface);

// The gradients of an operator that is independent along its first dimensions, place by place of
// these: the Jacobian consists of blocks, one a place, and the weight of a place is that of its
// gradients, of its results and of its operands, so that it cancels. A tape of a block stays in a
// processor's cache where one of a whole tensor is many times as large as the tensor. False, and
// nothing done: it is not such an operator, or too small to gain by it.
template <class Op, class A>
bool backwardInBlocks(Evaluation<A>& e, const Interface& interface) {
  constexpr Index kFrom = 50'000, kLeast = 64;  // elements: in all, and in a block
  const std::size_t results = interface.minResults;
  if (results != 1 || e.in.size() < 2 || e.in[0] == nullptr || e.in[1] == nullptr) return false;
  const std::vector<ReducedDim>& dims = e.in[0]->dims;
  if (countOf(dims) < kFrom) return false;
  std::size_t leading = independentDims<Op>(interface, e.attributes, dims.size());
  while (leading > 0 && countOf(std::span(dims).subspan(leading)) < kLeast) --leading;
  if (leading == 0) return false;
  const auto first = std::span(dims).first(leading);
  enum class Share { kAbsent, kCut, kWhole };
  const auto shareOf = [&](const TensorValue<A>* x) -> std::optional<Share> {
    if (x == nullptr) return Share::kAbsent;
    if (x->element == ElementKind::kComplex) return std::nullopt;
    if (x->dims.size() == dims.size()) {
      if (std::ranges::equal(std::span(x->dims).first(leading), first)) return Share::kCut;
      if (std::ranges::any_of(std::span(x->dims).first(leading),
                              [](const ReducedDim& d) { return d.full != 1; }))
        return std::nullopt;
      return Share::kWhole;
    }
    return x->dims.size() + leading <= dims.size() ? std::optional(Share::kWhole) : std::nullopt;
  };
  std::vector<Share> shares;
  for (const TensorValue<A>* x : e.in) {
    const auto share = shareOf(x);
    if (!share) return false;
    shares.push_back(*share);
  }
  for (std::size_t i = 0; i < e.out.size(); ++i)
    if (e.out[i] != nullptr && shares[results + i] != Share::kCut) return false;

  std::vector<TensorValue<A>> in(e.in.size()), out(e.out.size());
  std::vector<const TensorValue<A>*> operands(e.in.begin(), e.in.end());
  std::vector<TensorValue<A>*> gradients(e.out.size(), nullptr);
  std::vector<Index> length(e.in.size(), 0);
  const auto cutDims = [&](const TensorValue<A>& x) {
    std::vector<ReducedDim> block(leading);
    block.insert(block.end(), x.dims.begin() + static_cast<std::ptrdiff_t>(leading), x.dims.end());
    return block;
  };
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (shares[i] != Share::kCut) continue;
    in[i].dims = cutDims(*e.in[i]);
    in[i].element = e.in[i]->element;
    length[i] = countOf(in[i].dims);
    operands[i] = &in[i];
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (e.out[i] == nullptr) continue;
    expectDims(e.out[i]->dims, e.in[results + i]->dims);
    out[i].dims = in[results + i].dims;
    out[i].element = e.out[i]->element;
    gradients[i] = &out[i];
    e.out[i]->data.clear();
    e.out[i]->data.reserve(e.in[results + i]->data.size());
  }
  for (Index block = 0; block < countOf(first); ++block) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (shares[i] != Share::kCut) continue;
      const auto from = e.in[i]->data.begin() + block * length[i];
      in[i].data.assign(from, from + length[i]);
    }
    Evaluation<A> one{e.algebra, e.attributes, operands, gradients};
    evaluateBackwardWhole<Op>(one, interface);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (e.out[i] != nullptr)
        e.out[i]->data.insert(e.out[i]->data.end(), out[i].data.begin(), out[i].data.end());
  }
  return true;
}

// Evaluates NAME_backward of the operator Op: e.in are the gradients of its results (nullptr:
// none), then its operands; e.out line up with its operands.
template <class Op, class A>
void evaluateBackward(Evaluation<A>& e, const Interface& interface) {
  const std::size_t results = interface.minResults;
  if (e.in.size() < results || e.out.size() != e.in.size() - results)
    throw std::logic_error("backward: results do not line up with operands");
  const std::size_t operands = e.in.size() - results;
  if constexpr (requires(const Evaluation<A>& f) { Op::products(f); }) {
    if (contractGradients<Op>(e, results, operands)) return;
  }
  if (!backwardInBlocks<Op>(e, interface)) evaluateBackwardWhole<Op>(e, interface);
}

template <class Op, class A>
void evaluateBackwardWhole(Evaluation<A>& e, const Interface& interface) {
  using D = Differentiable<A>;
  const std::size_t results = interface.minResults, operands = e.in.size() - results;
  D tape(e.algebra);

  std::vector<TensorValue<D>> operandValues(operands);
  std::vector<const TensorValue<D>*> in(operands, nullptr);
  std::vector<std::int32_t> firstVariable(operands, -1);
  std::size_t variables = 0;
  for (std::size_t i = 0; i < operands; ++i) {
    const TensorValue<A>* x = e.in[results + i];
    if (x == nullptr) {
      if (e.out[i] != nullptr)
        throw Unsupported(interface.name + "_backward: a gradient of an absent operand");
      continue;
    }
    const bool wanted = e.out[i] != nullptr;
    if (wanted) {
      if (x->element != ElementKind::kReal ||
          std::find(interface.withoutGradient.begin(), interface.withoutGradient.end(), i) !=
              interface.withoutGradient.end())
        throw Unsupported(interface.name + "_backward: operand " + std::to_string(i) +
                          " has no gradient");
      expectDims(e.out[i]->dims, x->dims);
      firstVariable[i] = static_cast<std::int32_t>(variables);
      variables += x->data.size();
    }
    operandValues[i].dims = x->dims;
    operandValues[i].element = x->element;
    operandValues[i].data.reserve(x->data.size());
    for (const auto& value : x->data)
      operandValues[i].data.push_back(wanted ? tape.variable(value) : D::passive(value));
    in[i] = &operandValues[i];
  }

  std::vector<TensorValue<D>> resultValues(results);
  std::vector<TensorValue<D>*> out(results, nullptr);
  for (std::size_t r = 0; r < results; ++r) {
    if (e.in[r] == nullptr) continue;
    resultValues[r].dims = e.in[r]->dims;
    resultValues[r].element = e.in[r]->element;
    out[r] = &resultValues[r];
  }
  Evaluation<D> forward{tape, e.attributes, in, out};
  Op::eval(forward);

  // Factors that all weights share are cancelled before they are multiplied in. Where the Jacobian
  // is diagonal they cancel entirely.
  bool diagonal = interface.pointwise && out[0] != nullptr;
  for (std::size_t i = 0; i < operands; ++i)
    if (e.out[i] != nullptr && out[0] != nullptr && e.in[results + i]->dims != out[0]->dims)
      diagonal = false;
  std::vector<std::vector<std::int64_t>> seedWeights(results);
  std::int64_t common = 0;  // 0: not all equal (or not yet known)
  if (!diagonal) {
    bool uniform = true;
    for (std::size_t r = 0; r < results; ++r) {
      if (out[r] == nullptr) continue;
      seedWeights[r] = weightsOf(out[r]->dims);
      const std::int64_t w = seedWeights[r].empty() ? 1 : seedWeights[r][0];
      if (common == 0) common = w;
      uniform = uniform && w == common &&
                std::all_of(seedWeights[r].begin(), seedWeights[r].end(),
                            [&](std::int64_t v) { return v == w; });
    }
    if (!uniform) common = 1;
    else
      for (auto& w : seedWeights) w.clear();
  }
  std::vector<std::pair<std::int32_t, typename A::Element>> seeds;
  for (std::size_t r = 0; r < results; ++r) {
    if (out[r] == nullptr) continue;
    if (out[r]->data.size() != e.in[r]->data.size())
      throw std::logic_error("backward: a gradient does not have its result's size");
    for (std::size_t i = 0; i < e.in[r]->data.size(); ++i) {
      const auto& g = e.in[r]->data[i];
      const std::int64_t w = seedWeights[r].empty() ? 1 : seedWeights[r][i];
      seeds.emplace_back(out[r]->data[i].node, w == 1 ? g : e.algebra.scale(Rational(w), g));
    }
  }
  const std::vector<typename A::Element> adjoints = tape.adjoints(seeds, variables);
  for (std::size_t i = 0; i < operands; ++i) {
    if (e.out[i] == nullptr) continue;
    const TensorValue<A>& x = *e.in[results + i];
    const std::vector<std::int64_t> own =
        diagonal ? std::vector<std::int64_t>{} : weightsOf(x.dims);
    const std::int64_t numerator = diagonal ? 1 : std::max<std::int64_t>(common, 1);
    e.out[i]->data.clear();
    e.out[i]->data.reserve(x.data.size());
    for (std::size_t k = 0; k < x.data.size(); ++k) {
      const Rational factor(numerator, own.empty() ? 1 : own[k]);
      const auto& a = adjoints[at(firstVariable[i]) + k];
      e.out[i]->data.push_back(factor.isOne() ? a : e.algebra.scale(factor, a));
    }
  }
}

}  // namespace shardproof::ops
