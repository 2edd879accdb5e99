// SPDX-License-Identifier: Apache-2.0
#include "ops/algebra.h"

#include "shardproof/error.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "ops/attributes.h"
#include "ops/indexing.h"

namespace shardproof::ops {

std::int64_t ReducedDim::reducedBound(std::int64_t bound) const {
  if (bound < 0 || bound > full)
    throw std::logic_error("bound " + std::to_string(bound) + " lies outside a dimension of " +
                           std::to_string(full));
  const auto end = std::lower_bound(position.begin(), position.end(), bound);
  const auto count = end - position.begin();
  // The classes before the bound must hold exactly the positions before it: otherwise some class
  // straddles the bound and the slice has no image.
  expectCut(std::accumulate(weight.begin(), weight.begin() + count, std::int64_t{0}) == bound,
            bound);
  return count;
}

void ReducedDim::expectCut(bool cut, std::int64_t bound) const {
  if (!cut)
    throw std::logic_error("the reduction did not cut a dimension of " + std::to_string(full) +
                           " at " + std::to_string(bound));
}

ReducedDim ReducedDim::whole(std::int64_t n) {
  ReducedDim d;
  d.full = n;
  d.position.resize(static_cast<std::size_t>(n));
  std::iota(d.position.begin(), d.position.end(), std::int64_t{0});
  d.weight.assign(static_cast<std::size_t>(n), 1);
  return d;
}

std::vector<Index> sizesOf(std::span<const ReducedDim> dims) {
  std::vector<Index> sizes;
  for (const ReducedDim& d : dims) sizes.push_back(d.size());
  return sizes;
}

Shape fullShape(std::span<const ReducedDim> dims) {
  Shape shape;
  for (const ReducedDim& d : dims) shape.push_back(d.full);
  return shape;
}

Index countOf(std::span<const ReducedDim> dims) {
  Index n = 1;
  for (const ReducedDim& d : dims) n *= d.size();
  return n;
}

std::vector<Index> rowMajorStrides(std::span<const ReducedDim> dims) {
  std::vector<Index> strides(dims.size(), 1);
  for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d].size();
  return strides;
}

std::int64_t checkedProduct(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw Unsupported("an iteration space of 2^63 or more positions");
  return product;
}

std::vector<std::int64_t> weightsOf(std::span<const ReducedDim> dims) {
  std::vector<std::int64_t> all{1};
  bool ones = true;
  for (const ReducedDim& d : dims) {
    std::vector<std::int64_t> next;
    next.reserve(all.size() * d.weight.size());
    for (const std::int64_t a : all)
      for (const std::int64_t w : d.weight) {
        next.push_back(checkedProduct(a, w));
        ones = ones && w == 1;
      }
    all = std::move(next);
  }
  if (ones) all.clear();
  return all;
}

void inconsistent(const std::string& what) {
  throw std::logic_error("the reduced shapes contradict the operator: " + what);
}

void expectDim(const ReducedDim& found, const ReducedDim& expected) {
  if (found == expected) return;
  inconsistent("found a dimension of " + std::to_string(found.full) + " reduced to positions " +
               toText(found.position) + " weights " + toText(found.weight) + ", expected " +
               std::to_string(expected.full) + " reduced to positions " +
               toText(expected.position) + " weights " + toText(expected.weight));
}

void expectDims(std::span<const ReducedDim> found, std::span<const ReducedDim> expected) {
  if (found.size() != expected.size())
    inconsistent("found " + std::to_string(found.size()) + " dimensions, expected " +
                 std::to_string(expected.size()));
  for (std::size_t d = 0; d < found.size(); ++d) expectDim(found[d], expected[d]);
}

std::vector<ReducedDim> broadcastDims(std::span<const std::vector<ReducedDim>* const> operands) {
  std::size_t rank = 0;
  for (const auto* dims : operands) rank = std::max(rank, dims->size());
  std::vector<ReducedDim> result(rank);
  for (std::size_t d = 0; d < rank; ++d) {  // counted from the last dimension
    const ReducedDim* wide = nullptr;
    for (const auto* dims : operands) {
      if (d >= dims->size()) continue;
      const ReducedDim& dim = (*dims)[dims->size() - 1 - d];
      if (dim.full == 1) continue;
      if (wide != nullptr) expectDim(dim, *wide);
      wide = &dim;
    }
    if (wide != nullptr) result[rank - 1 - d] = *wide;
  }
  return result;
}

std::vector<Index> broadcastStrides(std::span<const ReducedDim> operand,
                                    std::span<const ReducedDim> result) {
  std::vector<Index> strides(result.size(), 0);
  const std::vector<Index> own = rowMajorStrides(operand);
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const std::size_t r = d + result.size() - operand.size();
    if (operand[d].full == result[r].full) strides[r] = own[d];
  }
  return strides;
}

ReducedDim stretch(const ReducedDim& whole, Index lo, Index hi) {
  return stretchFrom(whole, whole.reducedBound(lo), lo, hi);
}

ReducedDim stretchFrom(const ReducedDim& whole, Index first, Index lo, Index hi) {
  ReducedDim d;
  d.full = hi - lo;
  d.position.clear();
  d.weight.clear();
  std::int64_t positions = 0;
  for (Index i = first; i < whole.size() && whole.position[at(i)] < hi; ++i) {
    d.position.push_back(whole.position[at(i)] - lo);
    d.weight.push_back(whole.weight[at(i)]);
    positions += d.weight.back();
  }
  whole.expectCut(positions == d.full, hi);
  return d;
}

}  // namespace shardproof::ops
