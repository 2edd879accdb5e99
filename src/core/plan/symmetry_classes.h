// SPDX-License-Identifier: Apache-2.0
// Which coordinates of a mesh axis the plan does not tell apart: the symmetry classes. Exchanging
// two of a class maps every rank to a rank with the same program content, every group to a group,
// every partner to a partner and every lineage part to itself. (Of a collective that gathers or
// scatters it exchanges two pieces as well, of one size, so that all others stay where they are; a
// stage that has one along an axis keeps all its coordinates apart, local_communication.cpp.)
#pragma once

#include <cstdint>
#include <vector>

#include "plan/mesh.h"
#include "shardproof/graph.h"

namespace shardproof {

class SymmetryClasses {
 public:
  SymmetryClasses() = default;
  // `programOfRank`: for each rank of the mesh an index into plan.programs. Without `attributes`
  // programs also count as equal whose nodes differ in these, as in the windows of a table; then
  // the classes are no symmetry, and good for guesses only. `pieces`: members of collectives whose
  // pieces are not all equal are told apart even where their own are of one size, for whoever
  // leaves coordinates of a class out of such a group.
  SymmetryClasses(const Plan& plan, const MeshView& mesh,
                  const std::vector<ProgramId>& programOfRank, bool attributes = true,
                  bool pieces = false);

  // The classes of an axis: each ascending, ordered by their first coordinates. One class: nothing
  // names a coordinate of the axis.
  const std::vector<std::vector<std::int32_t>>& classes(std::int32_t axis) const {
    return classes_[axis];
  }
  // The first coordinate of its class stands for the class.
  std::int32_t representativeOf(std::int32_t axis, std::int32_t coordinate) const {
    return first_[axis][coordinate];
  }
  bool isRepresentative(std::int32_t axis, std::int32_t coordinate) const {
    return representativeOf(axis, coordinate) == coordinate;
  }

 private:
  std::vector<std::vector<std::vector<std::int32_t>>> classes_;  // axis -> class -> coordinates
  std::vector<std::vector<std::int32_t>> first_;  // axis -> coordinate -> first of its class
};

// Programs that do the same: equal but for the ranks that they run on. For each program the index
// of the first such one.
std::vector<ProgramId> firstOfSameContent(const std::vector<Program>& programs,
                                          bool attributes = true);

}  // namespace shardproof
