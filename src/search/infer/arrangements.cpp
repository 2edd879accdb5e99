// SPDX-License-Identifier: Apache-2.0
#include "infer/arrangements.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "util/index.h"

namespace shardproof::infer {

namespace {

constexpr std::int64_t kMostPieces = 8;
constexpr std::size_t kMostPermuted = 4;  // dimensions
constexpr std::size_t kMostScales = 16;
constexpr std::size_t kMostRegroupings = 24;

// Those that change the order of dimensions longer than 1.
std::vector<std::vector<std::int64_t>> permutationsOf(const Shape& shape) {
  std::vector<std::vector<std::int64_t>> all;
  if (shape.size() < 2 || shape.size() > kMostPermuted) return all;
  std::vector<std::int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  while (std::next_permutation(order.begin(), order.end())) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t d : order)
      if (shape[at(d)] > 1) longer.push_back(d);
    if (!std::is_sorted(longer.begin(), longer.end())) all.push_back(order);
  }
  return all;
}

std::vector<Arrangement> pieces(std::int32_t dim, std::int64_t count, const Arrangement& like) {
  std::vector<Arrangement> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back(like);
    all.back().dim = dim;
    all.back().count = count;
    all.back().index = i;
  }
  return all;
}

// Of rows that were one dimension also the other order: [s b, h] for [b, s, h].
std::vector<Arrangement> regroupings(const Shape& shape, const std::set<std::int64_t>& extents) {
  std::vector<Arrangement> all;
  const auto add = [&](std::size_t d, std::int64_t inner, bool swapped) {
    Arrangement arrangement;
    arrangement.regrouped = static_cast<std::int32_t>(d);
    arrangement.inner = inner;
    if (swapped) {
      arrangement.permute.resize(shape.size() + 1);
      std::iota(arrangement.permute.begin(), arrangement.permute.end(), 0);
      std::swap(arrangement.permute[d], arrangement.permute[d + 1]);
    }
    if (all.size() < kMostRegroupings) all.push_back(std::move(arrangement));
  };
  for (std::size_t d = 0; d + 1 < shape.size(); ++d)
    if (shape[d] > 1 && shape[d + 1] > 1) add(d, 0, false);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::set<std::int64_t> inner;
    for (const std::int64_t extent : extents) {
      if (extent < 2 || extent >= shape[d] || shape[d] % extent != 0) continue;
      inner.insert(extent);
      inner.insert(shape[d] / extent);
    }
    for (const std::int64_t i : inner)
      for (const bool swapped : {false, true}) add(d, i, swapped);
  }
  return all;
}

}  // namespace

Shape Arrangement::viewOf(const Shape& whole) const {
  Shape view = whole;
  if (regrouped < 0) return view;
  const std::size_t d = at(regrouped);
  if (inner == 0) {
    view[d] *= view[d + 1];
    view.erase(view.begin() + regrouped + 1);
  } else {
    view[d] /= inner;
    view.insert(view.begin() + regrouped + 1, inner);
  }
  return view;
}

Shape Arrangement::shapeOf(const Shape& whole) const {
  Shape cut = viewOf(whole);
  if (dim >= 0) cut[at(dim)] /= count;
  if (permute.empty()) return cut;
  Shape result;
  for (const std::int64_t d : permute) result.push_back(cut[at(d)]);
  return result;
}

LocalPart Arrangement::partOf(const Shape& whole) const {
  LocalPart part;
  part.permute = permute;
  part.scale = scale;
  if (regrouped >= 0) part.view = viewOf(whole);
  if (dim < 0) return part;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    const bool here = d == at(dim);
    const std::int64_t extent = here ? whole[d] / count : whole[d];
    part.box.emplace_back(here ? index * extent : 0, here ? (index + 1) * extent : extent);
  }
  return part;
}

