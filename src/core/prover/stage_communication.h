// SPDX-License-Identifier: Apache-2.0
// What a communication of a stage gives one of its members, over any algebra.
#pragma once

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "ops/algebra.h"
#include "shardproof/error.h"
#include "stages/stage.h"
#include "terms/functions.h"
#include "util/index.h"

namespace shardproof {

// Elements at the same place, one of each member.
template <class A>
typename A::Element combine(A& algebra, const StageNode& node,
                            const std::vector<typename A::Element>& members) {
  switch (node.reduction) {
    case Reduction::kSum:
      return algebra.sum(members, node.weight);
    case Reduction::kMean:
      return algebra.scale(
          Rational(1, std::accumulate(node.weight.begin(), node.weight.end(), std::int64_t{0})),
          algebra.sum(members, node.weight));
    case Reduction::kMax:
      return algebra.apply(ops::Function::kMaximum, {}, members);
    case Reduction::kMin:
      return algebra.apply(ops::Function::kMinimum, {}, members);
  }
  throw std::logic_error("unknown reduction");
}

// Copies the reduced positions from `fromStart` and `toStart` on, `extent` of them in each
// dimension.
template <class A>
void copyStretch(const ops::TensorValue<A>& from, std::size_t fromDim, std::int64_t fromStart,
                 ops::TensorValue<A>& to, std::size_t toDim, std::int64_t toStart,
                 const std::vector<std::int64_t>& extent) {
  const std::size_t rank = extent.size();
  std::vector<std::int64_t> index(rank, 0);
  std::int64_t n = 1;
  for (const std::int64_t e : extent) n *= e;
  const std::int64_t planes = from.planes();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t f = 0, t = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      f = f * from.dims[d].size() + index[d] + (d == fromDim ? fromStart : 0);
      t = t * to.dims[d].size() + index[d] + (d == toDim ? toStart : 0);
    }
    for (std::int64_t p = 0; p < planes; ++p) to.data[t * planes + p] = from.data[f * planes + p];
    for (std::size_t d = rank; d-- > 0 && ++index[d] == extent[d];) index[d] = 0;
  }
}

template <class A>
std::vector<std::int64_t> extents(const ops::TensorValue<A>& v) {
  std::vector<std::int64_t> e;
  for (const ops::ReducedDim& d : v.dims) e.push_back(d.size());
  return e;
}

// `out`: its dimensions are those of the result, its elements are filled in. `in`: of each member.
template <class A>
void communicate(A& algebra, const StageNode& node,
                 const std::vector<const ops::TensorValue<A>*>& in, ops::TensorValue<A>& out) {
  using Value = ops::TensorValue<A>;
  using Element = typename A::Element;
  const auto members = static_cast<std::int64_t>(in.size());
  const auto resolve = [&](std::int32_t dim) {
    return at(dim < 0 ? dim + static_cast<std::int64_t>(out.dims.size()) : dim);
  };
  out.data.assign(at(out.positions() * out.planes()), algebra.constant(Rational(0)));
  switch (node.communication) {
    case Communication::kReceive:
    case Communication::kBroadcast:
      out.data = in[0]->data;
      break;
    case Communication::kPart: {
      const Value& own = *in[0];
      const std::size_t d = resolve(node.dim);
      copyStretch(own, d, own.dims[d].reducedBound(node.member * out.dims[d].full), out, d, 0,
                  extents(out));
      break;
    }
    case Communication::kAllReduce:
    case Communication::kReduceScatter: {
      const bool ordered = node.reduction == Reduction::kMax || node.reduction == Reduction::kMin;
      if (ordered && out.element == ElementKind::kComplex)
        throw Unsupported("the largest or smallest of complex numbers");
      // Of what is scattered only this member's part is combined: of n members n parts are, not n
      // times n.
      std::vector<Value> parts(node.communication == Communication::kReduceScatter ? in.size() : 0,
                               out);
      for (std::size_t k = 0; k < parts.size(); ++k) {
        const Value& own = *in[k];
        const std::size_t d = resolve(node.dim);
        copyStretch(own, d, own.dims[d].reducedBound(node.member * out.dims[d].full), parts[k], d,
                    0, extents(out));
      }
      const auto part = [&](std::size_t k) -> const std::vector<Element>& {
        return parts.empty() ? in[k]->data : parts[k].data;
      };
      for (std::size_t k = 0; k < in.size(); ++k) {
        if (part(k).size() != out.data.size())
          throw std::logic_error("the members of a communication have operands of different sizes");
      }
      std::vector<Element> elements(in.size());
      for (std::size_t i = 0; i < out.data.size(); ++i) {
        for (std::size_t k = 0; k < in.size(); ++k) elements[k] = part(k)[i];
        out.data[i] = combine(algebra, node, elements);
      }
      break;
    }
    case Communication::kAllGather: {
      const std::size_t d = resolve(node.dim);
      for (std::int64_t k = 0; k < members; ++k) {
        const Value& own = *in[k];
        copyStretch(own, d, 0, out, d, out.dims[d].reducedBound(k * own.dims[d].full),
                    extents(own));
      }
      break;
    }
    case Communication::kAllToAll: {
      const std::size_t i = resolve(node.dim), o = resolve(node.odim);
      for (std::int64_t k = 0; k < members; ++k) {
        const Value& own = *in[k];
        const std::int64_t piece = own.dims[i].full / members;
        const std::int64_t lo = own.dims[i].reducedBound(node.member * piece),
                           hi = own.dims[i].reducedBound((node.member + 1) * piece);
        std::vector<std::int64_t> extent = extents(own);
        extent[i] = hi - lo;
        const std::int64_t placed = i == o ? piece : own.dims[o].full;
        copyStretch(own, i, lo, out, o, out.dims[o].reducedBound(k * placed), extent);
      }
      break;
    }
    default:
      throw std::logic_error("unknown communication");
  }
  if (static_cast<std::int64_t>(out.data.size()) != out.positions() * out.planes())
    throw std::logic_error("a communication changed its operand's size");
}

}  // namespace shardproof
