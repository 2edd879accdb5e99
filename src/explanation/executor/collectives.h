// SPDX-License-Identifier: Apache-2.0
// What a communication makes of its members' arrays (docs/format.md, "Communication").
#pragma once

#include <vector>

#include "executor/call.h"

namespace shardproof::executor {

// `operands` and the results in group order. Of a broadcast, a scatter or a message only the
// root's (the sender's) operand is there. There is a result for each member, also for those whose
// node has none; of a barrier it is empty. Throws Misfit where shapes or kinds
// differ or cannot be split, NoMeaning for the mean of integers and the largest of complex numbers.
template <class T>
std::vector<Value<T>> communicated(Context& context, const CommunicationSpec& spec,
                                   const std::vector<const Value<T>*>& operands);

}  // namespace shardproof::executor
