// SPDX-License-Identifier: Apache-2.0
#include "generate/graph.h"

#include <stdexcept>
#include <utility>

namespace shardproof::generate {

Tensor& Tensors::add(Tensor tensor) {
  if (!index_.emplace(tensor.name, list_.size()).second)
    throw std::logic_error("the generator made two tensors called '" + tensor.name + "'");
  list_.push_back(std::move(tensor));
  return list_.back();
}
Tensor* Tensors::find(const std::string& name) {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &list_[it->second];
}

}  // namespace shardproof::generate
