// SPDX-License-Identifier: Apache-2.0
// How an operator becomes an OperatorInfo. A family file writes one struct per operator:
//
//   struct Softmax {
//     static Interface interface();
//       name, attributes, numbers of operands and results, gradient
//     static std::vector<TensorInfo> infer(const Signature&);
//       shape rule; throws ShapeError (found, expected)
//     static void relate(const Signature&, std::span<const TensorInfo* const> out, Relations&);
//       reduction rule
//     template <class A> static void eval(Evaluation<A>&);
//       the meaning
//   };
//
// and hands it to define<Softmax>(catalog). That also defines softmax_backward from the same eval,
// by automatic differentiation (differentiate.h). Messages need not name the operator: it is
// prefixed here.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ops/attributes.h"
#include "ops/differentiate.h"
#include "ops/indexing.h"
#include "ops/number_algebra.h"
#include "ops/operator.h"
#include "terms/term_algebra.h"

namespace shardproof::ops {

using Catalog = std::vector<OperatorInfo>;
using Infer = std::function<std::vector<TensorInfo>(const Signature&)>;
using Relate =
    std::function<void(const Signature&, std::span<const TensorInfo* const>, Relations&)>;

OperatorInfo makeForward(const Interface& interface, const Infer& infer, const Relate& relate);
OperatorInfo makeBackward(const Interface& interface, const Infer& infer, const Relate& relate);

template <class Op>
void define(Catalog& catalog, const Interface& interface = Op::interface()) {
  OperatorInfo forward = makeForward(interface, Op::infer, Op::relate);
  forward.terms = [](Evaluation<TermAlgebra>& e) { Op::eval(e); };
  forward.doubles = [](Evaluation<RealNumbers>& e) { Op::eval(e); };
  forward.modular = [](Evaluation<Residues>& e) { Op::eval(e); };
  catalog.push_back(std::move(forward));
  if (!interface.differentiable) return;
  OperatorInfo backward = makeBackward(interface, Op::infer, Op::relate);
  backward.terms = [interface](Evaluation<TermAlgebra>& e) {
    evaluateBackward(forwardMeaning<Op, TermAlgebra>(), e, interface);
  };
  backward.doubles = [interface](Evaluation<RealNumbers>& e) {
    evaluateBackward(forwardMeaning<Op, RealNumbers>(), e, interface);
  };
  backward.modular = [interface](Evaluation<Residues>& e) {
    evaluateBackward(forwardMeaning<Op, Residues>(), e, interface);
  };
  catalog.push_back(std::move(backward));
}

// --- traits of many operators ---

constexpr Traits kRearranges{.rearranges = true, .affine = true, .total = true, .keepsSign = true};
constexpr Traits kMoves{.moves = true, .affine = true, .total = true, .keepsSign = true};

// --- helpers for shape rules ---

// Throws ShapeError unless operand `i` holds reals (integers: indices).
void needReal(const Signature& s, std::size_t i);
void needInteger(const Signature& s, std::size_t i);
void needComplex(const Signature& s, std::size_t i);
void needRank(const Signature& s, std::size_t i, std::size_t rank, const char* expected);
bool present(const Signature& s, std::size_t i);
const Shape& shapeOf(const Signature& s, std::size_t i);
// A dimension counted from the end when negative; throws DimensionError when out of range.
std::size_t dimIndex(std::int64_t dim, std::size_t rank);
Shape broadcastShapes(const Shape& a, const Shape& b);
std::int64_t elements(const Shape& shape);

// --- helpers for reduction rules ---

inline int slotOfResult(const Signature& s, std::size_t result) {
  return static_cast<int>(s.in.size() + result);
}
inline DimRef ref(std::size_t slot, std::size_t dim) {
  return {static_cast<int>(slot), static_cast<int>(dim)};
}
inline DimRef ref(int slot, std::size_t dim) { return {slot, static_cast<int>(dim)}; }
// All dimensions of two tensors of the same shape, and their values if they hold integers.
void equalTensors(const Signature& s, std::size_t operand, int otherSlot, Relations& relations);
// A broadcast operand: dimensions of equal size, aligned at the end, go together.
void equalBroadcast(const Signature& s, std::size_t operand, int resultSlot, const Shape& result,
                    Relations& relations);

// The dimensions of a contraction: equal labels are equal dimensions, labels that the result lacks
// are summed. Operands are related to one another directly.
void relateLabels(const ContractionLabels& labels, int resultSlot, Relations& relations);

// --- families ---

void defineElementwise(Catalog&);
void defineLayout(Catalog&);
void defineCutting(Catalog&);
void defineReductions(Catalog&);
void defineLinearAlgebra(Catalog&);
void defineNormalization(Catalog&);
void defineEmbeddingAttention(Catalog&);
void defineAttention(Catalog&);
void defineMoe(Catalog&);
void defineLosses(Catalog&);
void defineOptimizer(Catalog&);
void defineOneHot(Catalog&);
void defineChoice(Catalog&);
void defineOrdering(Catalog&);

}  // namespace shardproof::ops
