// SPDX-License-Identifier: Apache-2.0
#include "commands/memory_limits.h"

#include <CLI/CLI.hpp>

#include "worker/total_memory.h"

namespace shardproof {
namespace {

// Of what is free when the command starts; the rest is for what else the machine does.
constexpr double kShareOfFree = 0.8;

}  // namespace

void addMemoryLimits(CLI::App* command, std::size_t& megabytes) {
  const CLI::Range range(16, 100'000'000);
  command->add_option("--memory", megabytes, "Memory that a worker may use, in MB")
      ->check(range)
      ->capture_default_str()
      ->type_name("MB");
  command
      ->add_option_function<std::size_t>(
          "--memory-limit", [](std::size_t all) { limitTotalMemory(all << 20); },
          "Memory that all processes of the run may have together, in MB; default: four fifths of "
          "what is free. A run that needs more has fewer workers at a time, then is undecided")
      ->check(range)
      ->type_name("MB");
  command->parse_complete_callback([] {
    if (totalMemoryLimit() != kNoMemoryLimit) return;
    if (const auto free = freeMemoryBytes())
      limitTotalMemory(static_cast<std::size_t>(static_cast<double>(*free) * kShareOfFree));
  });
}

}  // namespace shardproof
