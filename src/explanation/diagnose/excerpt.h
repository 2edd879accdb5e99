// SPDX-License-Identifier: Apache-2.0
// The part of a plan that one lineage entry's claim is computed by, with the part of the model that
// computes the same tensor: a plan of its own, whose inputs are what lineage before it says. Of a
// plan whose shrunk image is still dear it is the part alone that is made smaller, where nothing
// else holds its sizes.
#pragma once

#include <memory>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::diagnose {

struct Excerpt {
  std::unique_ptr<Problem> problem;  // the claim is its entry 0, an output
  std::vector<std::vector<NodeId>>
      nodeOf;                       // by program (the plan's): the plan's node for each node
  std::vector<NodeId> modelNodeOf;  // the same of the model
  std::vector<EntryId> entryOf;     // the plan's entry for each entry
};

// Throws Unsupported: too many operators, or masks of dropout, whose places are those of the whole.
Excerpt excerptOf(const Problem& problem, EntryId entry);

}  // namespace shardproof::diagnose
