// SPDX-License-Identifier: Apache-2.0
// Dimensions that ranks or microbatches share evenly.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shardproof/graph.h"
#include "shrink/kept_ranks.h"
#include "shrink/plan_lines.h"

namespace shardproof {

// A stretch of a dimension that the coordinates of an axis share evenly, where the share has no
// structure of its own (a shard of optimizer states, the rows of a batch). Bounds between shares
// are then no bounds of the plan, only multiples of the share: how many heads lie on one shard of a
// weight may change.
struct Tiling {
  PlanLines::Dim whole = -1;
  std::int64_t lo = 0;
  PlanLines::Dim part = -1;
  std::int32_t axis = -1;
  std::int64_t fullCount = 1, newCount = 1;  // shares, and those that stay
};

class DimensionShares {
 public:
  DimensionShares(const Plan& plan, const KeptRanks& kept, PlanLines& lines)
      : plan_(plan), kept_(kept), lines_(lines) {}

  // `part` is what one rank has of a stretch of `whole` that begins at lo, shared evenly over the
  // axes, the fastest first. Each axis shares a dimension of its own: over two axes, one that is
  // made of the parts of the first. Returns that of which one coordinate's share is a part, for
  // each axis.
  std::vector<std::pair<std::int32_t, PlanLines::Dim>> shareOut(
      PlanLines::Dim whole, std::int64_t lo, PlanLines::Dim part,
      const std::vector<std::int32_t>& axes);

  // A share has a size of its own if nothing else is known of its dimension: no bound, no factor,
  // and it is shared over the same axis wherever it is. All others are pieces of the whole. Small
  // ones first: what they make up together may be a share again. Returns one
  // tiling for each kind of share, wholes before what is shared of them. All others have become
  // relations on the lines.
  std::vector<Tiling> choose();

 private:
  void relatePieces(const Tiling& t);

  const Plan& plan_;
  const KeptRanks& kept_;
  PlanLines& lines_;
  std::vector<Tiling> tilings_;
};

}  // namespace shardproof
