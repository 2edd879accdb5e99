// SPDX-License-Identifier: Apache-2.0
// Which of the relations that were found become lemmas.
#pragma once

#include <set>
#include <vector>

#include "infer/lift.h"
#include "shardproof/graph.h"

namespace shardproof::infer {

// Cut points of the full plan, one for each local tensor of a program, without what its lineage
// mentions already. (One for several programs would be as late as the last of them, and nothing
// before it could rest on it.)
//
// Where a local tensor may be several things (copies of one tensor), all of them are true and only
// some of use: a lemma that names another tensor of the model than the one that is computed alike
// hides how the two hang together. Preferred is what covers most of its tensor; then the tensor of
// the model that the same operator makes, of the same operands; where there is none, what an
// operand is; then the model's first.
struct Chosen {
  std::vector<LineageEntry> entries;
  std::vector<PlacedPart> placed;  // of `entries`, which they number from 0
};
// `wrong`: entries of the lineage that count for nothing. `doubtful`: those of outputs that the
// image does not have; nothing else is said of their local tensors, which are nothing of the model.
Chosen chosenLineage(const Problem& problem, const Lift& lift, const Relations& found,
                     const std::set<EntryId>& wrong, const std::set<EntryId>& doubtful);

}  // namespace shardproof::infer
