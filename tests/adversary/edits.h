// SPDX-License-Identifier: Apache-2.0
// Small changes of a plan (or its model), each of the kind that a bug of a framework makes: one
// coordinate's program, one microbatch's node, one attribute, operand, element, group, one number
// of the lineage. They work on the documents, hence on plans of any origin. What an edit does to
// the plan's truth is not its concern.
#pragma once

#include <string>

#include "adversary/case.h"

namespace shardproof::adversary {

// Makes one change and says which; an empty text where none of a few attempts found a place.
std::string edit(Case& made, Random& random);

}  // namespace shardproof::adversary
