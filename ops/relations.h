// SPDX-License-Identifier: Apache-2.0
// What an operator tells the shape reduction about positions: which dimensions run together, where
// a dimension is a stretch of another, what is summed. An operator that states its relations
// correctly can be executed on reduced dimensions without any loss (each rule is tested: op(full)
// at random positions against op(reduced)).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ops {

// A dimension of an operand or result of one operator call. `slot`: operands are 0..k-1, results
// follow as k, k+1, ... (absent ones keep their slot). `dim` is non-negative, or kValues: the range
// of values of an integer tensor (indices into a table).
constexpr int kValues = -1;
struct DimRef {
  int slot = 0;
  int dim = 0;
};

class Relations {
 public:
  virtual ~Relations() = default;
  // Position i of `a` is position i of `b`. Sizes must be equal. (A size-1 dimension that is
  // broadcast gets no relation.)
  virtual void equal(DimRef a, DimRef b) = 0;
  // Position i of `part` is position lo + i of `whole`, for all of part (size of `part` known from
  // its shape). With whole.dim == kValues and part a table dimension: value lo + i.
  virtual void range(DimRef whole, std::int64_t lo, DimRef part) = 0;
  // The two lists of dimensions are row-major regroupings of one another (view).
  virtual void regroup(std::span<const DimRef> a, std::span<const DimRef> b) = 0;
  // Positions 2j and 2j+1 of `whole` go with position j of `half`: the reduction keeps only whole
  // pairs, so that a reduced `whole` lists consecutive pairs, one for each reduced position of
  // `half` and of its weight.
  virtual void pairs(DimRef whole, DimRef half) = 0;
  // The operator adds up (or takes a maximum, ...) over this dimension, using the representatives'
  // weights.
  virtual void summed(DimRef d) = 0;
  // The dimension may not be reduced at all (an ordered choice over it, positions taken with a
  // stride, pairs, ...).
  virtual void keep(DimRef d) = 0;
  // The result depends on the absolute position along this dimension (a causal mask): no
  // permutation of positions is a symmetry.
  virtual void absolute(DimRef d) = 0;
  // Dimensions that vary independently within one summand of a result (by default the reduction
  // counts each result's own dimensions plus the summed ones; operators with a larger iteration
  // space, such as moe_experts, list theirs).
  virtual void iterates(std::span<const DimRef> dims) = 0;
  // Declares a tensor that the call does not have, so that relations can go through it: the result
  // whose gradient is absent in a backward call, or the single position that `select` takes out.
  // `slot` is at least the number of operands and results. Must come before any relation that names
  // the slot.
  virtual void virtualTensor(int slot, const Shape& shape) = 0;
};

}  // namespace shardproof::ops
