// SPDX-License-Identifier: Apache-2.0
// The stretches of a box that are contiguous in the whole tensor, in row-major order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compare/trace.h"

namespace shardproof::compare {

class Runs {
 public:
  // `part` is kept by reference.
  Runs(const std::vector<std::int64_t>& shape, const Part& part);

  std::size_t count() const { return count_; }
  std::size_t length() const { return length_; }
  // Where the run begins in the whole tensor; it increases with `run`.
  std::size_t begin(std::size_t run) const;
  // Where it begins in the local tensor.
  std::size_t local(std::size_t run) const { return part_.at + run * length_; }
  // The first run that ends behind `position`.
  std::size_t firstBehind(std::size_t position) const;

 private:
  const Part& part_;
  std::vector<std::size_t> strides_;
  std::size_t outer_ = 0, count_ = 1, length_ = 1, low_ = 0;
};

}  // namespace shardproof::compare
