// SPDX-License-Identifier: Apache-2.0
// The greatest of a row, in order (torch.topk).
#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// x [..., n] -> values [..., topk], indices [..., topk] (integers): the greatest elements of each
// row, or the least, in order; of equal ones the smaller index comes first. An index is one opaque
// function of the whole row, the same for each `topk`; the value is the element that it names. Of
// the least, the row is negated.
struct TopK {
  static Interface interface() {
    return {.name = "topk",
            .attributes = {{.key = "topk", .required = true, .min = Rational(1)},
                           {.key = "largest", .type = AttributeType::kFlag}},
            .minResults = 2,
            .maxResults = 2,
            .differentiable = false,
            .traits = {.picks = true, .total = true, .keepsSign = true}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    Shape shape = shapeOf(s, 0);
    if (shape.empty()) throw ShapeError("operand 0 has shape [], expected a row at least");
    const std::int64_t topk = integer(s.attributes, "topk");
    if (topk > shape.back())
      throw ShapeError("found topk " + std::to_string(topk) + ", expected at most the " +
                       std::to_string(shape.back()) + " elements of a row");
    shape.back() = topk;
    return {TensorInfo{shape}, TensorInfo{shape, ElementKind::kInteger}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t last = shapeOf(s, 0).size() - 1;
    const int values = slotOfResult(s, 0), indices = slotOfResult(s, 1);
    for (const int result : {values, indices}) {
      for (std::size_t d = 0; d < last; ++d) relations.equal(ref(0, d), ref(result, d));
      relations.keep(ref(result, last));  // slots are ranks in the order
      relations.summed(ref(result, last));
    }
    relations.equal(ref(values, last), ref(indices, last));
    relations.keep(ref(0, last));  // an ordered row
    relations.summed(ref(0, last));
    relations.range({indices, kValues}, 0, ref(0, last));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    using Element = typename A::Element;
    A& a = e.algebra;
    const TensorValue<A>& x = *e.in[0];
    const std::int64_t topk = integer(e.attributes, "topk");
    const bool largest = flag(e.attributes, "largest", true);
    if (x.dims.back().reduced()) inconsistent("a row of topk is reduced");
    std::vector<ReducedDim> expected = x.dims;
    expected.back() = ReducedDim::whole(topk);
    for (TensorValue<A>* out : e.out) {
      if (out == nullptr) continue;
      expectDims(out->dims, expected);
      out->data.clear();
    }
    const std::int64_t n = x.dims.back().size();
    std::vector<Element> row(at(n)), terms(at(n));
    for (std::size_t first = 0; first < x.data.size(); first += at(n)) {
      for (std::size_t i = 0; i < row.size(); ++i)
        row[i] = largest ? x.data[first + i] : a.scale(Rational(-1), x.data[first + i]);
      for (std::int64_t slot = 0; slot < topk; ++slot) {
        const std::array<std::int64_t, 5> params{slot, n, 1, 1, 0};
        const Element index = a.apply(Function::kGateChoice, params, std::span<const Element>(row));
        if (e.out[1] != nullptr) e.out[1]->data.push_back(index);
        if (e.out[0] == nullptr) continue;
        for (std::size_t i = 0; i < row.size(); ++i)
          terms[i] = a.select(a.indicator(index, static_cast<std::int64_t>(i)), x.data[first + i]);
        e.out[0]->data.push_back(weightedSum(a, terms, {}));
      }
    }
  }
};

}  // namespace

void defineOrdering(Catalog& catalog) { define<TopK>(catalog); }

}  // namespace shardproof::ops
