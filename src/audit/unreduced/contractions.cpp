// SPDX-License-Identifier: Apache-2.0
// linear, matmul, einsum: sums of products over labelled dimensions, and their gradients, which are
// such sums as well (docs/operators.md, "Linear algebra").
#include <algorithm>

#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

// Dimension d of a tensor runs along the label at d; -1: of size 1, whatever the label's size.
struct Labels {
  std::vector<std::vector<int>> operands;
  std::vector<int> result;
};

Labels ofLinear(std::size_t rank) {
  Labels l;
  for (std::size_t d = 0; d + 1 < rank; ++d) l.result.push_back(static_cast<int>(d));
  const int k = static_cast<int>(rank), n = k + 1;
  l.operands = {l.result, {n, k}};
  l.operands[0].push_back(k);
  l.result.push_back(n);
  return l;
}

Labels ofMatmul(const Shape& a, const Shape& b) {
  constexpr int kRow = 1000, kColumn = 1001,
                kInner = 1002;  // leading dimensions are labelled from the last one on
  Labels l;
  l.operands.resize(2);
  const std::size_t leadA = a.size() > 2 ? a.size() - 2 : 0,
                    leadB = b.size() > 2 ? b.size() - 2 : 0, lead = std::max(leadA, leadB);
  for (std::size_t d = 0; d < lead; ++d) {
    const int label = static_cast<int>(lead - 1 - d);
    const bool inA = d + leadA >= lead, inB = d + leadB >= lead;
    const Index sizeA = inA ? a[d + leadA - lead] : 1, sizeB = inB ? b[d + leadB - lead] : 1;
    if (inA) l.operands[0].push_back(sizeA == 1 && sizeB != 1 ? -1 : label);
    if (inB) l.operands[1].push_back(sizeB == 1 && sizeA != 1 ? -1 : label);
    l.result.push_back(label);
  }
  if (a.size() > 1) l.operands[0].push_back(kRow), l.result.push_back(kRow);
  l.operands[0].push_back(kInner);
  l.operands[1].push_back(kInner);
  if (b.size() > 1) l.operands[1].push_back(kColumn), l.result.push_back(kColumn);
  return l;
}

// "bik,kj->bij": explicit, without ellipsis.
Labels ofEinsum(const std::string& equation) {
  Labels l;
  l.operands.emplace_back();
  std::vector<int>* into = &l.operands.back();
  for (std::size_t i = 0; i < equation.size(); ++i) {
    const char c = equation[i];
    if (c == ',') into = &l.operands.emplace_back();
    else if (c == '-') into = &l.result;
    else if (c != '>' && c != ' ') into->push_back(c);
  }
  return l;
}

// One tensor of the product: operand of the node and the labels of its dimensions.
struct Factor {
  std::size_t operand;
  const std::vector<int>* labels;
};

// The sum over all labels that `own` does not have, of the product of the factors, at the position
// `flat` of a tensor labelled `own`.
template <class A>
Number<A> contracted(const NodeView<A>& n, const std::vector<Factor>& factors,
                     const std::vector<int>& own, const Shape& ownShape, Index flat) {
  std::map<int, Index> sizes, fixed;
  for (const Factor& f : factors) {
    for (std::size_t d = 0; d < f.labels->size(); ++d) {
      if ((*f.labels)[d] >= 0) sizes[(*f.labels)[d]] = n.shape(f.operand)[d];
    }
  }
  const Position p = unravel(ownShape, flat);
  for (std::size_t d = 0; d < own.size(); ++d) {
    if (own[d] >= 0) fixed[own[d]] = p[d];
  }
  Shape inner;
  std::vector<int> innerLabels;
  for (const auto& [label, size] : sizes) {
    if (!fixed.contains(label)) inner.push_back(size), innerLabels.push_back(label);
  }
  // For each factor where it starts and how far it moves with each inner label.
  std::vector<Index> start(factors.size(), 0);
  std::vector<std::vector<Index>> stride(factors.size(), std::vector<Index>(inner.size(), 0));
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const Shape& shape = n.shape(factors[f].operand);
    Index step = 1;
    for (std::size_t d = shape.size(); d-- > 0; step *= shape[d]) {
      const int label = (*factors[f].labels)[d];
      if (label < 0) continue;
      if (const auto it = fixed.find(label); it != fixed.end()) start[f] += it->second * step;
      for (std::size_t i = 0; i < inner.size(); ++i)
        stride[f][i] += innerLabels[i] == label ? step : 0;
    }
  }
  std::vector<std::size_t> dims(inner.size());
  for (std::size_t i = 0; i < dims.size(); ++i) dims[i] = i;
  Position q(inner.size());
  Sum<A> sum = n.sum();
  forEach(inner, dims, q, [&] {
    std::optional<Number<A>> product;
    for (std::size_t f = 0; f < factors.size(); ++f) {
      Index where = start[f];
      for (std::size_t i = 0; i < inner.size(); ++i) where += q[i] * stride[f][i];
      const Number<A> x = n.in(factors[f].operand, where);
      product = product ? *product * x : x;
    }
    sum.add(*product);
  });
  return sum.value();
}

// The product's own operands begin at `first` of the node's.
template <class A>
Number<A> value(const NodeView<A>& n, const Labels& l, Index flat) {
  std::vector<Factor> factors;
  for (std::size_t k = 0; k < l.operands.size(); ++k) factors.push_back({k, &l.operands[k]});
  return contracted(n, factors, l.result, n.resultShape(0), flat);
}

// Operand 0 is the result's gradient, operand 1 + k the product's operand k.
template <class A>
Number<A> gradient(const NodeView<A>& n, const Labels& l, std::size_t wanted, Index flat) {
  std::vector<Factor> factors{{0, &l.result}};
  for (std::size_t k = 0; k < l.operands.size(); ++k) {
    if (k != wanted) factors.push_back({1 + k, &l.operands[k]});
  }
  return contracted(n, factors, l.operands[wanted], n.shape(1 + wanted), flat);
}

}  // namespace

void defineContractions(DefinitionTable& table) {
  table.add("linear", [](const auto& n, std::size_t, Index i) {
    const auto product = value(n, ofLinear(n.shape(0).size()), i);
    return n.has(2) ? product + n.in(2, i % n.shape(2)[0]) : product;
  });
  table.add("linear_backward", [](const auto& n, std::size_t r, Index i) {
    if (r < 2) return gradient(n, ofLinear(n.shape(1).size()), r, i);
    const Index columns = n.shape(3)[0];
    auto sum = n.sum();
    for (Index j = i; j < elementsOf(n.shape(0)); j += columns) sum.add(n.in(0, j));
    return sum.value();
  });
  table.add("matmul", [](const auto& n, std::size_t, Index i) {
    return value(n, ofMatmul(n.shape(0), n.shape(1)), i);
  });
  table.add("matmul_backward", [](const auto& n, std::size_t r, Index i) {
    return gradient(n, ofMatmul(n.shape(1), n.shape(2)), r, i);
  });
  table.add("einsum", [](const auto& n, std::size_t, Index i) {
    return value(n, ofEinsum(ops::text(n.attributes(), "equation")), i);
  });
  table.add("einsum_backward", [](const auto& n, std::size_t r, Index i) {
    return gradient(n, ofEinsum(ops::text(n.attributes(), "equation")), r, i);
  });
}

}  // namespace shardproof::unreduced
