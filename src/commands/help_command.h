// SPDX-License-Identifier: Apache-2.0
// `shardproof help [COMMAND]`: what `--help` says.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addHelpCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
