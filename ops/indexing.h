// SPDX-License-Identifier: Apache-2.0
// Index arithmetic over reduced dimensions, shared by the operators.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/algebra.h"
#include "util/index.h"

namespace shardproof::ops {

using Index = std::int64_t;

std::vector<Index> sizesOf(std::span<const ReducedDim> dims);
Index countOf(std::span<const ReducedDim> dims);
Shape fullShape(std::span<const ReducedDim> dims);
std::vector<Index> rowMajorStrides(std::span<const ReducedDim> dims);

// For each element (row-major over dims) how many full positions it stands for; empty when that is
// 1 for all of them.
std::vector<std::int64_t> weightsOf(std::span<const ReducedDim> dims);

// Throws std::logic_error: the reduction handed over dimensions that contradict the operator's own
// rule. Going on would compute something else than the operator, so this is never ignored.
void expectDim(const ReducedDim& found, const ReducedDim& expected);
void expectDims(std::span<const ReducedDim> found, std::span<const ReducedDim> expected);
[[noreturn]] void inconsistent(const std::string& what);

// PyTorch's broadcasting, decided on full sizes (a dimension of full size 8 reduced to one element
// is not broadcast).
std::vector<ReducedDim> broadcastDims(std::span<const std::vector<ReducedDim>* const> operands);
// Strides that read `operand` while walking over `result`, 0 along broadcast dimensions.
std::vector<Index> broadcastStrides(std::span<const ReducedDim> operand,
                                    std::span<const ReducedDim> result);

// The image of the stretch [lo, hi) of a dimension.
ReducedDim stretch(const ReducedDim& whole, Index lo, Index hi);
// The same where it is known that the reduced positions from `first` on are those from lo on.
ReducedDim stretchFrom(const ReducedDim& whole, Index first, Index lo, Index hi);

// Walks over all index tuples in row-major order, keeping N offsets along; calls f(offsets).
template <std::size_t N, class F>
void walk(std::span<const Index> sizes, const std::array<std::vector<Index>, N>& strides, F&& f) {
  for (const Index s : sizes)
    if (s == 0) return;
  std::vector<Index> at(sizes.size(), 0);
  std::array<Index, N> offset{};
  while (true) {
    f(static_cast<const std::array<Index, N>&>(offset));
    std::size_t d = sizes.size();
    while (d > 0) {
      --d;
      ++at[d];
      for (std::size_t i = 0; i < N; ++i) offset[i] += strides[i][d];
      if (at[d] < sizes[d]) break;
      for (std::size_t i = 0; i < N; ++i) offset[i] -= strides[i][d] * sizes[d];
      at[d] = 0;
      if (d == 0) return;
    }
    if (sizes.empty()) return;
  }
}

// A row of elements summed with weights (empty: all 1).
template <class A>
typename A::Element weightedSum(A& algebra, const std::vector<typename A::Element>& terms,
                                const std::vector<std::int64_t>& weights) {
  if (terms.size() == 1 && weights.empty()) return terms[0];
  return algebra.sum(std::span<const typename A::Element>(terms),
                     std::span<const std::int64_t>(weights));
}

template <class A>
typename A::Element subtract(A& algebra, typename A::Element a, typename A::Element b) {
  return algebra.add(a, algebra.scale(Rational(-1), b));
}

// The rows [first, second) of a table, whose first full position has the number `start`, that can
// have the number `index`: all, or where the algebra knows the index the one row or none.
template <class A>
std::pair<Index, Index> rowsOf(const A& algebra, const ReducedDim& table, std::int64_t start,
                               typename A::Element index) {
  if constexpr (requires { algebra.known(index); }) {
    if (const auto known = algebra.known(index)) {
      const auto row =
          std::lower_bound(table.position.begin(), table.position.end(), *known - start);
      const Index v = row - table.position.begin();
      return {v, row != table.position.end() && *row == *known - start ? v + 1 : v};
    }
  }
  return {0, table.size()};
}

// One factor of a contraction: a tensor and, for each of its dimensions, the label it is indexed by
// (-1: a broadcast dimension of size 1).
template <class A>
struct Factor {
  const TensorValue<A>* tensor;
  std::vector<int> labels;
};

// The same for an algebra of numbers, in two steps: what a factor has for one place of the result
// is laid out in a row, once for all places that need it, then each place is a product of rows.
// False, and nothing done, where the rows would be many times as large as the factors.
template <class A>
bool contractNumbers(A& algebra, const std::vector<Factor<A>>& factors,
                     const std::vector<std::vector<Index>>& outerOffsets,
                     const std::vector<std::vector<Index>>& innerOffsets,
                     const std::vector<std::int64_t>& weights, TensorValue<A>& result) {
  constexpr std::size_t kMostRepeated = 16;
  constexpr std::int64_t kExact = std::int64_t{1} << 53;  // integers are doubles up to here
  const std::size_t outer = outerOffsets[0].size(), inner = innerOffsets[0].size();
  std::vector<double> weightRow(weights.begin(), weights.end());
  if (std::any_of(weights.begin(), weights.end(), [](std::int64_t w) { return w > kExact; }))
    return false;
  std::vector<std::vector<double>> packed(factors.size());
  std::vector<std::vector<Index>> rowOf(
      factors.size());  // for each place of the result, where its row begins
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const auto& data = factors[f].tensor->data;
    std::vector<Index> starts(data.size(), -1);
    std::size_t rows = 0;
    rowOf[f].reserve(outer);
    for (const Index o : outerOffsets[f]) {
      Index& start = starts[at(o)];
      if (start < 0) start = static_cast<Index>(rows++ * inner);
      rowOf[f].push_back(start);
    }
    if (rows * inner > kMostRepeated * data.size()) return false;
    packed[f].resize(rows * inner);
    for (std::size_t o = 0; o < data.size(); ++o) {
      if (starts[o] < 0) continue;
      double* row = packed[f].data() + starts[o];
      for (std::size_t i = 0; i < inner; ++i) row[i] = data[o + at(innerOffsets[f][i])];
    }
  }
  std::vector<const double*> rows(factors.size() + (weightRow.empty() ? 0 : 1), weightRow.data());
  result.data.clear();
  result.data.reserve(outer);
  for (std::size_t o = 0; o < outer; ++o) {
    for (std::size_t f = 0; f < factors.size(); ++f) rows[f] = packed[f].data() + rowOf[f][o];
    result.data.push_back(algebra.dot(std::span<const double* const>(rows), inner));
  }
  return true;
}

