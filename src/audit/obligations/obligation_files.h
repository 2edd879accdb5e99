// SPDX-License-Identifier: Apache-2.0
// The files of `--smt2 DIR`: one script of SMT-LIB for each class, and DIR/index.json about all of
// them (docs/solvers.md has its keys).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan_index.h"
#include "refute/stage_outcome.h"
#include "stages/stage.h"
#include "worker/pool.h"

namespace shardproof {

struct ObligationClass {
  const Stage* stage;
  const StageOutcome* outcome;
  std::vector<EntryId>
      entries;  // lineage entries whose stages share it, also those that were cut again later
  bool final;   // the report's verdict on one of them rests on it
};

// Makes the directory, or empties one that an earlier run made: of what that run's index lists, and
// of nothing else. Leaves an index that says that the run is not complete. Throws
// std::runtime_error where that cannot be done, or where other files are there.
void prepareObligationDirectory(const std::string& directory);

// Writes a file for each class, in workers as proofs are made, and the index last. `without`:
// lineage entries that no stage could be cut for, and why. What a limit of time, memory or size
// keeps from being written is in the index with its reason. Throws std::runtime_error.
void writeObligations(const std::string& directory, const PlanIndex& planIndex,
                      const std::vector<ObligationClass>& classes,
                      const std::vector<std::pair<std::int32_t, std::string>>& without,
                      const PoolOptions& pool,
                      const std::function<void(std::size_t, std::size_t, const char*)>& progress);

}  // namespace shardproof
