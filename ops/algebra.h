// SPDX-License-Identifier: Apache-2.0
// The element types over which every operator is defined once (docs/design.md, "Execute").
//
// An Algebra has a type `Element` (small, copyable) and these members:
//
//   Element constant(const Rational&);
//   Element negativeInfinity();   masks: absorbs in sums, exp of it is 0
//   Element add(Element, Element);
//   Element mul(Element, Element);
//   Element scale(const Rational&, Element);
//   Element sum(std::span<const Element>, std::span<const std::int64_t> weights);
//     weights empty: all 1
//   Element power(Element, int halves);
//     x^(halves/2), exactly: x^2 is power(x, 4), rsqrt is power(x, -1)
//   Element exp(Element);
//   Element apply(ops::Function, std::span<const std::int64_t> params, std::span<const Element>);
//   Element indicator(Element index, std::int64_t value);
//     1 where the integer `index` equals value, else 0
//   Element select(Element indicator, Element);
//     the element where the indicator is 1, else 0, also where the element has no value: a lookup
//   bool isZero(Element) const;
//     certainly zero (a shortcut only, false is always allowed)
//
// and, where its elements are numbers,
//
//   std::optional<std::int64_t> known(Element index) const;
//     the integer that `index` is: indicator(index, v) is 0 for every other v
//
// and, where they are doubles,
//
//   double dot(std::span<const double* const> rows, std::size_t n);
//     the sum over i < n of the products of rows[...][i]
//
// Models: terms (src/core/terms/term_algebra.h: proof), integers modulo 2^61-1
// (src/explanation/numbers/modular_algebra.h: fingerprints), doubles
// (src/explanation/numbers/double_algebra.h: counterexamples), and Differentiable<A>
// (ops/differentiate.h: gradients of any of them).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardproof/graph.h"
#include "shardproof/rational.h"
#include "terms/functions.h"

namespace shardproof::ops {

// One dimension of a reduced tensor. Each reduced element stands for a class of full positions on
// which every tensor of the reduced problem is constant (docs/soundness.md, "Representatives with
// weights"): `weight` is the size of the class, `position` its first member. Classes are listed by
// increasing `position`. An unreduced dimension has weight 1 and position 0, 1, 2, ... throughout.
struct ReducedDim {
  // Where a reduced position lies in one factor of the dimension, for operators that compare
  // positions (ops/positions.h).
  struct Place {
    std::int32_t piece =
        0;  // class of the pieces that run together with this one, also on other dimensions
    std::int64_t start = 0;   // of the piece, in the factor
    std::int64_t offset = 0;  // in the piece
    bool reduced = false;     // some positions of the piece are not kept apart
    bool weighted = false;    // ... and this one stands for them
  };
  std::int64_t full = 1;
  std::vector<std::int64_t> position{0};
  std::vector<std::int64_t> weight{1};
  // For each reduced position its place in each of `factors` factors, outermost first. Empty where
  // nothing is reduced, or no operator compares positions.
  std::size_t factors = 0;
  std::vector<Place> places;

  std::int64_t size() const { return static_cast<std::int64_t>(position.size()); }
  bool reduced() const { return size() != full; }
  // How many reduced elements lie before the full position `bound`: the image of a slice bound.
  // Exact because the reduction cuts every dimension at every bound that occurs on it.
  std::int64_t reducedBound(std::int64_t bound) const;
  void expectCut(bool cut, std::int64_t bound) const;  // throws std::logic_error where it is not
  static ReducedDim whole(std::int64_t n);             // nothing reduced
  std::span<const Place> placesOf(std::int64_t index) const {
    return std::span(places).subspan(static_cast<std::size_t>(index) * factors, factors);
  }
  // The same positions with the same weights; places follow from them within one stage.
  friend bool operator==(const ReducedDim& a, const ReducedDim& b) {
    return a.full == b.full && a.position == b.position && a.weight == b.weight;
  }
};

// Products of weights count positions of an iteration space, which may be larger than any one
// tensor. Throws Unsupported on overflow.
std::int64_t checkedProduct(std::int64_t a, std::int64_t b);

// A tensor of elements: row-major over the reduced dimensions. A complex tensor holds two
// consecutive elements (real, imaginary) for each position.
template <class A>
struct TensorValue {
  std::vector<ReducedDim> dims;
  ElementKind element = ElementKind::kReal;
  std::vector<typename A::Element> data;

  std::int64_t planes() const { return element == ElementKind::kComplex ? 2 : 1; }
  std::int64_t positions() const {
    std::int64_t n = 1;
    for (const ReducedDim& d : dims) n *= d.size();
    return n;
  }
};

// One evaluation of an operator: operands (nullptr: absent), and results with `dims` set and `data`
// to be filled (nullptr: not wanted).
template <class A>
struct Evaluation {
  A& algebra;
  const Attributes& attributes;
  std::span<const TensorValue<A>* const> in;
  std::span<TensorValue<A>* const> out;
};

}  // namespace shardproof::ops
