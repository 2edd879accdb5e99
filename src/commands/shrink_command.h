// SPDX-License-Identifier: Apache-2.0
// `shardproof shrink`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

// Adds the subcommand to `app`. When it was chosen, `run` is set to what it does, which returns the
// exit code.
void addShrinkCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
