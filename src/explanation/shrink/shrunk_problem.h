// SPDX-License-Identifier: Apache-2.0
// A problem with new sizes: the same nodes and lineage on the ranks that stay.
#pragma once

#include <functional>
#include <memory>

#include "shardproof/graph.h"
#include "shrink/kept_ranks.h"
#include "shrink/plan_relations.h"

namespace shardproof {

// `relations.lines` have their new sizes; `factor` gives the new value of a factor. Throws
// Unsupported for lineage that does not step evenly any more.
std::unique_ptr<Problem> withNewSizes(const Problem& problem, const KeptRanks& kept,
                                      const PlanRelations& relations,
                                      const std::function<Rational(const Rational&)>& factor);

}  // namespace shardproof
