// SPDX-License-Identifier: Apache-2.0
// shardproof convert: HLO programs as our JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

// `run` becomes what the command does; it returns the exit code.
void addConvertCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
