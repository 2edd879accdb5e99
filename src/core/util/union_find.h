// SPDX-License-Identifier: Apache-2.0
// Disjoint sets of the indices 0, 1, ..., with path halving.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace shardproof {

template <class Index>
class UnionFind {
 public:
  explicit UnionFind(std::size_t n = 0) : parent_(n) {
    std::iota(parent_.begin(), parent_.end(), Index{0});
  }
  Index add() {
    parent_.push_back(static_cast<Index>(parent_.size()));
    return parent_.back();
  }
  Index find(Index v) {
    while (at(v) != v) v = at(v) = at(at(v));
    return v;
  }
  // The set's representative is b's.
  void unite(Index a, Index b) {
    a = find(a);
    at(a) = find(b);
  }
  std::size_t size() const { return parent_.size(); }

 private:
  Index& at(Index v) { return parent_[static_cast<std::size_t>(v)]; }

  std::vector<Index> parent_;
};

}  // namespace shardproof
