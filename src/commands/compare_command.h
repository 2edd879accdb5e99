// SPDX-License-Identifier: Apache-2.0
// `shardproof compare REFERENCE/ CANDIDATE/`: the numbers of two traces (docs/numbers.md).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addCompareCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
