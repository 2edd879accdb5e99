#include "ops/positions.h"

#include <stdexcept>

namespace shardproof::ops {

namespace {

constexpr std::size_t kParamsPerFactor = 5;

int sign(std::int64_t a, std::int64_t b) { return a < b ? -1 : a > b ? 1 : 0; }

}  // namespace

PositionOrder comparePositions(const ReducedDim& dim, std::int64_t first, std::int64_t second) {
  const auto at = [&](std::int64_t i) { return dim.position[static_cast<std::size_t>(i)]; };
  if (!dim.lumped()) return {sign(at(first), at(second)), {}};
  if (dim.places.empty())
    throw std::logic_error("positions of a lumped dimension are compared, but not where they lie");
  const auto a = dim.placesOf(first), b = dim.placesOf(second);
  PositionOrder order;
  bool diagonal = true;  // one and the same position, and not one that stands for several
  for (std::size_t f = 0; f < a.size(); ++f) {
    int pieces = sign(a[f].start, b[f].start);
    if (pieces == 0 && !a[f].lumped)
      pieces = sign(a[f].offset, b[f].offset);  // every position is itself
    diagonal = diagonal && pieces == 0 && a[f].offset == b[f].offset && !a[f].stands;
    const bool symbolic = pieces == 0 && a[f].lumped;
    if (order.params.empty()) {
      if (pieces != 0) return {pieces, {}};
      if (!symbolic) continue;  // the same in this factor: the next one decides
    }
    for (const std::int64_t p : {std::int64_t{a[f].piece}, a[f].offset, std::int64_t{b[f].piece},
                                 b[f].offset, std::int64_t{pieces}})
      order.params.push_back(p);
    if (pieces != 0) break;  // what lies further in decides nothing
  }
  if (diagonal) return {0, {}};
  if (order.params.empty()) return {0, {}};
  return order;
}

int orderOfOffsets(std::span<const std::int64_t> params) {
  for (std::size_t i = 0; i + kParamsPerFactor <= params.size(); i += kParamsPerFactor) {
    if (params[i + 4] != 0) return static_cast<int>(params[i + 4]);
    if (const int offsets = sign(params[i + 1], params[i + 3]); offsets != 0) return offsets;
  }
  return 0;
}

}  // namespace shardproof::ops