std::vector<std::vector<Arrangement>> arrangementsOf(const Shape& shape,
                                                     const std::vector<Rational>& scales,
                                                     const std::set<std::int64_t>& extents,
                                                     bool multiplesOnly) {
  std::vector<std::vector<Arrangement>> all;
  for (const Rational& scale : scales) {
    Arrangement arrangement;
    arrangement.scale = scale;
    all.push_back({arrangement});
  }
  if (multiplesOnly) return all;
  const auto permutations = permutationsOf(shape);
  for (const auto& permute : permutations) {
    Arrangement arrangement;
    arrangement.permute = permute;
    all.push_back({arrangement});
  }
  for (const Arrangement& arrangement : regroupings(shape, extents)) all.push_back({arrangement});
  for (std::size_t d = 0; d < shape.size(); ++d)
    for (std::int64_t count = 2; count <= kMostPieces; ++count)
      if (shape[d] % count == 0 && shape[d] > 1)
        all.push_back(pieces(static_cast<std::int32_t>(d), count, {}));
  // Zigzag sequences before batches.
  for (const auto& permute : permutations) {
    Arrangement arrangement;
    arrangement.permute = permute;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (shape[d] % 2 == 0) all.push_back(pieces(static_cast<std::int32_t>(d), 2, arrangement));
  }
  return all;
}

template <class Real>
std::vector<Real> elementsOf(const Real* whole, const Shape& all, const Arrangement& arrangement) {
  const Shape shape = arrangement.viewOf(all);
  Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  std::int64_t offset = 0;
  if (arrangement.dim >= 0)
    offset = strides[at(arrangement.dim)] * arrangement.index *
             (shape[at(arrangement.dim)] / arrangement.count);
  const Shape result = arrangement.shapeOf(all);
  Shape steps = strides;
  if (!arrangement.permute.empty())
    for (std::size_t d = 0; d < steps.size(); ++d) steps[d] = strides[at(arrangement.permute[d])];
  const auto factor = static_cast<Real>(arrangement.scale.toDouble());
  std::vector<Real> elements;
  Shape position(shape.size(), 0);
  while (true) {
    elements.push_back(factor * whole[offset]);
    std::size_t d = result.size();
    for (; d > 0; --d) {
      offset += steps[d - 1];
      if (++position[d - 1] < result[d - 1]) break;
      offset -= steps[d - 1] * result[d - 1];
      position[d - 1] = 0;
    }
    if (d == 0) return elements;
  }
}

template std::vector<double> elementsOf(const double*, const Shape&, const Arrangement&);
template std::vector<long double> elementsOf(const long double*, const Shape&, const Arrangement&);

std::set<std::int64_t> extentsOf(const Problem& problem) {
  std::set<std::int64_t> whole;
  for (const Tensor& tensor : problem.model.graph.tensors)
    whole.insert(tensor.shape.begin(), tensor.shape.end());
  std::set<std::int64_t> extents = whole;
  for (const MeshAxis& axis : problem.plan.mesh)
    for (const std::int64_t n : whole)
      if (n % axis.size == 0) extents.insert(n / axis.size);
  return extents;
}

std::vector<Rational> scalesOf(const Plan& plan) {
  std::vector<std::int64_t> numbers{1};
  const auto times = [&](std::int64_t n) {
    const std::vector<std::int64_t> before = numbers;
    for (const std::int64_t m : before)
      if (std::int64_t product = 0;
          !__builtin_mul_overflow(m, n, &product) &&
          std::find(numbers.begin(), numbers.end(), product) == numbers.end())
        numbers.push_back(product);
  };
  for (const MeshAxis& axis : plan.mesh)
    if (numbers.size() < kMostScales) times(axis.size);
  if (numbers.size() < kMostScales) times(plan.microbatches);
  std::vector<Rational> scales;
  for (const std::int64_t n : numbers) {
    if (n == 1 || scales.size() >= kMostScales) continue;
    scales.emplace_back(1, n);
    scales.emplace_back(n);
  }
  scales.emplace_back(-1);
  return scales;
}

}  // namespace shardproof::infer
