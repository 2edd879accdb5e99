// SPDX-License-Identifier: Apache-2.0
// Which node makes a tensor.
#pragma once

#include <cstddef>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

struct Maker {
  NodeId node;             // none: nothing does
  std::size_t result = 0;  // which of its results it is
};

// By tensor.
inline std::vector<Maker> makersOf(const Graph& graph) {
  std::vector<Maker> makers(graph.tensors.size());
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
    const auto out = graph.out(graph.nodes[n]);
    for (std::size_t r = 0; r < out.size(); ++r)
      if (out[r].valid()) makers[out[r]] = {n, r};
  }
  return makers;
}

}  // namespace shardproof::infer
