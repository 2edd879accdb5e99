// SPDX-License-Identifier: Apache-2.0
// Members of a communication of uneven pieces have operands and results of different shapes, or
// none: each is compared with the sizes, at its own place in the group.
#pragma once

#include <string>

#include "shardproof/graph.h"

namespace shardproof {

class PlanIndex;

// Whether members may have operands of different shapes. Not where they are added up before they
// are cut.
bool lengthsDiffer(const CommunicationSpec& spec);

// What is wrong with the operand or the result of `rank` in the communication `node`, whose other
// members are there and give the same sizes; empty: nothing.
std::string wrongPieces(const PlanIndex& planIndex, Rank rank, const Node& node,
                        Microbatch microbatch);

}  // namespace shardproof
