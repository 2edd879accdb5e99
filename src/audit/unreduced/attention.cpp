// SPDX-License-Identifier: Apache-2.0
// attention and its gradient (docs/operators.md, "Embedding and attention").
#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

enum SharedSum : int { kAttentionSum, kAttentionWeighted, kAttentionScores };

// Operands from `first` on: q [..., s, d], k [..., t, d], v [..., t, e], a mask. Rows of scores are
// numbered as rows of q, and its leading positions are those of all; k, v and the mask are
// broadcast.
template <class A>
class Attention {
 public:
  using N = Number<A>;
  Attention(const NodeView<A>& n, std::size_t first) : n_(n), first_(first) {
    q = n.shape(first);
    keys = n.shape(first + 1)[n.shape(first + 1).size() - 2];
    width = n.shape(first + 2).back();
    d = q.back();
  }

  Position placed(Index row, Index second, Index third) const {  // [..., second, third]
    Position p = unravel(Shape(q.begin(), q.end() - 1), row);
    Position all(q.size());
    for (std::size_t i = 0; i + 2 < q.size(); ++i) all[i] = p[i];
    all[q.size() - 2] = second;
    all[q.size() - 1] = third;
    return all;
  }
  N key(Index row, Index t, Index c) const {
    return n_.in(first_ + 1, broadcastFrom(n_.shape(first_ + 1), placed(row, t, c)));
  }
  N value(Index row, Index t, Index c) const {
    return n_.in(first_ + 2, broadcastFrom(n_.shape(first_ + 2), placed(row, t, c)));
  }
  N query(Index row, Index c) const { return n_.in(first_, row * d + c); }
  N scale(N x) const {
    if (ops::has(n_.attributes(), "scale")) return x.times(ops::number(n_.attributes(), "scale"));
    return x * n_.constant(Rational(d)).power(-1);
  }
  // exp of the score of a row's query and key t.
  N weight(Index row, Index t) const {
    return n_.shared(kAttentionScores, row * keys + t, [&] {
      Sum<A> sum = n_.sum();
      for (Index c = 0; c < d; ++c) sum.add(query(row, c) * key(row, t, c));
      N score = scale(sum.value());
      if (n_.has(first_ + 3)) {
        const Index s = row % q[q.size() - 2];
        score = score + n_.in(first_ + 3, broadcastFrom(n_.shape(first_ + 3), placed(row, s, t)));
      }
      return score.exp();
    });
  }
  N total(Index row) const {
    return n_.shared(kAttentionSum, row, [&] {
      Sum<A> sum = n_.sum();
      for (Index t = 0; t < keys; ++t) sum.add(weight(row, t));
      return sum.value();
    });
  }
  N softmax(Index row, Index t) const { return weight(row, t) * total(row).power(-2); }

  // The gradient of softmax's element: the result's gradient (operand 0) times the value.
  N slope(Index row, Index t) const {
    if (!n_.has(0)) return n_.zero();
    Sum<A> sum = n_.sum();
    for (Index c = 0; c < width; ++c) sum.add(n_.in(0, row * width + c) * value(row, t, c));
    return sum.value();
  }
  // That of the score, without the scale.
  N scoreGradient(Index row, Index t) const {
    const N mean = n_.shared(kAttentionWeighted, row, [&] {
      Sum<A> sum = n_.sum();
      for (Index u = 0; u < keys; ++u) sum.add(softmax(row, u) * slope(row, u));
      return sum.value();
    });
    N change = slope(row, t) - mean;
    if (n_.has(1)) change = change + n_.in(1, row);
    return softmax(row, t) * change;
  }
  // The sum of f(row) over the rows that read the matrix of k or v (operand `k`) which holds the
  // element `flat`.
  template <class F>
  N overRows(std::size_t k, Index flat, F&& f) const {
    const Shape& own = n_.shape(k);
    const Index matrix = own[own.size() - 2] * own.back();
    const Shape batch(own.begin(), own.end() - 2), lead(q.begin(), q.end() - 2);
    const Index s = q[q.size() - 2];
    return overBroadcast(n_, batch, lead, flat / matrix, [&](Index place) {
      Sum<A> sum = n_.sum();
      for (Index i = 0; i < s; ++i) sum.add(f(place * s + i));
      return sum.value();
    });
  }

  Shape q;
  Index keys = 0, width = 0, d = 0;

 private:
  const NodeView<A>& n_;
  std::size_t first_;
};

template <class A>
Number<A> attention(const NodeView<A>& n, std::size_t result, Index i) {
  const Attention<A> a(n, 0);
  if (result == 1) return a.total(i).apply(ops::Function::kLog);
  const Index row = i / a.width, c = i % a.width;
  Sum<A> sum = n.sum();
  for (Index t = 0; t < a.keys; ++t) sum.add(a.softmax(row, t) * a.value(row, t, c));
  return sum.value();
}

template <class A>
Number<A> attentionBackward(const NodeView<A>& n, std::size_t result, Index i) {
  const Attention<A> a(n, 2);
  if (result == 0) {
    const Index row = i / a.d, c = i % a.d;
    Sum<A> sum = n.sum();
    for (Index t = 0; t < a.keys; ++t) sum.add(a.scoreGradient(row, t) * a.key(row, t, c));
    return a.scale(sum.value());
  }
  if (result == 1) {
    const Index t = i / a.d % a.keys, c = i % a.d;
    return a.scale(
        a.overRows(3, i, [&](Index row) { return a.scoreGradient(row, t) * a.query(row, c); }));
  }
  if (result != 2) throw Unsupported("the gradient of a mask");
  const Index t = i / a.width % a.keys, c = i % a.width;
  return a.overRows(4, i, [&](Index row) {
    return n.has(0) ? a.softmax(row, t) * n.in(0, row * a.width + c) : n.zero();
  });
}

}  // namespace

void defineAttention(DefinitionTable& table) {
  table.add("attention", [](const auto& n, std::size_t r, Index i) { return attention(n, r, i); });
  table.add("attention_backward",
            [](const auto& n, std::size_t r, Index i) { return attentionBackward(n, r, i); });
}

}  // namespace shardproof::unreduced
