// SPDX-License-Identifier: Apache-2.0
// Which values of an integer input stand for all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reader/hlo/index.h"

namespace shardproof::hlo {

// Stretches of integers in order, with gaps between them.
using Stretches = std::vector<Stretch>;

// What lies in both.
Stretches intersection(const Stretches& values, Stretch within);

// A set R of values in `range` such that for each i in `range` there is an r in R at which each of
// the functions has the value that it has at i, but for values left out. Zero comes first, then 1,
// 2, ..., then -1, -2, ...: of values that are equal in this respect the first one is in R, so that
// more functions make R no smaller.
// `leftOut`: functions that are 1 where a value is left out, 0 elsewhere.
// `mostOfEach`: where all functions are constant, so many values of a stretch are kept at least,
// if it has as many.
Stretches representatives(Stretch range, std::span<const Pieces> functions,
                          std::span<const Pieces> leftOut, std::int64_t mostOfEach);

}  // namespace shardproof::hlo
