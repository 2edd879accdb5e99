// SPDX-License-Identifier: Apache-2.0
// What holds of each tensor of the model for every input: that it is defined, what sign it has. A
// stage that stops at a tensor starts from an unknown; of an unknown divisor it is not known that
// it is not zero, though the model may have made it as a sum of squares and an epsilon. So the
// model's operators are executed over terms once, one by one, in order: the operands of each are
// unknowns of which the facts found before are known, and its results tell theirs. The facts of a
// tensor follow from those of others by the definition of one operator, hence hold for every input,
// by induction over the model.
//
// Where an operand may be minus infinity, what made it is executed as well: that each row of a
// causal mask has an entry that is open is known of the mask and not of its shape.
#pragma once

#include "shardproof/graph.h"
#include "terms/facts.h"

namespace shardproof {

// Never throws for what cannot be executed: of that nothing is known.
ModelFacts modelFacts(const Problem& problem);

}  // namespace shardproof
