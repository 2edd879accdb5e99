// SPDX-License-Identifier: Apache-2.0
// Memory and operations of a run, from declared shapes alone.
#pragma once

#include "interpret/interpret.h"
#include "interpret/setup.h"

namespace shardproof::interpret {

Cost cost(const Setup& setup);
// Of every tensor, each on each rank and for each microbatch: what Options::keep keeps.
double keptBytes(const Setup& setup);

}  // namespace shardproof::interpret
