// SPDX-License-Identifier: Apache-2.0
// Why a plan is not equivalent: causes, each narrowed to a node, in one sentence, and what would
// fix it. It runs after the verdict, never changes it, and says nothing that was not confirmed at
// several random inputs; a fix is called proved only when the whole fixed plan is.
//
//   image       the plan that is executed: itself, or a smaller one
//   slice       what one claim is computed by
//   numbers     its values in the prime field
//   finder      what tensors are
//   edit        changes of a plan;  proposals, search: which one fixes it
//   words       sentences
//   structure   plans that cannot run
#pragma once

#include <atomic>
#include <string>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

struct DiagnoseOptions {
  // For finding causes and fixes, of processor time. 8,192 ranks of a Llama 405B need 5 on an idle
  // machine. The proof of what is fixed gets half of it, or twice what the verdict took.
  double seconds = 10;
  double wallSeconds = 1e8;  // for all of it by the wall clock: what is left of the run
  std::size_t memoryMegabytes = 4096;
  const std::atomic<bool>* cancel = nullptr;
};

// Sets report.causes, in processes of its own. Returns the text of the fixed plan where the whole
// of it was proved, else an empty text. `modelFile`: what that plan calls its model.
std::string diagnosePlan(const Problem& problem, Report& report, const std::string& modelFile,
                         const DiagnoseOptions& options);

}  // namespace shardproof
