// SPDX-License-Identifier: Apache-2.0
// `shardproof check-log`: replays the proof log of an earlier `shardproof verify --certify`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addCheckLogCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
