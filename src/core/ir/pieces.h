// SPDX-License-Identifier: Apache-2.0
// What the members of a communication have each of their own: the sizes of uneven pieces, the pairs
// of a collective_permute. All members state all of it, so a file can be wrong about it in one
// place.
#pragma once

#include <functional>
#include <string>

#include "shardproof/graph.h"

namespace shardproof::ir {

// Calls fail(field of the node, message), which throws, for sizes or pairs that are none of the
// group. Puts pairs into the order of their targets, so that equal sets are equal lists.
void settlePieces(
    const Plan& plan, CommunicationSpec& spec,
    const std::function<void(const std::string& field, const std::string& message)>& fail);

}  // namespace shardproof::ir
