// SPDX-License-Identifier: Apache-2.0
// where: one of two numbers (torch.where).
#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// condition, x, y -> x where the condition is 1, else y, with broadcasting; what is not chosen need
// not have a value (A::select). The condition, of integers or reals, gets no gradient. Errors: x or
// y that are not real, a complex condition, shapes that do not broadcast.
//
// A real condition is compared like an integer, and not multiplied by: what the operator needs of x
// and y must not depend on whether a stage knows how the condition was computed.
struct Where {
  static Interface interface() {
    return {
        .name = "where",
        .minOperands = 3,
        .maxOperands = 3,
        .withoutGradient = {0},
        .traits = {
            .elementwise = true, .picks = true, .affine = true, .total = true, .keepsSign = true}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    if (s.in[0]->element != ElementKind::kInteger) needReal(s, 0);
    needReal(s, 1);
    needReal(s, 2);
    return {
        TensorInfo{broadcastShapes(broadcastShapes(shapeOf(s, 0), shapeOf(s, 1)), shapeOf(s, 2))}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    const int result = slotOfResult(s, 0);
    for (std::size_t i = 0; i < 3; ++i) equalBroadcast(s, i, result, out[0]->shape, relations);
    if (s.in[0]->element != ElementKind::kInteger) return;
    // Of the condition's values 0 and 1 are told apart, and from all others.
    const int values = result + 1;
    relations.virtualTensor(values, Shape{2});
    relations.range({0, kValues}, 0, {values, 0});
    relations.keep({values, 0});
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>&condition = *e.in[0], &x = *e.in[1], &y = *e.in[2];
    TensorValue<A>& out = *e.out[0];
    const std::array<const std::vector<ReducedDim>*, 3> dims{&condition.dims, &x.dims, &y.dims};
    expectDims(out.dims, broadcastDims(dims));
    out.data.clear();
    A& a = e.algebra;
    walk<3>(sizesOf(out.dims),
            {broadcastStrides(condition.dims, out.dims), broadcastStrides(x.dims, out.dims),
             broadcastStrides(y.dims, out.dims)},
            [&](const std::array<Index, 3>& o) {
              const auto first = a.indicator(condition.data[at(o[0])], 1);
              const auto second = a.add(a.constant(Rational(1)), a.scale(Rational(-1), first));
              out.data.push_back(
                  a.add(a.select(first, x.data[at(o[1])]), a.select(second, y.data[at(o[2])])));
            });
  }
};

}  // namespace

void defineChoice(Catalog& catalog) { define<Where>(catalog); }

}  // namespace shardproof::ops
