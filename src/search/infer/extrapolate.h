// SPDX-License-Identifier: Apache-2.0
// From programs of which something was found to those of ranks that were left out (ShrinkOptions::
// windowsAlike), and to those whose tensors said nothing: where a tensor is found at two
// coordinates of an axis that programs fix, it is taken to lie evenly at the others.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

using Locals = std::set<std::pair<NameId, Coordinates>>;  // of a program at these coordinates

// Adds to `entries` of one part each. `problem`: that of the whole plan; `coordinatesOf`: those of
// each axis that were executed, none: all; `silent`: what said nothing though it was executed.
void extrapolate(const Problem& problem,
                 const std::vector<std::vector<std::int32_t>>& coordinatesOf,
                 const Locals& uninformative, std::vector<LineageEntry>& entries);

}  // namespace shardproof::infer
