// SPDX-License-Identifier: Apache-2.0
// How a box of a tensor of the model may lie in a local tensor, other than as it is: as one of
// several (zigzag sequences, fused projections), with its dimensions regrouped (rows of batch and
// sequence as one) or in another order, times a number.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

struct Arrangement {
  std::int32_t dim = -1;              // along which the tensor is cut; -1: all of it is meant
  std::int64_t count = 1, index = 0;  // piece `index` of `count` equal ones
  // Of all of the tensor, before it is permuted: dimension `regrouped` becomes two, the second of
  // `inner`, or, without, one with the next.
  std::int32_t regrouped = -1;
  std::int64_t inner = 0;
  std::vector<std::int64_t> permute;  // as LocalPart::permute
  Rational scale = Rational(1);       // the piece times this is the box
  bool asItIs() const { return dim < 0 && regrouped < 0 && permute.empty() && scale.isOne(); }
  Shape viewOf(const Shape& whole) const;
  // Of a tensor of this shape. `count` and `inner` divide it.
  Shape shapeOf(const Shape& whole) const;
  LocalPart partOf(const Shape& whole) const;
};

// Each is all pieces of a tensor of this shape. The likeliest first. `extents`: into which
// dimensions may be taken apart.
std::vector<std::vector<Arrangement>> arrangementsOf(const Shape& shape,
                                                     const std::vector<Rational>& scales,
                                                     const std::set<std::int64_t>& extents,
                                                     bool multiplesOnly);

// The elements of the piece, permuted and multiplied, row-major.
template <class Real>
std::vector<Real> elementsOf(const Real* whole, const Shape& shape, const Arrangement& arrangement);

// The extents of the model's dimensions, and their shares along an axis of the mesh.
std::set<std::int64_t> extentsOf(const Problem& problem);

// By what a gradient or a mean may be multiplied: numbers of ranks and microbatches, and -1.
std::vector<Rational> scalesOf(const Plan& plan);

}  // namespace shardproof::infer
