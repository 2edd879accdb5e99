// SPDX-License-Identifier: Apache-2.0
// Lineage that speaks of parts of local tensors (LocalPart), turned into lineage that speaks of
// whole ones: nodes take the parts out, so that nothing after this has to know of parts.
//
// * A given tensor of which lineage of role input speaks: each part is a given tensor of its own,
//   with that lineage, and nodes at the beginning of the program put the tensor together of them.
// * A tensor that a node produces: nodes after it take the parts out, and put what all others read
//   together of them again, so that a lemma about the parts is met by whoever looks for where
//   operands come from. This is the tensor itself, whatever lineage says.
#pragma once

#include <cstddef>

#include "shardproof/graph.h"

namespace shardproof::ir {

// For all of `plan.placed` from place `first` on. Programs whose ranks lineage of role input tells
// apart become one for each of them. Throws InputError where a part is none of its tensor, parts of
// an input overlap or leave something out, and as validateLineage() where that would come too late.
void takeOutParts(Problem& problem, std::size_t first = 0);

// From here on the nodes and tensors are the plan's own, written to files like any other. For plans
// that are changed: what is written for them is what they are.
void makePartsOwn(Problem& problem);

}  // namespace shardproof::ir
