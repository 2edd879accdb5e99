// SPDX-License-Identifier: Apache-2.0
// `shardproof run`: executes a model and a plan on numbers, and compares them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addRunCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
