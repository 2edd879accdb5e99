// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addOperatorsCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
