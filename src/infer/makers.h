// Which node makes a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

struct Maker {
  std::int32_t node = -1;    // -1: none
  std::int32_t result = -1;  // which of its results
};

// By tensor.
inline std::vector<Maker> makersOf(const Graph& graph) {
  std::vector<Maker> makers(graph.tensors.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto out = graph.out(graph.nodes[n]);
    for (std::size_t r = 0; r < out.size(); ++r)
      if (out[r] >= 0)
        makers[static_cast<std::size_t>(out[r])] = {static_cast<std::int32_t>(n),
                                                    static_cast<std::int32_t>(r)};
  }
  return makers;
}

}  // namespace shardproof::infer
