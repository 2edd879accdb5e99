// SPDX-License-Identifier: Apache-2.0
// Which program runs on which rank, without listing ranks: only the axes that some program fixes
// matter, and a cell is one choice of coordinates on those. All ranks of a cell run the same
// program.
#pragma once

#include <cstdint>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

class ProgramGrid {
 public:
  ProgramGrid() = default;
  // Axes in the programs' `at` must be resolved. Throws InputError when a rank has no program or
  // two.
  explicit ProgramGrid(const Plan& plan);

  // Calls visit(program) for the ranks that agree with `at` and lie in `within` (at least once for
  // each program that runs on one of them).
  template <class Visit>
  void forEachProgram(const Coordinates& at, const Stretches& within, Visit visit) const {
    std::int32_t last = -1;
    forEachCell(at, within, [&](std::size_t cell) {
      if (program_[cell] != last) visit(ProgramId(last = program_[cell]));
    });
  }

 private:
  struct Axis {
    std::int32_t axis = 0;
    std::int32_t size = 1;
    std::size_t stride = 1;  // in cells
  };
  struct Free {
    std::int32_t size = 1, at = 0;
    std::size_t stride = 1;
  };

  template <class Visit>
  void forEachCell(const Coordinates& at, const Stretches& within, Visit visit) const {
    std::size_t cell = 0;
    std::vector<Free> free;
    for (const Axis& a : axes_) {
      std::int32_t fixed = -1;
      for (const auto& [axis, coordinate] : at) {
        if (axis == a.axis) fixed = coordinate;
      }
      if (fixed >= 0) {
        cell += static_cast<std::size_t>(fixed) * a.stride;
      } else {
        Free whole{a.size, 0, a.stride};
        for (const Stretch& s : within) {
          if (s.axis != a.axis) continue;
          whole.size = s.high - s.low;
          cell += static_cast<std::size_t>(s.low) * a.stride;
        }
        free.push_back(whole);
      }
    }
    while (true) {
      visit(cell);
      std::size_t i = free.size();  // the last axis runs fastest
      for (; i > 0; --i) {
        Free& f = free[i - 1];
        cell += f.stride;
        if (++f.at < f.size) break;
        cell -= static_cast<std::size_t>(f.size) * f.stride;
        f.at = 0;
      }
      if (i == 0) return;
    }
  }
  std::string describeCell(const Plan& plan, std::size_t cell) const;

  std::vector<Axis> axes_;
  std::vector<ProgramId> program_;  // per cell
};

}  // namespace shardproof::ir
