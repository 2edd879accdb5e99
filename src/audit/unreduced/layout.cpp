// SPDX-License-Identifier: Apache-2.0
// Operators that move elements, and their gradients, which move them back (docs/operators.md,
// "Layout").
#include <algorithm>

#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

// Row-major order stays as it is.
template <class N>
auto same(const N& n, std::size_t, Index i) {
  return n.in(0, i);
}

// `place(attributes, operand's shape, position in the result)` -> position in the operand. Its
// gradient by `back`, the other way round: nullopt where the operand's element is in no result.
template <class Place, class Back>
void moved(DefinitionTable& table, const std::string& name, Place place, Back back) {
  table.add(name, [place](const auto& n, std::size_t, Index i) {
    const Index planes = n.planes(0);
    const Position p = place(n.attributes(), n.shape(0), unravel(n.resultShape(0), i / planes));
    return n.in(0, ravel(n.shape(0), p) * planes + i % planes);
  });
  table.add(name + "_backward", [back](const auto& n, std::size_t, Index i) {
    const std::optional<Position> p = back(n.attributes(), n.shape(1), unravel(n.shape(1), i));
    return p ? n.in(0, *p) : n.zero();
  });
}

struct Slice {
  std::size_t dim;
  Index start, stop, step;
  Slice(const Attributes& a, const Shape& shape)
      : dim(dimension(ops::integer(a, "dim"), shape.size())) {
    const Index size = shape[dim];
    const auto bound = [&](const char* key, Index otherwise) {
      const Index v = ops::integer(a, key, otherwise);
      return std::clamp<Index>(v < 0 ? v + size : v, 0, size);
    };
    start = bound("start", 0);
    stop = bound("stop", size);
    step = ops::integer(a, "step", 1);
  }
};

// For each dimension of the operand, how many positions stand before it.
std::vector<Index> padsBefore(const Attributes& a, std::size_t rank) {
  const auto pairs = ops::integers(a, "pad");
  std::vector<Index> before(rank, 0);
  for (std::size_t k = 0; 2 * k < pairs.size(); ++k) before[rank - 1 - k] = pairs[2 * k];
  return before;
}

Position swapped(const Attributes& a, const Shape& shape, Position p) {
  std::swap(p[dimension(ops::integer(a, "dim0"), shape.size())],
            p[dimension(ops::integer(a, "dim1"), shape.size())]);
  return p;
}

}  // namespace

