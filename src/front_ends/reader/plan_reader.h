// SPDX-License-Identifier: Apache-2.0
// Reads a plan as it is written: the mesh may follow the programs that use its axes, and the model
// is read later.
#pragma once

#include "ir/draft.h"
#include "reader/text_source.h"

namespace shardproof::reader {

// Fills problem.plan. Throws InputError.
void readPlan(const Input& input, ir::ProblemDraft& problem);

}  // namespace shardproof::reader
