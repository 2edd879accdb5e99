// SPDX-License-Identifier: Apache-2.0
// What lineage says about the sizes of a problem's dimensions: how the boxes of shards lie in the
// logical tensors, which of them share a dimension evenly, and what goes with the ranks that go.
#pragma once

#include "shrink/dimension_shares.h"
#include "shrink/kept_ranks.h"
#include "shrink/plan_relations.h"

namespace shardproof {

// Adds to what operators and communications said (plan_relations.cpp): graphs' dimensions are in
// `to`. Then the shares are chosen. Throws Unsupported where the kept ranks do not make a plan of
// their own.
void relateLineage(const Problem& problem, const KeptRanks& kept, DimensionShares& shares,
                   PlanRelations& to);

}  // namespace shardproof
