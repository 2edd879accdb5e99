// The part of a plan that one lineage entry's claim is computed by: back to the lineage that may be
// relied on, for all ranks and microbatches, as a problem of its own. The model is whole, so that
// everything has the values that it really has.
//
// It differs from a stage (stages/) in that nothing is collapsed or reduced: sums over ranks can be
// taken, and a changed plan can be cut again in no time.
#pragma once

#include <memory>
#include <vector>

#include "diagnose/image.h"

namespace shardproof::diagnose {

struct Slice {
  std::unique_ptr<Problem> problem;  // the claim is its lineage entry 0; all others are input
  std::vector<std::vector<std::int32_t>> nodeOf;  // by program: the plan's node for each node
  NodeRef origin(NodeRef here) const {
    return {here.program,
            nodeOf[static_cast<std::size_t>(here.program)][static_cast<std::size_t>(here.node)]};
  }
  std::size_t nodes() const;
};

// Where lineage mentions what; it stays right when nodes of the plan change.
class SliceCutter {
 public:
  explicit SliceCutter(const Image& image) : image_(image) {}
  // `plan`: the image's, or a changed one with the same lineage. `ordered`: only lineage that comes
  // before the entry; otherwise also what a change may put before it, but nothing else about the
  // same tensor. Throws Unsupported when more than `mostNodes` would be in it.
  Slice cut(const Problem& plan, std::int32_t entry, std::size_t mostNodes, bool ordered) const;

 private:
  const Image& image_;
};

}  // namespace shardproof::diagnose
