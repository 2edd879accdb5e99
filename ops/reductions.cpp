// SPDX-License-Identifier: Apache-2.0
// Reductions over whole dimensions: sum, mean, amax, amin, logsumexp (torch.sum, torch.mean, ...).
// `dim`: an integer or a list, absent: all dimensions; `keepdim` leaves them with size 1. Errors:
// dimensions out of range or listed twice, operands that are not real.
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

std::vector<bool> reducedDims(const Attributes& attributes, std::size_t rank) {
  std::vector<bool> reduced(rank, !has(attributes, "dim"));
  if (!has(attributes, "dim")) return reduced;
  for (const std::int64_t d : integers(attributes, "dim")) {
    const std::size_t i = dimIndex(d, rank);
    if (reduced[i])
      throw DimensionError("dimension " + std::to_string(i) + " is listed twice in 'dim'");
    reduced[i] = true;
  }
  return reduced;
}

// sum over the representatives with their weights
struct Sum {
  template <class A>
  static typename A::Element apply(A& a, const std::vector<typename A::Element>& x,
                                   const std::vector<std::int64_t>& weights, std::int64_t) {
    return weightedSum(a, x, weights);
  }
};
// the sum divided by the full number of positions
struct Mean {
  template <class A>
  static typename A::Element apply(A& a, const std::vector<typename A::Element>& x,
                                   const std::vector<std::int64_t>& weights, std::int64_t full) {
    return a.scale(Rational(1, full), weightedSum(a, x, weights));
  }
};
// An extremum does not see how often a value occurs.
struct Amax {
  template <class A>
  static typename A::Element apply(A& a, const std::vector<typename A::Element>& x,
                                   const std::vector<std::int64_t>&, std::int64_t) {
    return a.apply(Function::kMaximum, {}, std::span<const typename A::Element>(x));
  }
};
struct Amin {
  template <class A>
  static typename A::Element apply(A& a, const std::vector<typename A::Element>& x,
                                   const std::vector<std::int64_t>&, std::int64_t) {
    return a.apply(Function::kMinimum, {}, std::span<const typename A::Element>(x));
  }
};
// log(sum(exp(x)))
struct LogSumExp {
  template <class A>
  static typename A::Element apply(A& a, const std::vector<typename A::Element>& x,
                                   const std::vector<std::int64_t>& weights, std::int64_t) {
    std::vector<typename A::Element> exps;
    for (const auto& v : x) exps.push_back(a.exp(v));
    const std::array<typename A::Element, 1> total{weightedSum(a, exps, weights)};
    return a.apply(Function::kLog, {}, std::span<const typename A::Element>(total));
  }
};

template <class F>
struct Reduce {
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    const Shape& x = shapeOf(s, 0);
    const std::vector<bool> reduced = reducedDims(s.attributes, x.size());
    const bool keepdim = flag(s.attributes, "keepdim", false);
    Shape shape;
    for (std::size_t d = 0; d < x.size(); ++d) {
      if (!reduced[d]) shape.push_back(x[d]);
      else if (keepdim) shape.push_back(1);
    }
    return {TensorInfo{std::move(shape)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::vector<bool> reduced = reducedDims(s.attributes, shapeOf(s, 0).size());
    const bool keepdim = flag(s.attributes, "keepdim", false);
    std::size_t r = 0;
    for (std::size_t d = 0; d < reduced.size(); ++d) {
      if (reduced[d]) relations.summed(ref(0, d));
      else relations.equal(ref(0, d), ref(slotOfResult(s, 0), r));
      if (!reduced[d] || keepdim) ++r;
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    const std::vector<bool> reduced = reducedDims(e.attributes, x.dims.size());
    const bool keepdim = flag(e.attributes, "keepdim", false);
    const std::vector<Index> strides = rowMajorStrides(x.dims);
    std::vector<ReducedDim> expected, outer, inner;
    std::vector<Index> outerStrides, innerStrides;
    std::int64_t full = 1;
    for (std::size_t d = 0; d < x.dims.size(); ++d) {
      if (reduced[d]) {
        inner.push_back(x.dims[d]);
        innerStrides.push_back(strides[d]);
        full *= x.dims[d].full;
        if (keepdim) expected.emplace_back();
      } else {
        outer.push_back(x.dims[d]);
        outerStrides.push_back(strides[d]);
        expected.push_back(x.dims[d]);
      }
    }
    // A full reduction may be declared [1] instead of [] (OperatorInfo::scalarMayBeOne).
    if (expected.empty() && out.dims.size() == 1) expected.emplace_back();
    expectDims(out.dims, expected);
    const std::vector<std::int64_t> weights = weightsOf(inner);
    const std::vector<Index> innerSizes = sizesOf(inner);
    out.data.clear();
    std::vector<typename A::Element> row;
    walk<1>(sizesOf(outer), {outerStrides}, [&](const std::array<Index, 1>& o) {
      row.clear();
      walk<1>(innerSizes, {innerStrides},
              [&](const std::array<Index, 1>& i) { row.push_back(x.data[at(o[0] + i[0])]); });
      out.data.push_back(F::apply(e.algebra, row, weights, full));
    });
  }
};

template <class F>
void reduction(Catalog& catalog, const char* name, bool dimRequired, bool differentiable,
               Traits traits) {
  define<Reduce<F>>(catalog, {.name = name,
                              .attributes = {{.key = "dim",
                                              .type = AttributeType::kIntegerOrIntegers,
                                              .required = dimRequired},
                                             {.key = "keepdim", .type = AttributeType::kFlag}},
                              .differentiable = differentiable,
                              .scalarMayBeOne = true,
                              .traits = traits});
}

}  // namespace

void defineReductions(Catalog& catalog) {
  reduction<Sum>(catalog, "sum", false, true, {.affine = true, .total = true, .keepsSign = true});
  reduction<Mean>(catalog, "mean", false, true, {.affine = true, .total = true, .keepsSign = true});
  // The gradient of an extremum depends on how ties are broken: there is no amax_backward.
  reduction<Amax>(catalog, "amax", false, false, {.picks = true, .total = true, .keepsSign = true});
  reduction<Amin>(catalog, "amin", false, false, {.picks = true, .total = true, .keepsSign = true});
  reduction<LogSumExp>(catalog, "logsumexp", true, true, {.total = true});
}

}  // namespace shardproof::ops
