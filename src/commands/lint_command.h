// SPDX-License-Identifier: Apache-2.0
// `shardproof lint PLAN...`: reading and the checks before any proof, for exporters under
// development.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addLintCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
