// SPDX-License-Identifier: Apache-2.0
#include "ir/program_grid.h"

#include <string>

#include "shardproof/error.h"

namespace shardproof::ir {

ProgramGrid::ProgramGrid(const Plan& plan) {
  std::vector<bool> fixed(plan.mesh.size(), false);
  for (const Program& p : plan.programs) {
    for (const auto& [axis, coordinate] : p.at) fixed[axis] = true;
    for (const Stretch& s : p.within) fixed[s.axis] = true;
  }
  std::size_t cells = 1;
  for (std::size_t i = plan.mesh.size(); i > 0; --i) {
    if (!fixed[i - 1]) continue;
    axes_.insert(axes_.begin(), {static_cast<std::int32_t>(i - 1), plan.mesh[i - 1].size, cells});
    cells *= static_cast<std::size_t>(plan.mesh[i - 1].size);
  }
  program_.assign(cells, ProgramId());
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    // Ends at the first cell that is covered twice, so all programs together visit each cell once.
    forEachCell(plan.programs[p].at, plan.programs[p].within, [&](std::size_t cell) {
      if (program_[cell] >= 0) {
        throw InputError(plan.file, "/programs/" + std::to_string(p) + "/at",
                         "the rank at " + describeCell(plan, cell) +
                             " is also covered by /programs/" + std::to_string(program_[cell]) +
                             ", expected exactly one program for each rank");
      }
      program_[cell] = p;
    });
  }
  for (std::size_t cell = 0; cell < cells; ++cell) {
    if (program_[cell] >= 0) continue;
    throw InputError(plan.file, "/programs",
                     "no program covers the rank at " + describeCell(plan, cell) +
                         ", expected exactly one program for each rank");
  }
}

std::string ProgramGrid::describeCell(const Plan& plan, std::size_t cell) const {
  std::string out = "{";
  std::size_t next = 0;
  for (std::size_t i = 0; i < plan.mesh.size(); ++i) {
    std::size_t coordinate = 0;  // of the axes that no program fixes: any, so the first
    if (next < axes_.size() && axes_[next].axis == static_cast<std::int32_t>(i)) {
      coordinate = cell / axes_[next].stride % static_cast<std::size_t>(axes_[next].size);
      ++next;
    }
    out += (i > 0 ? ", \"" : "\"") + plan.mesh[i].name + "\": " + std::to_string(coordinate);
  }
  return out + "}";
}

}  // namespace shardproof::ir
