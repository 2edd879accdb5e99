// SPDX-License-Identifier: Apache-2.0
// Positions in tensors of any size, as one row-major number or as one number for each dimension.
// Nothing here is about reduced shapes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shardproof/error.h"
#include "shardproof/graph.h"
#include "util/index.h"

namespace shardproof::unreduced {

using Index = std::int64_t;

// One number for each dimension, without memory of its own on the heap: there is one for every
// element that is evaluated.
class Position {
 public:
  static constexpr std::size_t kMostDimensions = 16;

  Position() = default;
  // Throws Unsupported for more dimensions than there is room for.
  explicit Position(std::size_t rank) : rank_(rank) {
    if (rank > kMostDimensions)
      throw Unsupported("a tensor of " + std::to_string(rank) + " dimensions");
  }
  std::size_t rank() const { return rank_; }
  Index& operator[](std::size_t d) { return at_[d]; }
  Index operator[](std::size_t d) const { return at_[d]; }

 private:
  std::array<Index, kMostDimensions> at_{};
  std::size_t rank_ = 0;
};

inline Position unravel(const Shape& shape, Index flat) {
  Position p(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    p[d] = flat % shape[d];
    flat /= shape[d];
  }
  return p;
}

inline Index ravel(const Shape& shape, const Position& p) {
  Index flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + p[d];
  return flat;
}

inline Index elementsOf(const Shape& shape) {
  Index n = 1;
  for (const Index s : shape) {
    if (__builtin_mul_overflow(n, s, &n))
      throw Unsupported("a tensor of more elements than 64 bits can count");
  }
  return n;
}

// A dimension counted from the end where negative.
inline std::size_t dimension(Index dim, std::size_t rank) {
  return at(dim < 0 ? dim + static_cast<Index>(rank) : dim);
}

// f() for each position of the dimensions `dims` of `shape`, which `p` takes on one after the
// other; the others stay as they are.
template <class F>
void forEach(const Shape& shape, std::span<const std::size_t> dims, Position& p, F&& f) {
  for (const std::size_t d : dims) p[d] = 0;
  for (;;) {
    f();
    std::size_t k = dims.size();
    while (k > 0 && ++p[dims[k - 1]] == shape[dims[k - 1]]) p[dims[--k]] = 0;
    if (k == 0) return;
  }
}

}  // namespace shardproof::unreduced
