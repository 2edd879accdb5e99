// SPDX-License-Identifier: Apache-2.0
// What the parts of one cut share: what is cut, which lineage its stage may assume, and how its
// axes are enumerated. Internal to stages/.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/plan_index.h"
#include "stages/axis_symmetry.h"
#include "stages/cutter.h"
#include "stages/stage.h"

namespace shardproof {

struct CutContext {
  CutContext(const PlanIndex& planIndex_, const std::vector<EntryId>& entries_,
             const CutOptions& options_, const AxisSymmetry& symmetry_)
      : planIndex(planIndex_),
        plan(planIndex_.problem().plan),
        model(planIndex_.problem().model.graph),
        mesh(planIndex_.mesh()),
        entries(entries_),
        options(options_),
        symmetry(symmetry_) {
    for (const EntryId e : entries) maxKey_[e] = order(e);
  }

  // May this stage assume entry f? Any strict linear order on entries makes the chain of proofs
  // well-founded; this one is by position in the indexed plan, then by index, so that what a stage
  // meets upstream is usable.
  bool usable(EntryId f) const;

  const PlanIndex& planIndex;
  const Plan& plan;
  const Graph& model;
  const MeshView& mesh;
  const std::vector<EntryId>& entries;  // whose claims the stage has
  const CutOptions& options;
  const AxisSymmetry& symmetry;

 private:
  using Order = std::pair<std::int64_t, EntryId>;
  Order order(EntryId entry) const { return {planIndex.entryKey(entry), entry}; }

  std::map<EntryId, Order> maxKey_;
};

// What the stage has of a tensor of the model or of a program, of which `made` has the origin.
void describe(StageTensor& made, const Tensor& tensor, const Graph& graph);

}  // namespace shardproof
