// SPDX-License-Identifier: Apache-2.0
// `--memory` and `--memory-limit` of the commands that start workers.
#pragma once

#include <cstddef>

namespace CLI {
class App;
}

namespace shardproof {

// `megabytes`: of a worker. Also without --memory-limit there is one for all: a share of what is
// free.
void addMemoryLimits(CLI::App* command, std::size_t& megabytes);

}  // namespace shardproof
