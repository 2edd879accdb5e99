// SPDX-License-Identifier: Apache-2.0
// Memory and operations of a run, from declared shapes alone.
#pragma once

#include "executor/interpret.h"
#include "executor/setup.h"

namespace shardproof::executor {

Cost cost(const Setup& setup);
// Of every tensor, each on each rank and for each microbatch: what Options::keep keeps.
double keptBytes(const Setup& setup);

}  // namespace shardproof::executor
