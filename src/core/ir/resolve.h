// SPDX-License-Identifier: Apache-2.0
// Names to ids: a draft becomes a problem. What is asked here is only whether every name names
// something, once; whether the problem makes sense is asked by ir/validate.h.
#pragma once

#include <memory>

#include "ir/draft.h"

namespace shardproof::ir {

// The draft's memory is given back as the problem grows. Lists whose order has no meaning (axes of
// a group, of coordinates, of a sum, steps) are sorted, steps of zero left out, and dimensions
// counted from the end are counted from the front where the operand has them. Throws InputError.
std::unique_ptr<Problem> resolveNames(ProblemDraft&& draft);

}  // namespace shardproof::ir
