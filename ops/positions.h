// SPDX-License-Identifier: Apache-2.0
// Comparing two positions of one dimension, where some positions are reduced: masks.
//
// A dimension is cut into pieces, and pieces that run together - in this tensor or another, of the
// model or of a rank - are of one class. What an entry [row >= column] is can be known from the
// pieces alone: if they are different ones, all of the one lies before all of the other. Within one
// piece that is reduced it is unknown, an opaque function of the class and of both offsets in the
// piece. That this function is the same for all pieces of the class, wherever they lie, is why a
// rank's own mask of rows 16 to 31 meets the model's: two positions of a piece are ordered as their
// offsets are, and a piece that runs together with another is a shift of it. Pieces of different
// classes have different functions, so the masks of two sequences that nothing relates have nothing
// in common.
//
// Of a position that stands for several the comparison with itself is such a function, too, which
// holds for those on the diagonal and for those beside it (comparesWithItself in
// terms/functions.h).
//
// Nothing here depends on where in its own tensor an entry stands: permuting the positions of a
// class permutes the arguments of the function, as it permutes the elements of a matrix that is an
// input. At full size the function is one such matrix (docs/soundness.md, "Masks").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/algebra.h"

namespace shardproof::ops {

struct PositionOrder {
  // Of the first position minus the second, where it is known: -1, 0 or 1.
  std::optional<int> sign;
  // Where it is not known: for each factor of the dimension from the first undecided one on, both
  // classes, both offsets, and how the pieces lie (-1, 0, 1): the parameters of kMaskEntry
  // (terms/functions.h). Equal lists are equal comparisons.
  std::vector<std::int64_t> params;
};

// Throws std::logic_error for a reduced dimension whose places are not given.
PositionOrder comparePositions(const ReducedDim& dim, std::int64_t first, std::int64_t second);

}  // namespace shardproof::ops
