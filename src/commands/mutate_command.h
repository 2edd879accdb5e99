// SPDX-License-Identifier: Apache-2.0
// `shardproof mutate`: puts a known bug into a plan.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addMutateCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
