// SPDX-License-Identifier: Apache-2.0
// Gradients by automatic differentiation in reverse, over any algebra: an operator's eval runs on
// Differentiable<A> (ops/differentiable.h). Exact: over terms the result is a term.
//
// Reduced dimensions. Let L = sum over full positions p of g(p) y(p), a number, so that the
// gradient of an operand x is dL/dx. On inputs that are constant on every class
// (docs/soundness.md), L is the sum over reduced elements o of weight(o) g(o) y(o). Its derivative
// by the reduced element e of x moves all weight(e) positions of the class at once, and is
// therefore weight(e) times the gradient at any one of them. Hence: seed with weight(o) g(o),
// divide by weight(e). Operands that were broadcast are summed back because their elements were
// used many times.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/algebra.h"
#include "ops/differentiable.h"
#include "ops/indexing.h"
#include "ops/interface.h"

namespace shardproof::ops {

// What the gradients of an operator over one algebra are made from. Plain functions, so that what
// follows is compiled once for each algebra and not once more for each operator.
template <class A>
struct ForwardMeaning {
  void (*onTape)(Evaluation<Differentiable<A>>&);
  // Where the operator is a sum of products: which one.
  SumOfProducts (*products)(const Evaluation<A>&) = nullptr;
  // How many of the first dimensions of its first operand, of rank `rank`, the result is computed
  // along independently: at each place there it reads the operand, and what else has these
  // dimensions, at that place only. nullptr: all where it is pointwise, else none.
  std::size_t (*independentDims)(const Attributes&, std::size_t rank) = nullptr;
};

template <class Op, class A>
constexpr ForwardMeaning<A> forwardMeaning() {
  ForwardMeaning<A> forward{.onTape = [](Evaluation<Differentiable<A>>& e) { Op::eval(e); }};
  if constexpr (requires(const Evaluation<A>& e) { Op::products(e); })
    forward.products = [](const Evaluation<A>& e) { return Op::products(e); };
  if constexpr (requires(const Attributes& a) { Op::independentDims(a, 0); })
    forward.independentDims = [](const Attributes& a, std::size_t rank) -> std::size_t {
      return Op::independentDims(a, rank);
    };
  return forward;
}

// Evaluates NAME_backward of the operator whose interface is given: e.in are the gradients of its
// results (nullptr: none), then its operands; e.out line up with its operands. Throws Unsupported
// where an operand has no gradient. For TermAlgebra, RealNumbers and Residues
// (ops/differentiate.cpp).
template <class A>
void evaluateBackward(const ForwardMeaning<A>& forward, Evaluation<A>& e,
                      const Interface& interface);

}  // namespace shardproof::ops
