// Turns the names in a plan's lineage into ids and checks that every equation is well formed: boxes
// inside their tensors, local tensors there on every rank that is meant and of the box's size.
// Whether an equation holds is what the rest of shardproof is about.
#pragma once

#include "reader/plan_resolver.h"
#include "shardproof/graph.h"

namespace shardproof::reader {

void resolveLineage(Problem& problem, const PlanIndex& index);

}  // namespace shardproof::reader
