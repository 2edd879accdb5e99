// SPDX-License-Identifier: Apache-2.0
#include "stages/axis_symmetry.h"

#include <algorithm>
#include <numeric>

#include "plan/plan_index.h"

namespace shardproof {

CollapsedAxis CollapsedAxis::whole(std::int32_t axis, std::int32_t size, std::int32_t apart) {
  std::vector<std::int32_t> all;
  for (std::int32_t c = 0; c < size; ++c) all.push_back(c);
  return ofClasses(axis, size, {all}, apart);
}

CollapsedAxis CollapsedAxis::ofClasses(std::int32_t axis, std::int32_t size,
                                       const std::vector<std::vector<std::int32_t>>& classes,
                                       std::int32_t most) {
  CollapsedAxis collapsed{axis, size, {}, {}};
  for (const auto& cls : classes) {
    const auto few = static_cast<std::size_t>(most);
    const std::size_t apart = cls.size() > few + 1 ? few : cls.size();
    for (std::size_t i = 0; i < apart; ++i) collapsed.kept.emplace_back(cls[i], 1);
    if (apart < cls.size())
      collapsed.kept.emplace_back(cls[apart], static_cast<std::int64_t>(cls.size() - apart));
    if (cls.size() == 1) collapsed.alone.push_back(cls.front());
  }
  std::sort(collapsed.kept.begin(), collapsed.kept.end());
  std::sort(collapsed.alone.begin(), collapsed.alone.end());
  return collapsed;
}

std::int64_t CollapsedAxis::weight(std::int64_t coordinate) const {
  const auto it = std::lower_bound(kept.begin(), kept.end(), coordinate,
                                   [](const auto& k, std::int64_t c) { return k.first < c; });
  return it != kept.end() && it->first == coordinate ? it->second : 0;
}

std::int32_t CollapsedAxis::standIn(std::int32_t coordinate) const {
  return weight(coordinate) > 0 ? coordinate : kept.back().first;
}

bool CollapsedAxis::isAlone(std::int64_t coordinate) const {
  return std::binary_search(alone.begin(), alone.end(), coordinate);
}

AxisSymmetry::AxisSymmetry(const PlanIndex& planIndex, bool collapse, std::int32_t apart)
    : planIndex_(planIndex), apart_(apart) {
  // Collapsing pays only where something is left out.
  const auto first = [&](std::int32_t size) {
    return collapse && size > apart_ + 1 ? Collapse::kWhole : Collapse::kNone;
  };
  const Plan& plan = planIndex.problem().plan;
  const auto axes = static_cast<std::int32_t>(plan.mesh.size());
  axes_.resize(plan.mesh.size() + 1);
  collapse_.resize(axes_.size());
  for (std::int32_t a = 0; a < axes; ++a) set(a, first(plan.mesh[a].size));
  set(kMicrobatchAxis, first(plan.microbatches));
}

void AxisSymmetry::set(std::int32_t axis, Collapse collapse) {
  const Plan& plan = planIndex_.problem().plan;
  const bool microbatches = axis == kMicrobatchAxis;
  const std::int32_t size = microbatches ? plan.microbatches : plan.mesh[axis].size;
  Axis made;
  made.enumerated = collapse == Collapse::kNone;
  made.whole = collapse == Collapse::kWhole;
  if (made.enumerated) {
    made.all.resize(static_cast<std::size_t>(size));
    std::iota(made.all.begin(), made.all.end(), 0);
    made.claimed = made.all;
  } else {
    if (made.whole) {
      made.collapsed = CollapsedAxis::whole(axis, size, apart_);
      made.claimed = {0};
    } else {
      const auto& classes = planIndex_.symmetry().classes(axis);
      made.collapsed = CollapsedAxis::ofClasses(axis, size, classes, apart_);
      // The claim at one coordinate of a class is the claim at all of it.
      for (const auto& cls : classes) made.claimed.push_back(cls.front());
    }
    for (const auto& [c, weight] : made.collapsed.kept) made.all.push_back(c);
  }
  (microbatches ? axes_.back() : axes_[axis]) = std::move(made);
  (microbatches ? collapse_.back() : collapse_[axis]) = collapse;
}

// The next way that leaves something out.
AxisSymmetry::Collapse AxisSymmetry::after(Collapse collapse, std::int32_t axis) const {
  if (collapse != Collapse::kWhole || axis == kMicrobatchAxis) return Collapse::kNone;
  const auto& classes = planIndex_.symmetry().classes(axis);
  const bool some = std::any_of(classes.begin(), classes.end(), [&](const auto& cls) {
    return cls.size() > static_cast<std::size_t>(apart_) + 1;
  });
  return some ? Collapse::kClasses : Collapse::kNone;
}

std::vector<CollapsedAxis> AxisSymmetry::collapsedAxes() const {
  std::vector<CollapsedAxis> collapsed;
  for (const Axis& axis : axes_) {
    if (!axis.enumerated) collapsed.push_back(axis.collapsed);
  }
  return collapsed;
}

void AxisSymmetry::keepApart(ProgramId program) const {
  std::vector<std::int32_t> named;
  for (std::int32_t a = 0; a < planIndex_.mesh().axes(); ++a) {
    if (of(a).whole && planIndex_.names(program, a)) named.push_back(a);
  }
  if (!named.empty()) throw NeedsRefinement(std::move(named));
}

void AxisSymmetry::keepApart(const Coordinates& at) const {
  for (const auto& [axis, c] : at) {
    if (of(axis).whole) throw NeedsRefinement(axis);
  }
}

void AxisSymmetry::keepApart(const Part& part) const {
  keepApart(part.at);
  for (const Stretch& s : part.within) {
    if (of(s.axis).whole) throw NeedsRefinement(s.axis);
  }
}

void AxisSymmetry::keepApart(const AttributeSteps& steps) const {
  std::vector<std::int32_t> moving;
  for (const auto& [axis, added] : steps.step) {
    if (collapsed(axis)) moving.push_back(axis);
  }
  if (!moving.empty()) throw NeedsRefinement(std::move(moving));
}

void AxisSymmetry::refine(const NeedsRefinement& needed) {
  for (const std::int32_t axis : needed.axes)
    set(axis, after(axis == kMicrobatchAxis ? collapse_.back() : collapse_[axis], axis));
  if (!needed.axes.empty()) return;
  for (std::int32_t a = 0; a < planIndex_.mesh().axes(); ++a) set(a, Collapse::kNone);
  set(kMicrobatchAxis, Collapse::kNone);
}

}  // namespace shardproof
