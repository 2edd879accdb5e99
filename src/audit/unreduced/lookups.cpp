// SPDX-License-Identifier: Apache-2.0
// Tables, masks and rotary embedding (docs/operators.md, "Embedding and attention"; one_hot from
// "Losses").
#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

// Which row of the table an element of `ids` names, if one.
template <class A>
std::optional<Index> rowOf(const NodeView<A>& n, std::size_t ids, Index flat, Index rows) {
  const auto id = n.integer(ids, flat);
  if (!id) return std::nullopt;
  const Index row = *id - ops::integer(n.attributes(), "start", 0);
  return row >= 0 && row < rows ? std::optional(row) : std::nullopt;
}

}  // namespace

void defineLookups(DefinitionTable& table) {
  table.add("embedding", [](const auto& n, std::size_t, Index i) {
    const Index d = n.shape(1)[1];
    const auto row = rowOf(n, 0, i / d, n.shape(1)[0]);
    return row ? n.in(1, *row * d + i % d) : n.zero();
  });
  // Operands: g, ids, weight. Only the table has a gradient.
  table.add("embedding_backward", [](const auto& n, std::size_t, Index i) {
    const Index d = n.shape(2)[1];
    auto sum = n.sum();
    for (Index token = 0; token < elementsOf(n.shape(1)); ++token) {
      if (rowOf(n, 1, token, n.shape(2)[0]) == i / d) sum.add(n.in(0, token * d + i % d));
    }
    return sum.value();
  });
  table.add("one_hot", [](const auto& n, std::size_t, Index i) {
    const Index width =
        ops::integer(n.attributes(), "stop") - ops::integer(n.attributes(), "start");
    return n.constant(Rational(rowOf(n, 0, i / width, width) == i % width ? 1 : 0));
  });
  table.add("create_mask", [](const auto& n, std::size_t, Index i) {
    const Index s = n.resultShape(0).back(), row = i / s % s, column = i % s;
    auto entry = n.zero();
    if (column > row) entry.value = n.algebra().negativeInfinity();
    return entry;
  });
  table.add("apply_mask", [](const auto& n, std::size_t, Index i) {
    const Position p = unravel(n.resultShape(0), i);
    return n.in(0, broadcastFrom(n.shape(0), p)) + n.in(1, broadcastFrom(n.shape(1), p));
  });
  table.add("apply_mask_backward", [](const auto& n, std::size_t, Index i) {
    return overBroadcast(n, n.shape(1), n.shape(0), i, [&](Index j) { return n.in(0, j); });
  });

  // q, k [b, s, h, d], freqs complex [s, d/2]: pairs (2j, 2j+1) times freqs[s, j], for a gradient
  // times its conjugate. `x`: the operand that is turned.
  const auto turned = [](const auto& n, std::size_t x, std::size_t freqs, Index i, bool conjugate) {
    const Shape& s = n.shape(x);
    const Index d = s[3], within = i % d, sequence = i / (d * s[2]) % s[1];
    const Index f = (sequence * (d / 2) + within / 2) * 2;
    const auto re = n.in(freqs, f), im = n.in(freqs, f + 1).times(Rational(conjugate ? -1 : 1));
    const auto a = n.in(x, i - within % 2), b = n.in(x, i - within % 2 + 1);
    return within % 2 == 0 ? a * re - b * im : a * im + b * re;
  };
  table.add("apply_rotary_emb",
            [turned](const auto& n, std::size_t r, Index i) { return turned(n, r, 2, i, false); });
  // Operands: the gradients of both results, q, k, freqs.
  table.add("apply_rotary_emb_backward", [turned](const auto& n, std::size_t r, Index i) {
    return n.has(r) ? turned(n, r, 4, i, true) : n.zero();
  });
}

}  // namespace shardproof::unreduced
