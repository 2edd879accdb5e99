// SPDX-License-Identifier: Apache-2.0
// --jobs and --stage-timeout: how many worker processes, and how long each may prove.
#pragma once

#include <CLI/CLI.hpp>

#include "commands/validators.h"

namespace shardproof {

inline void addJobs(CLI::App* command, int& jobs) {
  command->add_option("-j,--jobs", jobs, "Worker processes; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->type_name("N");
}

inline void addStageTimeout(CLI::App* command, double& seconds) {
  command
      ->add_option("--stage-timeout", seconds,
                   "Processor time for the proof of one stage, in seconds")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
}

}  // namespace shardproof
