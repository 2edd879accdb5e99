// From programs whose ranks were executed to those of ranks that were left out (ShrinkOptions::
// windowsAlike): where a tensor is found at two coordinates of an axis that programs fix, it is
// taken to lie evenly at the others.
#pragma once

#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

// Adds to `entries` of one part each. `problem`: that of the whole plan, `coordinatesOf`: those of
// each axis that were executed.
void extrapolate(const Problem& problem,
                 const std::vector<std::vector<std::int32_t>>& coordinatesOf,
                 std::vector<LineageEntry>& entries);

}  // namespace shardproof::infer
