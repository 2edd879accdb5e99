// SPDX-License-Identifier: Apache-2.0
// `shardproof infer`: a plan with the lineage that was found for it.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace shardproof {

void addInferCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
