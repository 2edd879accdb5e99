// SPDX-License-Identifier: Apache-2.0
// Lineage of inputs that leaves elements of the model's inputs on no rank: mostly a `step` that was
// forgotten. It is no error, as a model may ignore a part of an input.
#pragma once

#include <string>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

struct InputGap {
  TensorId tensor;    // of the model
  std::size_t entry;  // its first entry of role "input"
  std::string
      text;  // a sentence: the first element that is left out, and which step may be missing
};

// One for each input or parameter of the model that has a gap, in the model's order. Tensors with
// more than 2^20 separate boxes are not looked at.
std::vector<InputGap> inputGaps(const Problem& problem);

}  // namespace shardproof::ir
