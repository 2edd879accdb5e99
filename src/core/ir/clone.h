// SPDX-License-Identifier: Apache-2.0
// A problem of its own, with more lineage or less.
#pragma once

#include <memory>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

// A copy whose names are its own.
std::unique_ptr<Problem> cloneProblem(const Problem& problem);

// A copy without the lineage that was inferred.
std::unique_ptr<Problem> withoutInferred(const Problem& problem);
// Puts inferred entries where they belong: after all that files have. `placed`: which of them speak
// of parts of local tensors (ir/local_parts.h), as numbers in `entries`.
void addInferred(Problem& problem, std::vector<LineageEntry> entries,
                 std::vector<PlacedPart> placed = {});

}  // namespace shardproof
