// SPDX-License-Identifier: Apache-2.0
// Dropout's masks belong to logical positions: the mask of a seed is one tensor as large as the
// model's operand, and a rank's dropout uses the piece that its operand is of it. Here these
// tensors are made inputs, so that everything after treats them like any other given tensor.
#pragma once

#include "shardproof/graph.h"

namespace shardproof {

// Gives every dropout (and dropout_backward) that draws a mask an operand with it: in the model an
// input for each seed, p and shape; in the plan a local input whose lineage is that of what the
// node drops out, or of the result (backward: of the dropout that read the same), where lineage
// says which piece of a tensor that the model drops out it is. A plan's node without such lineage
// is left as it is; what depends on it is undecided.
void giveDropoutMasks(Problem& problem);

}  // namespace shardproof
