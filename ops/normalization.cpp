// SPDX-License-Identifier: Apache-2.0
// softmax, log_softmax (torch.softmax, ...), layer_norm (Ba et al., arXiv 1607.06450;
// torch.nn.functional.layer_norm), rms_norm (Zhang and Sennrich, arXiv 1910.07467;
// torch.nn.functional.rms_norm).
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// Calls f(offset of the row's first element, stride within the row) for each row of `dims` along
// `dim`.
template <class F>
void rows(std::span<const ReducedDim> dims, std::size_t dim, F&& f) {
  const std::vector<Index> strides = rowMajorStrides(dims);
  std::vector<Index> sizes = sizesOf(dims);
  sizes[dim] = 1;
  walk<1>(sizes, {strides}, [&](const std::array<Index, 1>& o) { f(o[0], strides[dim]); });
}

// softmax: exp(x_i) / sum_j exp(x_j) along `dim`; log_softmax: x_i - log(sum_j exp(x_j)). Minus
// infinity is allowed where a finite element remains.
template <bool kLogarithm>
struct Softmax {
  static Interface interface() {
    return {.name = kLogarithm ? "log_softmax" : "softmax",
            .attributes = {{.key = "dim", .required = true}},
            .traits = {.total = true,
                       .finite = !kLogarithm,
                       .keepsSign = !kLogarithm,
                       .sign = kLogarithm ? Sign::kAny : Sign::kPositive}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    dimIndex(integer(s.attributes, "dim"), shapeOf(s, 0).size());
    return {TensorInfo{shapeOf(s, 0)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    equalTensors(s, 0, slotOfResult(s, 0), relations);
    relations.summed(ref(0, dimIndex(integer(s.attributes, "dim"), shapeOf(s, 0).size())));
  }
  static std::size_t independentDims(const Attributes& attributes, std::size_t rank) {
    return dimIndex(integer(attributes, "dim"), rank);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    expectDims(out.dims, x.dims);
    const std::size_t dim = dimIndex(integer(e.attributes, "dim"), x.dims.size());
    const std::vector<std::int64_t> weights = weightsOf(std::span(x.dims).subspan(dim, 1));
    out.data = x.data;
    std::vector<typename A::Element> exps;
    rows(x.dims, dim, [&](Index first, Index stride) {
      exps.clear();
      for (Index i = 0; i < x.dims[dim].size(); ++i)
        exps.push_back(e.algebra.exp(x.data[at(first + i * stride)]));
      const auto total = weightedSum(e.algebra, exps, weights);
      if constexpr (kLogarithm) {
        const std::array<typename A::Element, 1> argument{total};
        const auto log =
            e.algebra.apply(Function::kLog, {}, std::span<const typename A::Element>(argument));
        for (Index i = 0; i < x.dims[dim].size(); ++i) {
          const std::size_t k = at(first + i * stride);
          out.data[k] = subtract(e.algebra, x.data[k], log);
        }
      } else {
        const auto inverse = e.algebra.power(total, -2);
        for (Index i = 0; i < x.dims[dim].size(); ++i)
          out.data[at(first + i * stride)] = e.algebra.mul(exps[at(i)], inverse);
      }
    });
  }
};

// Operands x [..., d], w [d], optional b [d]; over the last dimension:
// layer_norm: (x - mean) / sqrt(variance + eps) * w + b, the variance divided by d; rms_norm: x /
// sqrt(mean(x^2) + eps) * w + b.
template <bool kCentred>
struct Norm {
  static Interface interface() {
    return {.name = kCentred ? "layer_norm" : "rms_norm",
            .attributes = {{.key = "eps",
                            .type = AttributeType::kNumber,
                            .required = true,
                            .min = Rational(0)}},
            .minOperands = 2,
            .maxOperands = 3,
            .optionalOperands = {2}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    const Shape& x = shapeOf(s, 0);
    if (x.empty()) throw ShapeError("operand 0 has shape [], expected [..., d]");
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      if (!present(s, i)) continue;
      needReal(s, i);
      if (shapeOf(s, i) != Shape{x.back()})
        throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                         ", expected " + toText({x.back()}));
    }
    return {TensorInfo{x}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t last = shapeOf(s, 0).size() - 1;
    equalTensors(s, 0, slotOfResult(s, 0), relations);
    relations.summed(ref(0, last));
    relations.equal(ref(1, 0), ref(0, last));
    if (present(s, 2)) relations.equal(ref(2, 0), ref(0, last));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    using Element = typename A::Element;
    const TensorValue<A>&x = *e.in[0], &w = *e.in[1];
    const TensorValue<A>* b = e.in.size() > 2 ? e.in[2] : nullptr;
    TensorValue<A>& out = *e.out[0];
    expectDims(out.dims, x.dims);
    const std::size_t last = x.dims.size() - 1;
    const ReducedDim& d = x.dims[last];
    expectDims(w.dims, std::span(&d, 1));
    if (b != nullptr) expectDims(b->dims, std::span(&d, 1));
    A& a = e.algebra;
    const Element eps = a.constant(number(e.attributes, "eps"));
    const Rational share(1, d.full);
    const std::vector<std::int64_t> weights = weightsOf(std::span(&d, 1));
    out.data = x.data;
    std::vector<Element> row, squares;
    rows(x.dims, last, [&](Index first, Index) {
      row.assign(x.data.begin() + first, x.data.begin() + first + d.size());
      if constexpr (kCentred) {
        const Element mean = a.scale(share, weightedSum(a, row, weights));
        for (Element& v : row) v = subtract(a, v, mean);
      }
      squares.clear();
      for (const Element& v : row) squares.push_back(a.power(v, 4));
      const Element inverse =
          a.power(a.add(a.scale(share, weightedSum(a, squares, weights)), eps), -1);
      for (std::size_t i = 0; i < row.size(); ++i) {
        Element y = a.mul(a.mul(row[i], inverse), w.data[i]);
        if (b != nullptr) y = a.add(y, b->data[i]);
        out.data[at(first) + i] = y;
      }
    });
  }
};

}  // namespace

void defineNormalization(Catalog& catalog) {
  define<Softmax<false>>(catalog);
  define<Softmax<true>>(catalog);
  define<Norm<true>>(catalog);
  define<Norm<false>>(catalog);
}

}  // namespace shardproof::ops
