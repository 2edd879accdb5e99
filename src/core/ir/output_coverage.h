// SPDX-License-Identifier: Apache-2.0
// Are all elements of a tensor inside some box of a set? An output of which a part has no lineage
// would otherwise be called proved although nobody stated that part.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

using Box = std::vector<std::pair<std::int64_t, std::int64_t>>;

constexpr std::size_t kMaxBoxes = std::size_t{1} << 20;

// The boxes of one shard, for all values of its coordinates. Adjoining ones are joined. Stops after
// more than kMaxBoxes.
void appendBoxes(const Plan& plan, const Shard& shard, std::vector<Box>& out);

// An element of `shape` outside all boxes, or an empty list when there is none (for a scalar: use
// `boxes.empty()`).
std::vector<std::int64_t> firstUncovered(const Shape& shape, std::vector<Box> boxes);

// Throws InputError where the lineage of role "output" leaves out an element of a model's output.
void checkOutputsCovered(const Problem& problem);

}  // namespace shardproof::ir
