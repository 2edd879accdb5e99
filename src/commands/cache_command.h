// SPDX-License-Identifier: Apache-2.0
// `shardproof cache`: what a proof cache holds, what to remove of it, and whether its proofs hold.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addCacheCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
