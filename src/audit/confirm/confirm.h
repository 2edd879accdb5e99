// SPDX-License-Identifier: Apache-2.0
// A second opinion on a verdict: the plan, or one made smaller as a plan, is executed at random
// inputs by the plain executor (src/explanation/executor/), which shares nothing with what the
// verdict rests on. It never makes a verdict. A plan that was proved and does not agree when it is
// executed is an error of this program.
#pragma once

#include <atomic>
#include <cstddef>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

struct ConfirmOptions {
  double seconds = 1;  // for all of it
  std::size_t memoryMegabytes = 4096;
  const std::atomic<bool>* cancel = nullptr;
};

// Executes what `report` is about in a process of its own, and sets report.confirmation. A proved
// plan that disagrees, or whose model has no value at an output for any input that was tried, is
// undecided from then on, with the reason; the former also has Confirmation::Outcome::kDisagrees,
// which is exit code 6. Where a smaller plan disagrees it is first verified itself: if it is not
// equivalent, it is another plan than it was meant to be, and says nothing.
void confirm(const Problem& problem, Report& report, const ConfirmOptions& options);

}  // namespace shardproof
