// SPDX-License-Identifier: Apache-2.0
// Places of tensors in the memory of a rank (Asynchrony::buffers).
#pragma once

#include "shardproof/graph.h"

namespace shardproof::ir {

// Whether two tensors share memory.
inline bool overlap(const BufferPlace& a, const BufferPlace& b) {
  return a.buffer == b.buffer && (!a.high || b.low < *a.high) && (!b.high || a.low < *b.high);
}

}  // namespace shardproof::ir
