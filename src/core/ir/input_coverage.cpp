// SPDX-License-Identifier: Apache-2.0
#include "ir/input_coverage.h"

#include <algorithm>
#include <utility>

#include "ir/coordinates.h"
#include "ir/output_coverage.h"
#include "ops/attributes.h"

namespace shardproof::ir {

namespace {

class Inputs {
 public:
  explicit Inputs(const Problem& problem) : problem_(problem), plan_(problem.plan) {}

  std::vector<InputGap> gaps() const {
    const auto& logical = problem_.model.graph.tensors;
    std::vector<std::vector<std::size_t>> entries(logical.size());
    for (std::size_t e = 0; e < plan_.lineage.size(); ++e)
      if (plan_.lineage[e].role == Role::kInput) entries[plan_.lineage[e].tensor].push_back(e);
    std::vector<InputGap> found;
    for (const TensorId t : firstIds<TensorId>(logical.size())) {
      const auto& own = entries[t];
      if (own.empty() || logical[t].kind == TensorKind::kProduced) continue;
      std::vector<Box> boxes;
      for (const std::size_t e : own)
        for (const Shard& shard : plan_.lineage[e].shards) appendBoxes(plan_, shard, boxes);
      if (boxes.size() > kMaxBoxes) continue;
      const Shape gap = firstUncovered(logical[t].shape, std::move(boxes));
      if (!gap.empty()) found.push_back({t, own.front(), sentence(t, own, gap)});
    }
    return found;
  }

 private:
  std::string nameOf(std::int32_t axis) const {
    return axis == kMicrobatchAxis ? "mb" : plan_.mesh[axis].name;
  }

  // Whether the shard's box is the same for all coordinates along the axis, and it is not said for
  // which of them.
  bool still(const Shard& shard, std::int32_t axis) const {
    return std::none_of(shard.step.begin(), shard.step.end(),
                        [&](const auto& s) { return s.first == axis; }) &&
           std::none_of(shard.parts.begin(), shard.parts.end(), [&](const Part& part) {
             return (axis == kMicrobatchAxis && part.microbatch.isOne()) ||
                    std::any_of(part.at.begin(), part.at.end(),
                                [&](const auto& c) { return c.first == axis; }) ||
                    std::any_of(part.within.begin(), part.within.end(),
                                [&](const Stretch& s) { return s.axis == axis; });
           });
  }

  std::string sentence(TensorId tensor, const std::vector<std::size_t>& entries,
                       const Shape& gap) const {
    std::vector<std::int32_t> axes;
    for (std::size_t a = 0; a < plan_.mesh.size(); ++a)
      axes.push_back(static_cast<std::int32_t>(a));
    axes.push_back(kMicrobatchAxis);
    std::string names;
    for (const std::int32_t axis : axes) {
      if (axisSize(plan_, axis) < 2) continue;
      const bool everywhere = std::all_of(entries.begin(), entries.end(), [&](std::size_t e) {
        const auto& shards = plan_.lineage[e].shards;
        return std::all_of(shards.begin(), shards.end(),
                           [&](const Shard& shard) { return still(shard, axis); });
      });
      if (everywhere)
        names += (names.empty() ? "" : " or ") + nameOf(axis) + " (size " +
                 std::to_string(axisSize(plan_, axis)) + ")";
    }
    return "input `" + problem_.names.text(problem_.model.graph.tensors[tensor].name) +
           "`: no rank holds the element at " + ops::toText(gap) + " of shape " +
           ops::toText(problem_.model.graph.tensors[tensor].shape) +
           (names.empty() ? "; its steps may be too small"
                          : "; a `step` along " + names + " may be missing");
  }

  const Problem& problem_;
  const Plan& plan_;
};

}  // namespace

std::vector<InputGap> inputGaps(const Problem& problem) { return Inputs(problem).gaps(); }

}  // namespace shardproof::ir
