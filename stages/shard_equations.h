// SPDX-License-Identifier: Apache-2.0
// The equations that a shard of lineage states: one for each choice of coordinates on the axes that
// none of its parts names and that it does not sum over. Each is a box of the logical tensor and
// the instances of local tensors that add up to it, with weights where a collapsed axis is summed
// over. Internal to stages/.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "stages/cut_context.h"
#include "stages/stage.h"

namespace shardproof {

class ShardEquations {
 public:
  explicit ShardEquations(const CutContext& cut)
      : cut_(cut), collapsedAxes_(cut.symmetry.collapsedAxes()) {}

  struct ShardAxes {
    std::vector<std::int32_t> outer, summed;  // axes and kMicrobatchAxis
  };
  const ShardAxes& axesOf(EntryId entry, std::int32_t shard);
  // The coordinates of each of axes.outer at which the shard is claimed: it holds at all others of
  // its own. Throws NeedsRefinement.
  std::vector<std::vector<std::int32_t>> claimed(const Shard& shard, const ShardAxes& axes) const;

  // One SPMD instance of a shard's equation: the instances of tensors it adds up and the box.
  struct ShardInstances {
    std::vector<std::pair<LocalInstance, std::int64_t>> parts;
    std::vector<std::pair<std::int64_t, std::int64_t>> box;
    std::vector<Equation::Step> step;
  };
  // `logical`: the tensor. `coordinates`: a value for each of axes.outer.
  ShardInstances instantiate(TensorId logical, const Shard& shard, const ShardAxes& axes,
                             const std::vector<std::int32_t>& coordinates) const;

 private:
  ShardAxes axesOf(const Shard& shard) const;
  bool isSummed(const Part& part, const ShardAxes& axes, Rank rank) const;

  const CutContext& cut_;
  const std::vector<CollapsedAxis> collapsedAxes_;
  std::map<std::pair<EntryId, std::int32_t>, ShardAxes> shardAxes_;
};

}  // namespace shardproof
