// SPDX-License-Identifier: Apache-2.0
// Which node makes a tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/registry.h"
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

// By tensor: whether it is made of inputs by nothing but moving their elements. A lemma about it
// settles nothing, and hides that it and its inputs are the same numbers.
inline std::vector<char> movedInputs(const Graph& graph) {
  std::vector<char> moved(graph.tensors.size(), 1);
  for (const Node& node : graph.nodes)
    for (const TensorId t : graph.out(node))
      if (t.valid()) moved[t] = 0;
  // Nodes are in no order: as long as one more is found.
  const auto movesInputs = [&](const Node& node) {
    if (node.communication >= 0 || !ops::Registry::instance().at(node.op).traits.moves)
      return false;
    const auto in = graph.in(node);
    return std::all_of(in.begin(), in.end(), [&](const Operand& o) {
      return !o.present() ||
             (moved[o.tensor] != 0 && graph.tensors[o.tensor].element != ElementKind::kInteger);
    });
  };
  for (bool found = true; found;) {
    found = false;
    for (const Node& node : graph.nodes) {
      const auto out = graph.out(node);
      if (out.empty() || !out[0].valid() || moved[out[0]] != 0 || !movesInputs(node)) continue;
      for (const TensorId t : out)
        if (t.valid()) moved[t] = 1;
      found = true;
    }
  }
  return moved;
}

}  // namespace shardproof::infer
