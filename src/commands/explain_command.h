// SPDX-License-Identifier: Apache-2.0
// shardproof explain: a report's causes, tensor by tensor.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace shardproof {

void addExplainCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
