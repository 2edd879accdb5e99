// SPDX-License-Identifier: Apache-2.0
// The blocks that coordinates of collapsed axes own on the logical side, and whether permuting them
// is a symmetry there.
//
// Lineage moves a box along a logical line by one and the same step for each coordinate of an axis:
// coordinate c owns positions [c * unit, (c + 1) * unit). Where the axis lies inside another one of
// which the stage has all coordinates (rows over tensor-parallel ranks, and each of these over
// data-parallel ones), the blocks repeat: c owns [q * period + c * unit, q * period + (c + 1) *
// unit) for every q. Permuting the coordinates of a collapsed axis permutes these blocks, in all
// periods alike, which must change nothing that the stage says:
//   * the blocks of one line do not overlap, each box lies within one block of its own coordinate,
//     or of one that is a class by itself, or covers, or misses, all blocks, and covers them only
//     as the whole dimension;
//   * no operator takes a stretch of such a line, nor does its position matter;
//   * a summand of a logical operator touches one coordinate at most, of a local operator none
//     beside the rank's own: of the coordinates kept apart one tells the element and one the
//     summand;
//   * nothing addresses a place inside a block that was dropped (checkCuts).
// Which box lies in which period need not change, as the permutation does not move periods.
// Where one of these does not hold the stage NeedsRefinement (stages/axis_symmetry.h).
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "shape_reduction/dimension_graph.h"
#include "stages/stage.h"

namespace shardproof {

class AxisBlocks {
 public:
  // Of one axis on a line, or inside a block of the axis before it on the line.
  struct Blocks {
    std::int32_t collapsed;  // index into Stage::collapsedAxes
    std::int64_t unit;       // positions of one coordinate in one period
    std::int64_t count;      // coordinates
    std::int64_t period;     // at least unit * count
    std::int64_t periods;

    // Where in its period a position lies; -1 beyond all of them.
    std::int64_t inPeriod(std::int64_t position) const {
      return position < period * periods ? position % period : -1;
    }
    // Of the position of a period: does it belong to a coordinate?
    bool owns(std::int64_t inPeriod) const { return inPeriod >= 0 && inPeriod < unit * count; }
  };

  // Throws NeedsRefinement. Both are kept by reference.
  AxisBlocks(const Stage& stage, const DimensionGraph& graph);

  // Outermost first.
  const std::vector<Blocks>& onLine(std::size_t line) const { return blocks_[line]; }
  const CollapsedAxis& axis(const Blocks& b) const { return stage_.collapsedAxes[b.collapsed]; }
  // That no cut lies inside a block that no coordinate of the stage stands for. Throws
  // NeedsRefinement.
  void checkCuts(const std::vector<std::set<std::int64_t>>& cuts) const;
  // Is the piece that starts at `position` of a blocked line kept, and how many blocks does it
  // stand for?
  bool retained(std::size_t line, std::int64_t position, std::int64_t& weight) const;

 private:
  // A box as the blocks see it: where it begins in the block that encloses it.
  struct Placed {
    const BoxOnLine* box;
    std::int64_t lo;
  };
  void place();
  static std::vector<Blocks> unitsOn(const Stage& stage, const std::vector<Placed>& boxes);
  static void repeat(Blocks& blocks, const std::vector<Placed>& boxes, std::int64_t room);
  static std::vector<Placed> within(const CollapsedAxis& axis,
                                    std::vector<Blocks>::const_iterator outermost,
                                    std::vector<Blocks>::const_iterator end,
                                    const std::vector<Placed>& boxes);
  void checkAddresses() const;
  void checkSummands() const;
  // Does a stretch of a line reach beyond a single block (of each axis that has blocks there)?
  bool holdsBlocks(std::int32_t line, std::int64_t lo, std::int64_t length) const;

  const Stage& stage_;
  const DimensionGraph& graph_;
  std::vector<std::vector<Blocks>> blocks_;  // by line
};

}  // namespace shardproof
