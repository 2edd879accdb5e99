// SPDX-License-Identifier: Apache-2.0
// Which node makes a tensor.
#pragma once

#include <cstddef>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

struct Producer {
  NodeId node;             // none: nothing does
  std::size_t result = 0;  // which of its results it is
};

// By tensor.
inline std::vector<Producer> producersOf(const Graph& graph) {
  std::vector<Producer> producers(graph.tensors.size());
  for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
    const auto out = graph.out(graph.nodes[n]);
    for (std::size_t r = 0; r < out.size(); ++r)
      if (out[r].valid()) producers[out[r]] = {n, r};
  }
  return producers;
}

}  // namespace shardproof::infer
