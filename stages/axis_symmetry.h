// SPDX-License-Identifier: Apache-2.0
// What of a mesh axis, or of the microbatches, a stage has: the one place that says what is
// collapsed.
//
// If exchanging two coordinates of an axis is a symmetry of the stage, they are of one symmetry
// class. Of a class two coordinates are kept apart, and a third has the weight of all others: what
// those compute is the same up to renaming, and a sum over them is a weight. An axis is collapsed
// in one of two ways, or not at all, and a cut begins with the one that leaves out the most:
//   * kWhole, all coordinates are one class: right as long as nothing that the cut meets (programs'
//     `at`, groups, roots, peers, lineage parts) names a coordinate of the axis. A program that
//     covers a rank and does not name the axis covers the rank's shifts along it, so the shifted
//     stage is the same;
//   * kClasses, by the symmetry classes of the whole plan (plan/symmetry_classes.h);
//   * kNone, every coordinate.
// Whoever finds that this does not hold throws NeedsRefinement: the cut where it meets a name or a
// communication that tells members apart (axis_symmetry.cpp refines the axes that it names, and the
// cut begins again: it ends, as each axis is refined twice at most), the reduction of shapes where
// the logical side is not symmetric (shape_reduction/axis_blocks.h has those conditions; the stage
// is then cut with all coordinates). docs/soundness.md, "Interchangeable axes", has the whole
// argument.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

class PlanIndex;

// What a mesh axis (or the microbatch axis) is enumerated by in a stage where it is collapsed.
struct CollapsedAxis {
  // Coordinates of a class that stand for themselves, where there are more than so many and one. A
  // proof needs them; where numbers are evaluated, inputs may be the same at all coordinates.
  static constexpr std::int32_t kApart = 2, kNoneApart = 0;
  std::int32_t axis = 0;  // kMicrobatchAxis for microbatches
  std::int32_t size = 1;  // how many coordinates there are
  // The coordinates that the stage has, ascending, 0 among them, with their weights: how many each
  // of them stands for.
  std::vector<std::pair<std::int32_t, std::int64_t>> kept;
  // Those of them that are classes by themselves, ascending: nothing exchanges them with others.
  std::vector<std::int32_t> alone;
  // All coordinates are one class.
  static CollapsedAxis whole(std::int32_t axis, std::int32_t size, std::int32_t apart = kApart);
  // `classes`: the symmetry classes.
  static CollapsedAxis ofClasses(std::int32_t axis, std::int32_t size,
                                 const std::vector<std::vector<std::int32_t>>& classes,
                                 std::int32_t apart = kApart);
  // 0: not kept.
  std::int64_t weight(std::int64_t coordinate) const;
  // The kept coordinate that stands for this one, where all coordinates are one class.
  std::int32_t standIn(std::int32_t coordinate) const;
  bool isAlone(std::int64_t coordinate) const;
  friend bool operator==(const CollapsedAxis&, const CollapsedAxis&) = default;
};

// Collapsing an axis is no symmetry of this stage: it has to be cut with more coordinates.
class NeedsRefinement : public std::runtime_error {
 public:
  // Of these axes; a name or a communication tells their coordinates apart.
  explicit NeedsRefinement(std::vector<std::int32_t> axes_)
      : std::runtime_error("coordinates of a collapsed axis are told apart"),
        axes(std::move(axes_)) {}
  explicit NeedsRefinement(std::int32_t axis) : NeedsRefinement(std::vector{axis}) {}
  // Of all axes, with all their coordinates.
  explicit NeedsRefinement(const std::string& why) : std::runtime_error(why) {}
  std::vector<std::int32_t> axes;  // empty: all
};

// The axes of one cut.
class AxisSymmetry {
 public:
  // The coordinates of one axis.
  struct Axis {
    std::vector<std::int32_t> all;      // that the stage has
    std::vector<std::int32_t> claimed;  // at which a claim is stated: it holds at all others, too
    CollapsedAxis collapsed;            // where it is

    std::int64_t weight(std::int32_t c) const { return enumerated ? 1 : collapsed.weight(c); }
    bool enumerated = true;  // not collapsed
    bool whole = false;      // collapsed as one class
  };

  // `collapse`: whether anything may be. `apart`: of a class, for CollapsedAxis.
  AxisSymmetry(const PlanIndex& planIndex, bool collapse,
               std::int32_t apart = CollapsedAxis::kApart);

  // kMicrobatchAxis for the microbatches.
  const Axis& of(std::int32_t axis) const {
    return axis == kMicrobatchAxis ? axes_.back() : axes_[axis];
  }
  bool collapsed(std::int32_t axis) const { return !of(axis).enumerated; }
  // Those that are, the mesh's in order, then microbatches.
  std::vector<CollapsedAxis> collapsedAxes() const;

  // To be asked of everything that a stage meets. Throws NeedsRefinement where a program, or
  // coordinates in a group, root, peer or lineage part, name an axis that is collapsed as a whole,
  // or a stretch of it.
  void keepApart(ProgramId program) const;
  void keepApart(const Coordinates& at) const;
  void keepApart(const Part& part) const;
  // Throws NeedsRefinement where attributes move along an axis that is collapsed in any way: then
  // no two of its coordinates do the same.
  void keepApart(const AttributeSteps& steps) const;

  // With more coordinates of the axes that `needed` is about.
  void refine(const NeedsRefinement& needed);

 private:
  enum class Collapse : std::uint8_t { kWhole, kClasses, kNone };
  void set(std::int32_t axis, Collapse collapse);
  Collapse after(Collapse collapse, std::int32_t axis) const;

  const PlanIndex& planIndex_;
  std::int32_t apart_;
  std::vector<Axis> axes_;  // of the mesh, and of microbatches
  std::vector<Collapse> collapse_;
};

// What `attempt` makes with these axes, refined as often as it says NeedsRefinement.
template <class Result>
Result withRefinement(AxisSymmetry symmetry,
                      const std::function<Result(const AxisSymmetry&)>& attempt) {
  for (;;) {
    try {
      return attempt(symmetry);
    } catch (const NeedsRefinement& needed) {
      symmetry.refine(needed);
    }
  }
}

}  // namespace shardproof
