// SPDX-License-Identifier: Apache-2.0
// The part of a plan that one lineage entry's claim is computed by: back to the lineage that may be
// relied on, for all ranks and microbatches, as a problem of its own. The model is whole, so that
// everything has the values that it really has.
//
// It differs from a stage (stages/) in that nothing is collapsed or reduced: sums over ranks can be
// taken, and a changed plan can be cut again in no time.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "diagnose/image.h"

namespace shardproof::diagnose {

constexpr std::size_t kMostSliceNodes = 4000;  // over all programs

struct Slice {
  std::unique_ptr<Problem> problem;  // the claim is its lineage entry 0; all others are input
  std::vector<std::vector<NodeId>> nodeOf;  // by program: the plan's node for each node
  std::vector<EntryId> entryOf;             // the plan's entry for each entry
  NodeRef origin(NodeRef here) const {
    return {here.program, NodeId(nodeOf[here.program][here.node])};
  }
  std::size_t nodes() const;
};

// Where lineage mentions what; it stays right when nodes of the plan change.
class SliceCutter {
 public:
  explicit SliceCutter(const Image& image) : image_(image) {}
  // Lineage that is not to be relied on.
  void ignore(std::set<EntryId> entries) {
    ignored_ = std::move(entries);
    computed_.clear();
  }
  // `plan`: the image's, or a changed one with the same lineage. `ordered`: only lineage that comes
  // before the entry; otherwise also what a change may put before it, but nothing else about the
  // same tensor, nor about what the ordered slice of the image's plan computes: there is the
  // mistake, and lineage of later tensors that speaks of it (copies share their local tensors)
  // would hide it. `changed`: nodes of `plan` that are not the image's; lineage of what depends on
  // them says what it was, not what it is. Throws Unsupported when more than `mostNodes` would be
  // in it.
  Slice cut(const Problem& plan, EntryId entry, std::size_t mostNodes, bool ordered,
            const std::vector<NodeRef>& changed = {}) const;

 private:
  using ProgramTensor = std::pair<ProgramId, TensorId>;
  const Image& image_;
  std::set<EntryId> ignored_;
  mutable std::map<EntryId, std::set<ProgramTensor>> computed_;  // by ordered slices
};

}  // namespace shardproof::diagnose
