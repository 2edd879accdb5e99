// SPDX-License-Identifier: Apache-2.0
// Products of matrices, in batches: what nearly all arithmetic of a model is. In doubles by Eigen,
// in the other arithmetics by plain loops in blocks.
#pragma once

#include <cstdint>

#include "executor/scalar.h"

namespace shardproof::executor {

// C = A B for each of `batches`, all row-major and dense. `transposeA`: a is stored as [k, m]
// rather than [m, k]; `transposeB`: b as [n, k]. Strides are from one batch to the next; 0 repeats.
template <class T>
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  const T* b = nullptr;
  T* c = nullptr;
  bool transposeA = false, transposeB = false;
  std::int64_t batches = 1, strideA = 0, strideB = 0, strideC = 0;
};

void multiply(const Product<double>&);
void multiply(const Product<long double>&);
void multiply(const Product<Field>&);

}  // namespace shardproof::executor