void defineLayout(DefinitionTable& table) {
  for (const std::string name : {"view", "reshape", "unsqueeze", "squeeze"}) {
    table.add(name, [](const auto& n, std::size_t r, Index i) { return same(n, r, i); });
    table.add(name + "_backward",
              [](const auto& n, std::size_t r, Index i) { return same(n, r, i); });
  }
  moved(table, "transpose", swapped, [](const Attributes& a, const Shape& s, const Position& p) {
    return std::optional(swapped(a, s, p));
  });
  moved(
      table, "permute",
      [](const Attributes& a, const Shape& s, const Position& p) {
        const auto dims = ops::integers(a, "dims");
        Position q(s.size());
        for (std::size_t r = 0; r < dims.size(); ++r) q[dimension(dims[r], s.size())] = p[r];
        return q;
      },
      [](const Attributes& a, const Shape& s, const Position& p) {
        const auto dims = ops::integers(a, "dims");
        Position q(s.size());
        for (std::size_t r = 0; r < dims.size(); ++r) q[r] = p[dimension(dims[r], s.size())];
        return std::optional(q);
      });
  table.add("expand", [](const auto& n, std::size_t, Index i) {
    const Index planes = n.planes(0);
    return n.in(
        0, broadcastFrom(n.shape(0), unravel(n.resultShape(0), i / planes)) * planes + i % planes);
  });
  table.add("expand_backward", [](const auto& n, std::size_t, Index i) {
    return overBroadcast(n, n.shape(1), n.shape(0), i, [&](Index j) { return n.in(0, j); });
  });
  moved(
      table, "slice",
      [](const Attributes& a, const Shape& s, Position p) {
        const Slice slice(a, s);
        p[slice.dim] = slice.start + p[slice.dim] * slice.step;
        return p;
      },
      [](const Attributes& a, const Shape& s, Position p) -> std::optional<Position> {
        const Slice slice(a, s);
        const Index from = p[slice.dim] - slice.start;
        if (from < 0 || p[slice.dim] >= slice.stop || from % slice.step != 0) return std::nullopt;
        p[slice.dim] = from / slice.step;
        return p;
      });
  const auto chunk = [](const Attributes& a, const Shape& s) {
    const std::size_t d = dimension(ops::integer(a, "dim"), s.size());
    const Index piece = s[d] / ops::integer(a, "parts");
    return std::tuple(d, piece, piece * ops::integer(a, "index"));
  };
  moved(
      table, "chunk",
      [chunk](const Attributes& a, const Shape& s, Position p) {
        const auto [d, piece, start] = chunk(a, s);
        p[d] += start;
        return p;
      },
      [chunk](const Attributes& a, const Shape& s, Position p) -> std::optional<Position> {
        const auto [d, piece, start] = chunk(a, s);
        p[d] -= start;
        if (p[d] < 0 || p[d] >= piece) return std::nullopt;
        return p;
      });
  moved(
      table, "select",
      [](const Attributes& a, const Shape& s, const Position& p) {
        const std::size_t dim = dimension(ops::integer(a, "dim"), s.size());
        Position q(s.size());
        for (std::size_t d = 0; d < s.size(); ++d)
          q[d] = d < dim   ? p[d]
                 : d > dim ? p[d - 1]
                           : static_cast<Index>(dimension(ops::integer(a, "index"), at(s[d])));
        return q;
      },
      [](const Attributes& a, const Shape& s, const Position& p) -> std::optional<Position> {
        const std::size_t dim = dimension(ops::integer(a, "dim"), s.size());
        if (p[dim] != static_cast<Index>(dimension(ops::integer(a, "index"), at(s[dim]))))
          return std::nullopt;
        Position q(s.size() - 1);
        for (std::size_t d = 0; d < s.size(); ++d) {
          if (d != dim) q[d < dim ? d : d - 1] = p[d];
        }
        return q;
      });
  table.add("cat", [](const auto& n, std::size_t, Index i) {
    const std::size_t d = dimension(ops::integer(n.attributes(), "dim"), n.shape(0).size());
    const Index planes = n.planes(0);
    Position p = unravel(n.resultShape(0), i / planes);
    std::size_t k = 0;
    while (p[d] >= n.shape(k)[d]) p[d] -= n.shape(k++)[d];
    return n.in(k, ravel(n.shape(k), p) * planes + i % planes);
  });
  table.add("cat_backward", [](const auto& n, std::size_t r, Index i) {
    const std::size_t d = dimension(ops::integer(n.attributes(), "dim"), n.shape(0).size());
    Position p = unravel(n.shape(1 + r), i);
    for (std::size_t k = 0; k < r; ++k) p[d] += n.shape(1 + k)[d];
    return n.in(0, p);
  });
  table.add("pad", [](const auto& n, std::size_t, Index i) {
    const Shape& s = n.shape(0);
    const auto before = padsBefore(n.attributes(), s.size());
    Position p = unravel(n.resultShape(0), i);
    for (std::size_t d = 0; d < s.size(); ++d) {
      p[d] -= before[d];
      if (p[d] < 0 || p[d] >= s[d])
        return n.constant(ops::number(n.attributes(), "value", Rational(0)));
    }
    return n.in(0, p);
  });
  table.add("pad_backward", [](const auto& n, std::size_t, Index i) {
    const auto before = padsBefore(n.attributes(), n.shape(1).size());
    Position p = unravel(n.shape(1), i);
    for (std::size_t d = 0; d < p.rank(); ++d) p[d] += before[d];
    return n.in(0, p);
  });
}

}  // namespace shardproof::unreduced
