// SPDX-License-Identifier: Apache-2.0
// The manual page, made from the command line's own description.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace shardproof {

// shardproof(1) in the man macros: all commands with their options, exit codes, files.
std::string manualPage(const CLI::App& app);

}  // namespace shardproof
