// SPDX-License-Identifier: Apache-2.0
#include "ir/tensor_index.h"

#include <algorithm>

namespace shardproof::ir {

TensorIndex::TensorIndex(const std::vector<Tensor>& tensors) {
  sorted_.reserve(tensors.size());
  for (const TensorId i : firstIds<TensorId>(tensors.size()))
    sorted_.emplace_back(tensors[i].name, i);
  std::sort(sorted_.begin(), sorted_.end());
}

TensorId TensorIndex::find(NameId name) const {
  const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(name, TensorId()));
  return name.valid() && it != sorted_.end() && it->first == name ? it->second : TensorId();
}

std::pair<TensorId, TensorId> TensorIndex::duplicate() const {
  const auto it =
      std::adjacent_find(sorted_.begin(), sorted_.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  return it == sorted_.end() ? std::pair(TensorId(), TensorId())
                             : std::pair(it->second, (it + 1)->second);
}

}  // namespace shardproof::ir
