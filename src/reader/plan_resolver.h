// Turns the names in a plan's programs into ids, and checks what can be wrong with them as input.
// Whether the programs can run, and are right (shapes, production before reading, matching
// communication), is not asked here: that is a verdict on the plan.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "reader/graph_reader.h"
#include "reader/program_grid.h"
#include "shardproof/graph.h"

namespace shardproof::reader {

// The mesh axes by name.
class AxisIndex {
 public:
  AxisIndex() = default;
  AxisIndex(const Plan& plan, const Names& names);
  // `name`: the value of a NameId. Throws InputError at `pointer` when there is no such axis.
  std::int32_t find(std::int32_t name, const std::string& pointer) const;
  bool known(std::int32_t name) const { return lookUp(name) >= 0; }
  bool isMicrobatch(std::int32_t name) const { return name == microbatch_; }
  // Names to axes, in place; sorted, and every coordinate inside its axis. `pointer()` is called
  // only for a message: groups have many thousands of members.
  template <class Pointer>
  void resolve(Coordinates& at, Pointer pointer) const {
    for (auto& [axis, coordinate] : at) {
      const std::int32_t name = axis;
      axis = lookUp(name);
      if (axis < 0 || coordinate >= plan_->mesh[static_cast<std::size_t>(axis)].size)
        refuse(name, coordinate, pointer());
    }
    std::sort(at.begin(), at.end());
  }

 private:
  std::int32_t lookUp(std::int32_t name) const;
  [[noreturn]] void refuse(std::int32_t name, std::int32_t coordinate,
                           const std::string& pointer) const;
  [[noreturn]] void unknown(std::int32_t name, const std::string& pointer) const;

  const Plan* plan_ = nullptr;
  const Names* names_ = nullptr;
  std::vector<std::pair<std::int32_t, std::int32_t>> axes_;  // (name, axis): a handful
  std::int32_t microbatch_ = -2;                             // the name "mb", if it occurs
};

// What the lineage needs to know of the programs.
struct PlanIndex {
  AxisIndex axes;
  ProgramGrid grid;
  std::vector<TensorIndex> tensors;         // per program
  std::vector<std::vector<bool>> produced;  // per program and tensor: some node has it as a result
};

PlanIndex resolvePrograms(Problem& problem);

}  // namespace shardproof::reader
