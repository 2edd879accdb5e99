// SPDX-License-Identifier: Apache-2.0
// Ranks and coordinates of a plan's mesh.
#pragma once

#include <cstdint>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

class MeshView {
 public:
  explicit MeshView(const std::vector<MeshAxis>& mesh)
      : strides_(mesh.size(), 1), sizes_(mesh.size(), 1) {
    for (std::size_t a = mesh.size(); a-- > 0;) {
      sizes_[a] = mesh[a].size;
      strides_[a] = ranks_;
      ranks_ *= mesh[a].size;
    }
  }
  std::int32_t axes() const { return static_cast<std::int32_t>(sizes_.size()); }
  std::int64_t ranks() const { return ranks_; }  // how many
  std::int32_t size(std::int32_t axis) const { return sizes_[axis]; }
  std::int32_t coordinate(Rank rank, std::int32_t axis) const {
    return static_cast<std::int32_t>(rank / strides_[axis] % sizes_[axis]);
  }
  // The rank that agrees with `rank` but for the given axis.
  Rank with(Rank rank, std::int32_t axis, std::int32_t coordinate_) const {
    return Rank(rank + (coordinate_ - coordinate(rank, axis)) * strides_[axis]);
  }
  Rank with(Rank rank, const Coordinates& at) const {
    for (const auto& [axis, c] : at) rank = with(rank, axis, c);
    return rank;
  }
  // The first rank on which a program runs, or that a part of the lineage means.
  Rank firstOf(const Coordinates& at, const Stretches& within) const {
    Rank rank = with(Rank(0), at);
    for (const Stretch& s : within) rank = with(rank, s.axis, s.low);
    return rank;
  }

 private:
  std::vector<std::int64_t> strides_;
  std::vector<std::int32_t> sizes_;
  std::int64_t ranks_ = 1;
};

}  // namespace shardproof
