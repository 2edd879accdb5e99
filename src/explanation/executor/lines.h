// SPDX-License-Identifier: Apache-2.0
// A tensor as lines along one dimension: `outer` x `inner` lines of n elements, `inner` apart.
#pragma once

#include <vector>

#include "executor/call.h"

namespace shardproof::executor {

struct Lines {
  std::int64_t outer = 1, n = 1, inner = 1;
  Lines(const Shape& shape, std::size_t dim) : n(shape[dim]) {
    for (std::size_t d = 0; d < dim; ++d) outer *= shape[d];
    for (std::size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  }
  std::int64_t count() const { return outer * inner; }
  std::int64_t start(std::int64_t line) const { return line / inner * n * inner + line % inner; }
};

// exp(x_i - m) and their sum, with m the largest x, so that nothing overflows; in the field, which
// has no order, m = 0. A line of minus infinities has no value. Gives back log(sum_i exp(x_i)); e
// may be nullptr.
template <class T>
T exponentials(const T* x, std::int64_t n, std::int64_t stride, T* e, T& sum) {
  T m = T(0);
  if constexpr (!kIsField<T>) {
    m = x[0];
    for (std::int64_t i = 1; i < n; ++i) m = maximumOf(m, x[i * stride]);
    if (isUndefined(m)) {
      sum = m;
      if (e != nullptr)
        for (std::int64_t i = 0; i < n; ++i) e[i * stride] = m;
      return m;
    }
  }
  if (e != nullptr) {
    for (std::int64_t i = 0; i < n; ++i) e[i * stride] = expOf(x[i * stride] - m);
    sum = sumOf(e, n, stride);
  } else {
    T part[4] = {T(0), T(0), T(0), T(0)};
    for (std::int64_t i = 0; i < n; ++i) part[i & 3] += expOf(x[i * stride] - m);
    sum = (part[0] + part[1]) + (part[2] + part[3]);
  }
  return m + logOf(sum);
}

}  // namespace shardproof::executor
