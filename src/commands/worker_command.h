// SPDX-License-Identifier: Apache-2.0
// shardproof worker: proves stages that a run on another machine has listed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

// `run` becomes what the command does; it returns the exit code.
void addWorkerCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
