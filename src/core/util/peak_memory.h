// SPDX-License-Identifier: Apache-2.0
// How much memory this process needed.
#pragma once

#include <cstddef>

namespace shardproof {

// The largest resident set that this program had so far, in bytes. Linux says it in
// /proc/self/status (VmHWM; proc(5)); where that cannot be read it is what getrusage() says, which
// begins with the resident set of the process that started this one: of a large one, too much.
std::size_t peakMemoryBytes();

}  // namespace shardproof
