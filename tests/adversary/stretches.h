// SPDX-License-Identifier: Apache-2.0
// A plan said otherwise: the same programs and lineage, by stretches of an axis (docs/format.md).
#pragma once

#include "adversary/case.h"

namespace shardproof::adversary {

// Cuts axes that programs and shards leave free into stretches, each with what was said of the
// whole axis. What the plan means stays as it is.
void stretch(Case& made, Random& random);

// Moves one end of a stretch, of a program and its neighbour or of a part of lineage; an empty text
// where there is none.
std::string moveEnd(Case& made, Random& random);

}  // namespace shardproof::adversary
