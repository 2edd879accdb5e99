// SPDX-License-Identifier: Apache-2.0
// HLO programs before and after a pass, which are named instead of a model and a plan.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "commands/files.h"
#include "reader/hlo/documents.h"

namespace shardproof {

struct PassFiles {
  std::string before, after;  // both or none

  // Puts them where model and plan are. Throws WrongUsage where there is a plan as well.
  void take(PlanArguments& files, hlo::Options& options) const;
};

// --before and --after. Returns --before. `model`: the option that goes with neither.
CLI::Option* addPassOptions(CLI::App* command, PassFiles& files, CLI::Option* model);

}  // namespace shardproof
