#include "ir/tensor_index.h"

#include <algorithm>

namespace shardproof::ir {

TensorIndex::TensorIndex(const std::vector<Tensor>& tensors) {
  sorted_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    sorted_.emplace_back(tensors[i].name, static_cast<std::int32_t>(i));
  std::sort(sorted_.begin(), sorted_.end());
}

std::int32_t TensorIndex::find(NameId name) const {
  const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(name, -1));
  return name.valid() && it != sorted_.end() && it->first == name ? it->second : -1;
}

std::pair<std::int32_t, std::int32_t> TensorIndex::duplicate() const {
  const auto it =
      std::adjacent_find(sorted_.begin(), sorted_.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  return it == sorted_.end() ? std::pair(-1, -1) : std::pair(it->second, (it + 1)->second);
}

}  // namespace shardproof::ir
