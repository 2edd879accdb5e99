// SPDX-License-Identifier: Apache-2.0
#include "stages/shard_equations.h"

#include <algorithm>
#include <stdexcept>

#include "ir/coordinates.h"

namespace shardproof {

const ShardEquations::ShardAxes& ShardEquations::axesOf(EntryId entry, std::int32_t shard) {
  const auto [it, inserted] = shardAxes_.try_emplace({entry, shard});
  if (inserted) it->second = axesOf(cut_.plan.lineage[entry].shards[shard]);
  return it->second;
}

ShardEquations::ShardAxes ShardEquations::axesOf(const Shard& shard) const {
  ShardAxes axes;
  const auto add = [&](std::int32_t axis) {
    (std::binary_search(shard.sum.begin(), shard.sum.end(), axis) ? axes.summed : axes.outer)
        .push_back(axis);
  };
  for (std::int32_t a = 0; a < cut_.mesh.axes(); ++a) {
    const bool named = std::any_of(shard.parts.begin(), shard.parts.end(), [&](const Part& p) {
      return std::any_of(p.at.begin(), p.at.end(), [&](const auto& c) { return c.first == a; });
    });
    if (!named) add(a);
  }
  const bool microbatches = std::any_of(shard.parts.begin(), shard.parts.end(), [&](const Part& p) {
    if (p.microbatch.isOne()) return false;
    const Rank rank = cut_.mesh.firstOf(p.at, p.within);
    const ProgramId program = cut_.planIndex.programOf(rank);
    const TensorId t = cut_.planIndex.findTensor(program, p.local);
    return cut_.plan.programs[program].graph.tensors[t].perMicrobatch;
  });
  if (microbatches) add(kMicrobatchAxis);
  return axes;
}

// Whether the part is one of the summands of that rank: it lies in the stretches of the axes that
// the shard sums over.
bool ShardEquations::isSummed(const Part& part, const ShardAxes& axes, Rank rank) const {
  return std::all_of(part.within.begin(), part.within.end(), [&](const Stretch& s) {
    return s.contains(cut_.mesh.coordinate(rank, s.axis)) ||
           std::find(axes.summed.begin(), axes.summed.end(), s.axis) == axes.summed.end();
  });
}

// A class of coordinates lies in a stretch or beside it (SymmetryClasses), so those of its first
// coordinates that lie in the shard's stretch stand for all of the shard's.
std::vector<std::vector<std::int32_t>> ShardEquations::claimed(const Shard& shard,
                                                               const ShardAxes& axes) const {
  for (const Part& part : shard.parts) cut_.symmetry.keepApart(part);
  std::vector<std::vector<std::int32_t>> claimed;
  for (const std::int32_t axis : axes.outer) {
    const ir::Range range = ir::rangeOf(cut_.plan, shard, axis);
    std::vector<std::int32_t>& own = claimed.emplace_back();
    for (const std::int32_t c : cut_.symmetry.of(axis).claimed)
      if (c >= range.low && c < range.high) own.push_back(c);
    if (own.empty()) throw std::logic_error("a stretch of lineage without a claim");
  }
  return claimed;
}

ShardEquations::ShardInstances ShardEquations::instantiate(
    TensorId logical, const Shard& shard, const ShardAxes& axes,
    const std::vector<std::int32_t>& coordinates) const {
  for (const Part& part : shard.parts) cut_.symmetry.keepApart(part);
  ShardInstances instances;
  instances.box = shard.box;
  for (const auto& [axis, offsets] : shard.step) {
    const auto it = std::find(axes.outer.begin(), axes.outer.end(), axis);
    if (it == axes.outer.end()) continue;
    const std::int64_t c = coordinates[it - axes.outer.begin()];
    for (std::size_t d = 0; d < offsets.size(); ++d) {
      std::int64_t moved = 0;
      if (__builtin_mul_overflow(c, offsets[d], &moved) ||
          __builtin_add_overflow(instances.box[d].first, moved, &instances.box[d].first) ||
          __builtin_add_overflow(instances.box[d].second, moved, &instances.box[d].second)) {
        throw std::logic_error("the place of a lineage box overflows");
      }
    }
    if (!cut_.symmetry.collapsed(axis) ||
        std::all_of(offsets.begin(), offsets.end(), [](std::int64_t o) { return o == 0; }))
      continue;
    for (std::size_t l = 0; l < collapsedAxes_.size(); ++l) {
      if (collapsedAxes_[l].axis == axis)
        instances.step.push_back(
            {static_cast<std::int32_t>(l), static_cast<std::int32_t>(c), offsets});
    }
  }
  // The reader has checked the boxes of all coordinates: one outside belongs to a coordinate that
  // there is not, and a read there would be a shifted one.
  const Shape& whole = cut_.model.tensors[logical].shape;
  for (std::size_t d = 0; d < instances.box.size(); ++d) {
    if (instances.box[d].first < 0 || instances.box[d].second > whole.at(d))
      throw std::logic_error("a lineage box lies outside its tensor");
  }
  std::vector<std::size_t> summed(axes.summed.size(), 0);  // indices into the axes' coordinates
  for (;;) {
    std::int64_t weight = 1, rank = 0;
    Microbatch microbatch;
    const auto place = [&](std::int32_t axis, std::int32_t c) {
      if (axis == kMicrobatchAxis) microbatch = Microbatch::of(c);
      else rank = cut_.mesh.with(Rank(rank), axis, c);
    };
    for (std::size_t i = 0; i < axes.outer.size(); ++i) place(axes.outer[i], coordinates[i]);
    for (std::size_t i = 0; i < axes.summed.size(); ++i) {
      const AxisSymmetry::Axis& along = cut_.symmetry.of(axes.summed[i]);
      place(axes.summed[i], along.all[summed[i]]);
      weight *= along.weight(along.all[summed[i]]);
    }
    for (const Part& part : shard.parts) {
      if (!isSummed(part, axes, Rank(rank))) continue;
      LocalInstance instance;
      instance.rank = Rank(cut_.mesh.with(Rank(rank), part.at));
      instance.program = cut_.planIndex.programOf(instance.rank);
      cut_.symmetry.keepApart(instance.program);
      instance.tensor = cut_.planIndex.findTensor(instance.program, part.local);
      const Tensor& tensor = cut_.plan.programs[instance.program].graph.tensors[instance.tensor];
      if (tensor.perMicrobatch) {
        if (part.microbatch.isOne() && cut_.symmetry.collapsed(kMicrobatchAxis))
          throw NeedsRefinement(kMicrobatchAxis);
        instance.microbatch = part.microbatch.orElse(microbatch);
        if (!instance.microbatch.isOne())
          throw std::logic_error("lineage reads a tensor of each microbatch for none");
      }
      instances.parts.emplace_back(instance, weight);
    }
    std::size_t i = summed.size();
    while (i-- > 0 && ++summed[i] == cut_.symmetry.of(axes.summed[i]).all.size()) summed[i] = 0;
    if (i == static_cast<std::size_t>(-1)) break;
  }
  return instances;
}

}  // namespace shardproof
