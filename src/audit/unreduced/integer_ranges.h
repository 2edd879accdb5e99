// SPDX-License-Identifier: Apache-2.0
// Which integers make sense as elements of a stage's integer tensors: an index is drawn where it
// finds something.
#pragma once

#include <cstdint>
#include <vector>

#include "stages/stage.h"

namespace shardproof::unreduced {

// By tensor: its elements are looked up among 0 ... bound - 1. 0: nothing looks them up.
std::vector<std::int64_t> integerBounds(const Stage& stage);

// The integers that are drawn: all of a small range; of a large one both ends and some between, few
// enough that tokens meet.
std::vector<std::int64_t> integersBelow(std::int64_t bound);

}  // namespace shardproof::unreduced
