// SPDX-License-Identifier: Apache-2.0
// `--memory-limit` of the commands that start workers.
#pragma once

namespace CLI {
class App;
}

namespace shardproof {

// Also without the option there is a limit then: a share of what is free.
void addMemoryLimit(CLI::App* command);

}  // namespace shardproof
