// SPDX-License-Identifier: Apache-2.0
// What lineage says, written out: one equation for each shard and each value of the coordinates
// over which it does not sum.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/programs.h"

namespace shardproof::executor {

// logical[low ... low + extent) = sum of the parts.
struct Claim {
  EntryId entry;
  std::int32_t shard = -1;
  std::int32_t microbatch = -1;  // the coordinate, or the one that the first part fixes
  Shape low, extent;
  struct Part {
    Rank rank;
    std::int32_t slot = -1;  // of the rank's program
  };
  std::vector<Part> parts;
};

// Of one entry, in the order of shards and coordinates. Throws CannotRun for a part that no node
// produces.
std::vector<Claim> claimsOf(const Programs& programs, EntryId entry);

}  // namespace shardproof::executor
