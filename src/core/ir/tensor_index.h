// SPDX-License-Identifier: Apache-2.0
// The tensors of one graph by name.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

class TensorIndex {
 public:
  TensorIndex() = default;
  explicit TensorIndex(const std::vector<Tensor>& tensors);
  TensorId find(NameId name) const;  // none when there is none
  // Two tensors of one name, or (-1, -1).
  std::pair<TensorId, TensorId> duplicate() const;
  template <class Visit>
  void forEachName(Visit visit) const {
    for (const auto& [name, tensor] : sorted_) visit(name);
  }

 private:
  std::vector<std::pair<NameId, TensorId>>
      sorted_;  // (name, tensor): thousands of programs, so compact
};

}  // namespace shardproof::ir
