// SPDX-License-Identifier: Apache-2.0
// Where what is computed stops being the model's: nodes whose operands are all something of it,
// while a result is nothing of it, nor anything that is made from that result on the way to the
// claim. A mistake is at one of them, or right before it: a partial sum that is used as if it were
// complete is something of the model, too.
#pragma once

#include <vector>

#include "diagnose/finder.h"
#include "diagnose/search.h"

namespace shardproof::diagnose {

constexpr std::size_t kMostTurning = 12;

// Of the image, farthest from the claim first; not more than kMostTurning. Empty when there is no
// time for it: it looks up what tensors are until `end`.
std::vector<NodeRef> turningNodes(const Search::Failing& failing, const Finder& finder,
                                  ProcessorClock::time_point end);

}  // namespace shardproof::diagnose
