// SPDX-License-Identifier: Apache-2.0
#include "ir/output_coverage.h"

#include <algorithm>
#include <string>

#include "ir/coordinates.h"
#include "ops/attributes.h"
#include "shardproof/error.h"

namespace shardproof::ir {

namespace {

// Sweeps dimension `dim`: between two neighbouring edges the same boxes are active, so one
// recursion covers all positions there.
bool findGap(const Shape& shape, std::size_t dim, std::vector<const Box*> boxes,
             std::vector<std::int64_t>& gap) {
  if (dim == shape.size()) return boxes.empty();
  std::sort(boxes.begin(), boxes.end(),
            [dim](const Box* a, const Box* b) { return (*a)[dim].first < (*b)[dim].first; });
  std::vector<const Box*> active;
  std::size_t next = 0;
  for (std::int64_t position = 0; position < shape[dim];) {
    std::erase_if(active, [&](const Box* b) { return (*b)[dim].second <= position; });
    while (next < boxes.size() && (*boxes[next])[dim].first <= position)
      active.push_back(boxes[next++]);
    gap[dim] = position;
    if (findGap(shape, dim + 1, active, gap)) return true;
    std::int64_t edge = next < boxes.size() ? (*boxes[next])[dim].first : shape[dim];
    for (const Box* b : active) edge = std::min(edge, (*b)[dim].second);
    position = edge;
  }
  return false;
}

// The one dimension along which `offsets` move a box, or -1.
int onlyDimension(const Shape& offsets) {
  int found = -1;
  for (std::size_t d = 0; d < offsets.size(); ++d) {
    if (offsets[d] == 0) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(d);
  }
  return found;
}

// When a step moves the box along one dimension by no more than its extent, the boxes of all
// coordinates make one longer box.
bool join(Box& box, const Shape& offsets, std::int64_t size) {
  const int d = onlyDimension(offsets);
  if (d < 0) return false;
  auto& [low, high] = box[d];
  const std::int64_t step = offsets[d];
  if (step > high - low || step < low - high) return false;
  (step > 0 ? high : low) += step * (size - 1);
  return true;
}

void appendMoved(std::size_t first, const Shape& offsets, std::int64_t size,
                 std::vector<Box>& out) {
  const std::size_t end = out.size();
  for (std::int64_t coordinate = 1; coordinate < size; ++coordinate) {
    for (std::size_t b = first; b < end && out.size() <= kMaxBoxes; ++b) {
      Box moved = out[b];
      for (std::size_t d = 0; d < moved.size(); ++d) {
        moved[d].first += coordinate * offsets[d];
        moved[d].second += coordinate * offsets[d];
      }
      out.push_back(std::move(moved));
    }
    if (out.size() > kMaxBoxes) return;
  }
}

}  // namespace

void appendBoxes(const Plan& plan, const Shard& shard, std::vector<Box>& out) {
  Box box = shard.box;
  std::vector<std::size_t> left(shard.step.size());
  std::vector<std::int64_t> sizes;
  for (std::size_t s = 0; s < left.size(); ++s) {
    left[s] = s;
    const auto& [axis, offsets] = shard.step[s];
    const Range range = rangeOf(plan, shard, axis);
    sizes.push_back(range.size());
    for (std::size_t d = 0; d < box.size(); ++d) {
      box[d].first += range.low * offsets[d];
      box[d].second += range.low * offsets[d];
    }
  }
  // A box that has grown along one axis may adjoin its neighbours along the next, so until nothing
  // joins any more.
  while (std::erase_if(
             left, [&](std::size_t s) { return join(box, shard.step[s].second, sizes[s]); }) > 0) {
  }
  const std::size_t first = out.size();
  out.push_back(std::move(box));
  for (const std::size_t s : left) appendMoved(first, shard.step[s].second, sizes[s], out);
}

std::vector<std::int64_t> firstUncovered(const Shape& shape, std::vector<Box> boxes) {
  std::sort(boxes.begin(), boxes.end());
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());  // replicas
  std::vector<const Box*> all;
  for (const Box& b : boxes) all.push_back(&b);
  std::vector<std::int64_t> gap(shape.size(), 0);
  return findGap(shape, 0, std::move(all), gap) ? gap : std::vector<std::int64_t>{};
}

void checkOutputsCovered(const Problem& problem) {
  const Plan& plan = problem.plan;
  const std::vector<Tensor>& logical = problem.model.graph.tensors;
  std::vector<std::vector<const Shard*>> goals(logical.size());
  for (const LineageEntry& entry : plan.lineage) {
    if (entry.role != Role::kOutput) continue;
    for (const Shard& shard : entry.shards) goals[entry.tensor].push_back(&shard);
  }
  for (const TensorId output : problem.model.outputs) {
    const Tensor& tensor = logical[output];
    const auto fail = [&](const std::string& message) {
      throw InputError(plan.file, "/lineage",
                       "the lineage of the model's output \"" + problem.names.text(tensor.name) +
                           "\" " + message);
    };
    std::vector<Box> boxes;
    for (const Shard* shard : goals[output]) {
      appendBoxes(plan, *shard, boxes);
      if (boxes.size() > kMaxBoxes)
        fail("has more than " + std::to_string(kMaxBoxes) + " separate boxes, which is the limit");
    }
    const std::vector<std::int64_t> gap = firstUncovered(tensor.shape, std::move(boxes));
    if (!gap.empty()) {
      fail("leaves out the element at " + ops::toText(gap) +
           ", expected shards of role \"output\" that cover the whole tensor of shape " +
           ops::toText(tensor.shape));
    }
  }
}

}  // namespace shardproof::ir