// result[resultLabels] = sum over all other labels of the product of the factors, every sum with
// its weights. Labels are 0..n-1; a label must have the same reduced dimension wherever it stands.
template <class A>
void contract(A& algebra, const std::vector<Factor<A>>& factors,
              const std::vector<int>& resultLabels, TensorValue<A>& result) {
  std::vector<const ReducedDim*> dimOf;
  for (const Factor<A>& f : factors) {
    for (std::size_t d = 0; d < f.labels.size(); ++d) {
      if (f.labels[d] < 0) continue;
      if (dimOf.size() <= at(f.labels[d])) dimOf.resize(at(f.labels[d]) + 1, nullptr);
      const ReducedDim*& known = dimOf[at(f.labels[d])];
      if (known == nullptr) known = &f.tensor->dims[d];
      expectDim(f.tensor->dims[d], *known);
    }
  }
  static const ReducedDim kOne;
  std::vector<ReducedDim> outer, inner;
  std::vector<bool> kept(dimOf.size(), false);
  std::vector<int> order;  // labels of outer, then of inner
  for (const int l : resultLabels) {
    outer.push_back(l < 0 ? kOne : *dimOf.at(at(l)));
    if (l >= 0) kept[at(l)] = true;
  }
  std::vector<int> innerLabels;
  for (std::size_t l = 0; l < dimOf.size(); ++l)
    if (dimOf[l] != nullptr && !kept[l]) {
      inner.push_back(*dimOf[l]);
      innerLabels.push_back(static_cast<int>(l));
    }
  expectDims(result.dims, outer);
  const auto stridesFor = [](const Factor<A>& f, const std::vector<int>& labels) {
    const std::vector<Index> own = rowMajorStrides(f.tensor->dims);
    std::vector<Index> strides(labels.size(), 0);
    for (std::size_t i = 0; i < labels.size(); ++i)
      for (std::size_t d = 0; d < f.labels.size(); ++d)
        if (labels[i] >= 0 && f.labels[d] == labels[i]) strides[i] += own[d];
    return strides;
  };
  // Offsets of each factor for every outer and every inner index tuple; their sum is the element's
  // place.
  const auto offsetsOf = [](std::span<const ReducedDim> dims, const std::vector<Index>& strides) {
    std::vector<Index> offsets;
    const std::vector<Index> sizes = sizesOf(dims);
    walk<1>(sizes, {strides}, [&](const std::array<Index, 1>& o) { offsets.push_back(o[0]); });
    return offsets;
  };
  std::vector<std::vector<Index>> outerOffsets, innerOffsets;
  for (const Factor<A>& f : factors) {
    outerOffsets.push_back(offsetsOf(outer, stridesFor(f, resultLabels)));
    innerOffsets.push_back(offsetsOf(inner, stridesFor(f, innerLabels)));
  }
  const std::vector<std::int64_t> weights = weightsOf(inner);
  const Index outerCount = countOf(outer), innerCount = countOf(inner);
  if constexpr (requires { algebra.dot(std::span<const double* const>(), std::size_t{}); }) {
    if (contractNumbers(algebra, factors, outerOffsets, innerOffsets, weights, result)) return;
  }
  std::vector<typename A::Element> terms;
  result.data.clear();
  result.data.reserve(at(outerCount));
  for (Index o = 0; o < outerCount; ++o) {
    terms.clear();
    for (Index i = 0; i < innerCount; ++i) {
      typename A::Element product =
          factors[0].tensor->data[at(outerOffsets[0][at(o)] + innerOffsets[0][at(i)])];
      for (std::size_t f = 1; f < factors.size(); ++f)
        product = algebra.mul(
            product, factors[f].tensor->data[at(outerOffsets[f][at(o)] + innerOffsets[f][at(i)])]);
      terms.push_back(product);
    }
    result.data.push_back(inner.empty() ? terms[0] : weightedSum(algebra, terms, weights));
  }
}

