// `shardproof verify`: the main job, from files to verdict, report and exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

// Adds the subcommand; `run` becomes what main calls for its exit code if the subcommand was chosen.
void addVerifyCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
