// SPDX-License-Identifier: Apache-2.0
#include "commands/pass_files.h"

#include "commands/usage.h"

namespace shardproof {

void PassFiles::take(PlanArguments& files, hlo::Options& options) const {
  if (before.empty()) return;
  if (files.given())
    throw WrongUsage("--before and --after name the two programs, so that there is no plan");
  files.model = before;
  files.named = {after};
  options.beforePass = true;
}

CLI::Option* addPassOptions(CLI::App* command, PassFiles& files, CLI::Option* model) {
  CLI::Option* before =
      command
          ->add_option("--before", files.before,
                       "HLO programs: the program of each device before a pass, with --after "
                       "instead of a model and a plan. Each device's results are compared")
          ->type_name("FILE")
          ->excludes(model);
  CLI::Option* after =
      command->add_option("--after", files.after, "HLO programs: the same program after the pass")
          ->type_name("FILE")
          ->needs(before);
  before->needs(after);
  return before;
}

}  // namespace shardproof
