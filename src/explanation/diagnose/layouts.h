// SPDX-License-Identifier: Apache-2.0
// Input lineage that is wrong, rather than the plan: which part of an input or a weight a rank has
// is taken from the file, and nothing proves it. Where it is wrong every tensor that is computed
// from it is, at once, and no change of a node fixes that. So other layouts of one input are tried:
// its dimensions cut over other axes, or over the same in another order, and two of its shards
// exchanged. All have the same local shapes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::diagnose {

// Of an entry, without its numbers: those of a smaller plan and of the full one differ.
struct Layout {
  std::vector<std::vector<std::int32_t>> cut;  // by dimension: axes, the slowest first
  std::optional<std::pair<std::size_t, std::size_t>> exchanged;  // instead: two shards
};

// All that differ from what the entry has, the likeliest first.
std::vector<Layout> otherLayouts(const Problem& problem, EntryId entry);

// The entry's shards with this layout; nothing where it does not fit them.
std::optional<std::vector<Shard>> withLayout(const Problem& problem, EntryId entry,
                                             const Layout& layout);

// In which shards they differ, as the file would have it: what is, and what has to be.
std::pair<std::string, std::string> shardTexts(const Problem& problem,
                                               const std::vector<Shard>& are,
                                               const std::vector<Shard>& haveToBe);

}  // namespace shardproof::diagnose
