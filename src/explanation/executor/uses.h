// SPDX-License-Identifier: Apache-2.0
// What tensors are used for, as far as it says which values make sense to draw for them: indices
// must lie within the tables that they look up, and what a root is taken of must be positive.
// Followed backwards through operators and communications that only move elements, in the model and
// in all programs.
#pragma once

#include <cstdint>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::executor {

struct Use {
  bool ranged = false;
  std::int64_t low = 0, high = 8;  // integers: [low, high)
  bool positive = false;
};

class Uses {
 public:
  explicit Uses(const Problem& problem);
  const Use& ofModel(TensorId tensor) const {
    return uses_[find(static_cast<std::size_t>(tensor))];
  }
  const Use& ofLocal(ProgramId program, TensorId tensor) const {
    return uses_[find(first_[program] + static_cast<std::size_t>(tensor))];
  }

 private:
  std::size_t find(std::size_t i) const;
  void unite(std::size_t a, std::size_t b);
  void connect(const Problem& problem);
  void collect(const Problem& problem, const Graph& graph, std::size_t first, bool model);

  // Of one class: where its elements must lie (labels, experts), and where they are looked up.
  struct Ranges {
    bool must = false, may = false, loose = false;
    std::int64_t mustLow = 0, mustHigh = 0, mayLow = 0, mayHigh = 0;
    bool positive = false;
  };
  mutable std::vector<std::size_t> parent_;
  std::vector<std::size_t> first_;  // of each program's tensors; the model's come first
  std::vector<Ranges> ofModels_, ofPlans_;
  std::vector<Use> uses_;
};

}  // namespace shardproof::executor
