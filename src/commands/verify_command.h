// SPDX-License-Identifier: Apache-2.0
// `shardproof verify`: the main job, from files to verdict, report and exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "shardproof/infer.h"
#include "shardproof/verify.h"

namespace shardproof {

// Adds the subcommand; `run` becomes what main calls for its exit code if the subcommand was
// chosen.
void addVerifyCommand(CLI::App& app, std::function<int()>& run);

void addInferOption(CLI::App* command, Infer& infer);

// The options that `verify` and `sweep` have in common: workers, limits, checker ("auto" or "z3").
void addVerifyLimits(CLI::App* command, VerifyOptions& options, std::string& checker);

}  // namespace shardproof
