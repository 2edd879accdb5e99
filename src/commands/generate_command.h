// SPDX-License-Identifier: Apache-2.0
// `shardproof generate`: writes the model and the plan of a real architecture.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "generate/options.h"

namespace shardproof {

// What can be asked of the generator, by name: on the command line, and in the configurations of
// `shardproof sweep`. `options` must outlive `command`.
void addGeneratorOptions(CLI::App* command, generate::Options& options);

void addGenerateCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
