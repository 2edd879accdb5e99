// SPDX-License-Identifier: Apache-2.0
// Values that remember what they were computed from, over any algebra: adjoints flow back along the
// record. Reverse accumulation: Griewank and Walther, Evaluating Derivatives, chapter 3.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/algebra.h"
#include "ops/indexing.h"
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

}  // namespace shardproof::ops
