// SPDX-License-Identifier: Apache-2.0
// Sketches: a thousand sums in place of the elements of a large tensor.
//
// Each element goes, with a sign, into one of kBuckets sums; sign and sum follow from a hash of its
// place in the whole tensor (a count sketch: Charikar, Chen and Farach-Colton, 2002). A sketch is
// linear, so the sketches of parts and of summands add up to that of the whole tensor, and the
// sketch of a difference is the difference of sketches. Over the hash, the expected square of a
// sketch's norm is the square of the tensor's norm, with a standard deviation of at most
// sqrt(2 / kBuckets) of it: 4.4 %.
//
// The Python package writes sketches (numbers/sketch.py), with the same hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compare/layout.h"
#include "compare/measure.h"

namespace shardproof::compare {

constexpr std::size_t kBuckets = 1024;
using Sketch = std::vector<double>;  // kBuckets sums

// The hash of an element's place, in row-major order: splitmix64 (Steele, Lea and Flood, 2014).
std::uint64_t hashOfPlace(std::uint64_t place);
// Adds `count` elements of a whole tensor from `place` on.
void addToSketch(Sketch& sketch, std::size_t place, const double* values, std::size_t count);

// The sketch of a whole tensor that ranks have as sketches or as elements, and what merging found:
// its sums of squares are of sketches.
struct MergedSketch {
  Sketch sums;
  Merged merged;
};
MergedSketch sketchOf(const Layout& layout, bool parallel);

// Whether a piece is a sketch.
bool hasSketch(const Layout& layout);

}  // namespace shardproof::compare
