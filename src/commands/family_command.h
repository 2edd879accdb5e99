// SPDX-License-Identifier: Apache-2.0
// `shardproof family --any NAME ...`: plans of several sizes, proved for all sizes at once.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addFamilyCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
