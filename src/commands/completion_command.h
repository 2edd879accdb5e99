// SPDX-License-Identifier: Apache-2.0
// `shardproof completion SHELL`: a script that completes our words, made from the command line's
// own description, so that it cannot be out of date.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace shardproof {

void addCompletionCommand(CLI::App& app, std::function<int()>& run);

// For "bash", "zsh" or "fish".
std::string completionScript(const CLI::App& app, const std::string& shell);

}  // namespace shardproof
