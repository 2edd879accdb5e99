// SPDX-License-Identifier: Apache-2.0
// The order in which pipeline ranks run their forward and backward blocks, and their messages
// between them.
#pragma once

#include <vector>

#include "generate/options.h"

namespace shardproof::generate {

struct Block {
  bool forward = true;
  int chunk = 0, microbatch = 0;
};

// The blocks of one rank in order: 1f1b (Narayanan et al., arXiv 2006.09503) and interleaved (arXiv
// 2104.04473), as Megatron-LM orders them.
std::vector<Block> scheduleOf(const Options& options, int rank);

enum class Action { kReceive, kCompute, kSend };
struct Event {
  Action action = Action::kCompute;
  Block block;
};

// For each rank, everything in order. Frameworks post sends and receives in batches, so that
// neighbours that exchange in both directions do not wait for one another; in a plan each message
// waits for its peer. So the step is played through with a clock (a backward block takes twice as
// long as a forward block), and each rank has its messages in the order in which they become ready:
// one order for all ranks, so no cycle of waits.
std::vector<std::vector<Event>> timeline(const Options& options);

}  // namespace shardproof::generate
