// SPDX-License-Identifier: Apache-2.0
#include "ops/positions.h"

#include <array>
#include <stdexcept>

namespace shardproof::ops {

namespace {

int sign(std::int64_t a, std::int64_t b) { return a < b ? -1 : a > b ? 1 : 0; }

}  // namespace

PositionOrder comparePositions(const ReducedDim& dim, std::int64_t first, std::int64_t second) {
  const auto at = [&](std::int64_t i) { return dim.position[static_cast<std::size_t>(i)]; };
  if (!dim.reduced()) return {sign(at(first), at(second)), {}};
  if (dim.places.empty())
    throw std::logic_error("positions of a reduced dimension are compared, but not where they lie");
  const auto a = dim.placesOf(first), b = dim.placesOf(second);
  PositionOrder order;
  bool diagonal = true;  // one and the same position, and not one that stands for several
  for (std::size_t f = 0; f < a.size(); ++f) {
    int pieces = sign(a[f].start, b[f].start);
    if (pieces == 0 && !a[f].reduced)
      pieces = sign(a[f].offset, b[f].offset);  // every position is itself
    diagonal = diagonal && pieces == 0 && a[f].offset == b[f].offset && !a[f].weighted;
    const bool symbolic = pieces == 0 && a[f].reduced;
    if (order.params.empty()) {
      if (pieces != 0) return {pieces, {}};
      if (!symbolic) continue;  // the same in this factor: the next one decides
    }
    const std::array<std::int64_t, kPositionParams> params{a[f].piece, a[f].offset, b[f].piece,
                                                           b[f].offset, pieces};
    order.params.insert(order.params.end(), params.begin(), params.end());
    if (pieces != 0) break;  // what lies further in decides nothing
  }
  if (diagonal) return {0, {}};
  if (order.params.empty()) return {0, {}};
  return order;
}

}  // namespace shardproof::ops
