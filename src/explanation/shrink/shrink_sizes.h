// SPDX-License-Identifier: Apache-2.0
// What the sizes of a smaller plan must meet beside being those of lines: linear constraints for
// the optimizer (shrink/optimizer.h).
#pragma once

#include <cstdint>
#include <vector>

#include "shrink/kept_ranks.h"
#include "shrink/optimizer.h"
#include "shrink/plan_relations.h"

namespace shardproof {

// Sizes up to this stay: 1, 2 and 3 are also factors of another kind (squares, pairs).
constexpr std::int64_t kSmallSize = 3;

// Experts to choose among, what the ranks that stay share, and pieces that move with a coordinate.
void addSizes(const PlanRelations& relations, const KeptRanks& kept, IntegerProgram& program);
// Sizes that differ show a transposition: wished for between all lines of one tensor. Those that
// most tensors have stay smallest.
// `free`: of each class of lines, whether its size may change.
void addDistinct(const PlanRelations& relations, const std::vector<char>& free,
                 IntegerProgram& program);
// The sizes of shares, which follow from those of what is shared.
void shareSizes(const PlanRelations& relations, std::vector<std::int64_t>& sizes);

}  // namespace shardproof
