// SPDX-License-Identifier: Apache-2.0
#include "shrink/dimension_shares.h"

#include <algorithm>
#include <map>

#include "ir/coordinates.h"

namespace shardproof {

using Dim = PlanLines::Dim;

std::vector<std::pair<std::int32_t, PlanLines::Dim>> DimensionShares::shareOut(
    Dim whole, std::int64_t lo, Dim part, const std::vector<std::int32_t>& axes) {
  std::vector<std::pair<std::int32_t, Dim>> shares;
  std::vector<std::int32_t> several;
  for (const std::int32_t axis : axes) {
    if (ir::axisSize(plan_, axis) > 1) several.push_back(axis);
  }
  if (several.empty()) {
    lines_.range(whole, lo, part);
    return shares;
  }
  for (std::size_t i = 0; i < several.size(); ++i) {
    const bool last = i + 1 == several.size();
    const Dim next =
        last ? whole : lines_.add(lines_.fullSize(part) * ir::axisSize(plan_, several[i]));
    tilings_.push_back({next, last ? lo : 0, part, several[i], ir::axisSize(plan_, several[i]),
                        static_cast<std::int64_t>(kept_.of(several[i]).size())});
    shares.emplace_back(several[i], part);
    part = next;
  }
  return shares;
}

std::vector<Tiling> DimensionShares::choose() {
  std::vector<Tiling> chosen;
  std::map<std::int64_t, std::vector<Tiling>> bySize;
  for (const Tiling& t : tilings_) bySize[lines_.fullSize(t.part)].push_back(t);
  for (const auto& [size, tilings] : bySize) {
    const std::vector<char> structured = lines_.structured();
    std::map<Dim, std::vector<Tiling>> byPart;
    for (const Tiling& t : tilings) byPart[lines_.root(t.part)].push_back(t);
    for (const auto& [part, own] : byPart) {
      const Tiling& first = own.front();
      const bool shared =
          !structured[part] && std::all_of(own.begin(), own.end(),
                                           [&](const Tiling& t) { return t.axis == first.axis; });
      if (!shared) {
        for (const Tiling& t : own) relatePieces(t);
        continue;
      }
      const std::int64_t length = size * first.fullCount;
      for (const Tiling& t : own) {
        if (t.lo == 0 && first.lo == 0 && lines_.fullSize(t.whole) == length &&
            lines_.fullSize(first.whole) == length)
          lines_.equal(t.whole, first.whole);
        else lines_.stretch(first.whole, first.lo, t.whole, t.lo, length);
      }
      chosen.push_back(first);
    }
  }
  // The largest first, so that the size of a whole is known before those of its shares.
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

void DimensionShares::relatePieces(const Tiling& t) {
  const std::int64_t size = lines_.fullSize(t.part);
  for (std::int32_t c = 0; c < t.fullCount; ++c) {
    if (kept_.newCoordinate(t.axis, c) >= 0) {
      lines_.range(t.whole, t.lo + c * size, t.part);
      continue;
    }
    std::int32_t end = c;
    while (end < t.fullCount && kept_.newCoordinate(t.axis, end) < 0) ++end;
    lines_.drop(t.whole, t.lo + c * size, (end - c) * size);
    c = end - 1;
  }
}

}  // namespace shardproof
