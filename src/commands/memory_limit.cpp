// SPDX-License-Identifier: Apache-2.0
#include "commands/memory_limit.h"

#include <CLI/CLI.hpp>
#include <cstddef>

#include "worker/total_memory.h"

namespace shardproof {
namespace {

// Of what is free when the command starts; the rest is for what else the machine does.
constexpr double kShareOfFree = 0.8;

}  // namespace

void addMemoryLimit(CLI::App* command) {
  command
      ->add_option_function<std::size_t>(
          "--memory-limit", [](std::size_t megabytes) { limitTotalMemory(megabytes << 20); },
          "Memory that all processes of the run may have together, in MB; default: four fifths of "
          "what is free. A run that needs more has fewer workers at a time, then is undecided")
      ->check(CLI::Range(16, 100'000'000))
      ->type_name("MB");
  command->parse_complete_callback([] {
    if (totalMemoryLimit() != kNoMemoryLimit) return;
    if (const auto free = freeMemoryBytes())
      limitTotalMemory(static_cast<std::size_t>(static_cast<double>(*free) * kShareOfFree));
  });
}

}  // namespace shardproof
