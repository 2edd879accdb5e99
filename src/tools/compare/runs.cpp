// SPDX-License-Identifier: Apache-2.0
#include "compare/runs.h"

namespace shardproof::compare {

Runs::Runs(const std::vector<std::int64_t>& shape, const Part& part) : part_(part) {
  strides_.assign(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;)
    strides_[d - 1] = strides_[d] * static_cast<std::size_t>(shape[d]);
  std::size_t d = shape.size();
  while (d > 0) {
    --d;
    length_ *= static_cast<std::size_t>(part.size[d]);
    if (part.size[d] != shape[d]) break;
  }
  outer_ = d;
  for (std::size_t e = 0; e < outer_; ++e) count_ *= static_cast<std::size_t>(part.size[e]);
  for (std::size_t e = 0; e < shape.size(); ++e)
    low_ += strides_[e] * static_cast<std::size_t>(part.low[e]);
  if (length_ == 0) count_ = 0;
}

std::size_t Runs::begin(std::size_t run) const {
  std::size_t at = low_;
  for (std::size_t d = outer_; d-- > 0;) {
    const auto n = static_cast<std::size_t>(part_.size[d]);
    at += run % n * strides_[d];
    run /= n;
  }
  return at;
}

std::size_t Runs::firstBehind(std::size_t position) const {
  std::size_t low = 0, high = count_;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (begin(middle) + length_ > position) high = middle;
    else low = middle + 1;
  }
  return low;
}

}  // namespace shardproof::compare
