// `shardproof generate`: writes the model and the plan of a real architecture.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardproof {

void addGenerateCommand(CLI::App& app, std::function<int()>& run);

}  // namespace shardproof