// How a contraction names the dimensions of its operands (-1: broadcast) and of its result, for
// full sizes and for reduced dimensions alike.
struct ContractionLabels {
  std::vector<std::vector<int>> operands;
  std::vector<int> result;
};

// An operator whose result is a sum of products of its operands, each product contracted:
// `summands` lists the operands of each.
struct SumOfProducts {
  std::vector<std::vector<std::size_t>> summands;
  ContractionLabels labels;
};

// The gradient of one operand of a sum of products, given that of the result. The result is linear
// in the operand, so the gradient is the product of the result's gradient and the other factors,
// contracted to the operand's labels: the sum runs over full positions (with the weights of reduced
// ones), which is what automatic differentiation of the same sum gives (ops/differentiate.h). False
// where a label of the operand stands in nothing else (its gradient repeats along it).
template <class A>
bool contractGradient(A& algebra, const SumOfProducts& products, const TensorValue<A>& gradient,
                      std::span<const TensorValue<A>* const> operands, std::size_t wanted,
                      TensorValue<A>& result) {
  std::vector<Factor<A>> factors{{&gradient, products.labels.result}};
  for (const auto& summand : products.summands) {
    if (std::find(summand.begin(), summand.end(), wanted) == summand.end()) continue;
    for (const std::size_t i : summand) {
      if (operands[i] == nullptr) return false;
      if (i != wanted) factors.push_back({operands[i], products.labels.operands[i]});
    }
  }
  const std::vector<int>& own = products.labels.operands[wanted];
  for (const int label : own) {
    const bool stands =
        label < 0 || std::any_of(factors.begin(), factors.end(), [&](const Factor<A>& f) {
          return std::find(f.labels.begin(), f.labels.end(), label) != f.labels.end();
        });
    if (!stands) return false;
  }
  contract<A>(algebra, factors, own, result);
  return true;
}

}  // namespace shardproof::ops
