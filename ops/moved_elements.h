// SPDX-License-Identifier: Apache-2.0
// What operators that only move elements have in common.
#pragma once

#include <utility>
#include <vector>

#include "ops/definition.h"

namespace shardproof::ops {

// The kind of elements of the first operand.
inline TensorInfo like(const Signature& s, Shape shape) {
  return TensorInfo{std::move(shape), s.in[0]->element};
}

inline void equalValues(const Signature& s, std::size_t operand, Relations& relations) {
  if (s.in[operand]->element == ElementKind::kInteger)
    relations.equal({static_cast<int>(operand), kValues}, {slotOfResult(s, 0), kValues});
}

// Fills `out` by reading `x` with the given strides (in positions) from `base`.
template <class A>
void gather(const TensorValue<A>& x, Index base, const std::vector<Index>& strides,
            TensorValue<A>& out) {
  const Index planes = x.planes();
  out.data.clear();
  out.data.reserve(at(out.positions() * planes));
  walk<1>(sizesOf(out.dims), {strides}, [&](const std::array<Index, 1>& o) {
    for (Index p = 0; p < planes; ++p) out.data.push_back(x.data[at((base + o[0]) * planes + p)]);
  });
}

inline std::size_t rankOf(const Signature& s) { return shapeOf(s, 0).size(); }

}  // namespace shardproof::ops
