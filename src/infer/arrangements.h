// How a box of a tensor of the model may lie in a local tensor, other than as it is: as one of
// several (zigzag sequences, fused projections), with its dimensions in another order, times a
// number.
#pragma once

#include <cstdint>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

struct Lying {
  std::int32_t dim = -1;              // along which the tensor is cut; -1: all of it is meant
  std::int64_t count = 1, index = 0;  // piece `index` of `count` equal ones
  std::vector<std::int64_t> permute;  // as LocalPart::permute
  Rational scale = Rational(1);       // the piece times this is the box
  bool asItIs() const { return dim < 0 && permute.empty() && scale.isOne(); }
  // Of a tensor of this shape. `count` divides it.
  Shape shapeOf(const Shape& whole) const;
  LocalPart partOf(const Shape& whole) const;
};

// Each is all pieces of a tensor of this shape. The likeliest first.
std::vector<std::vector<Lying>> arrangementsOf(const Shape& shape,
                                               const std::vector<Rational>& scales,
                                               bool multiplesOnly);

// The elements of the piece, permuted and multiplied, row-major.
template <class Real>
std::vector<Real> elementsOf(const Real* whole, const Shape& shape, const Lying& lying);

// By what a gradient or a mean may be multiplied: numbers of ranks and microbatches, and -1.
std::vector<Rational> scalesOf(const Plan& plan);

}  // namespace shardproof::infer
