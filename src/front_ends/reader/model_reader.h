// SPDX-License-Identifier: Apache-2.0
// Reads the logical model as it is written.
#pragma once

#include "ir/draft.h"
#include "reader/text_source.h"

namespace shardproof::reader {

// Fills problem.model. Throws InputError.
void readModel(const Input& input, ir::ProblemDraft& problem);

}  // namespace shardproof::reader
