// SPDX-License-Identifier: Apache-2.0
// `shardproof sweep`: many configurations, generated and verified, in one table.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addSweepCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
