// SPDX-License-Identifier: Apache-2.0
// embedding, causal masks, rotary embeddings and their gradients (docs/operators.md, "Embedding and
// attention").
#include <algorithm>

#include "executor/call.h"

namespace shardproof::executor {
namespace {

struct Table {
  std::int64_t start = 0, rows = 0, width = 0;
};

template <class T>
Table tableOf(const Call<T>& c, std::size_t at) {
  const Shape& w = c.real(at).shape;
  if (w.size() != 2)
    throw Misfit("operand " + std::to_string(at) + " has shape " + text(w) +
                 ", expected [rows, d]");
  Table t{.start = integerOf(c.attributes, "start", 0), .rows = w[0], .width = w[1]};
  if (hasAttribute(c.attributes, "stop") && integerOf(c.attributes, "stop") - t.start != t.rows)
    throw Misfit("'start' and 'stop' are not as far apart as the table has rows, " +
                 std::to_string(t.rows));
  return t;
}

template <class T>
void embedding(Call<T>& c) {
  const Value<T>&ids = c.integer(0), &w = c.real(1);
  const Table t = tableOf(c, 1);
  Shape shape = ids.shape;
  shape.push_back(t.width);
  Value<T> y = c.make(shape);
  const T *index = ids.data(), *rows = w.data();
  T* to = y.writable();
  forEachRow(ids.positions(), t.width, [&](std::int64_t i) {
    const std::int64_t id = toIndex(index[i]);
    const bool there = id != kNoIndex && id >= t.start && id - t.start < t.rows;
    if (there)
      std::copy(rows + (id - t.start) * t.width, rows + (id - t.start + 1) * t.width,
                to + i * t.width);
    else
      std::fill(to + i * t.width, to + (i + 1) * t.width,
                isUndefined(index[i]) ? undefined<T>() : T(0));
  });
  c.out[0] = std::move(y);
}

template <class T>
void embeddingBackward(Call<T>& c) {
  const Value<T>&ids = c.integer(1), &w = c.real(2);
  if (c.wants(0)) throw NoMeaning("indices have no gradient");
  const Table t = tableOf(c, 2);
  Shape shape = ids.shape;
  shape.push_back(t.width);
  const Value<T>& g = c.gradient(0, shape);
  if (!c.wants(1)) return;
  Value<T> dw = filled(c, w.shape, T(0));
  const T *index = ids.data(), *dy = g.data();
  T* to = dw.writable();
  for (std::int64_t i = 0; i < ids.positions(); ++i) {
    const std::int64_t id = toIndex(index[i]);
    if (id == kNoIndex || id < t.start || id - t.start >= t.rows) continue;
    T* row = to + (id - t.start) * t.width;
    for (std::int64_t d = 0; d < t.width; ++d) row[d] += dy[i * t.width + d];
  }
  c.out[1] = std::move(dw);
}

template <class T>
void createMask(Call<T>& c) {
  const Shape& tokens = c.operand(0).shape;
  if (tokens.size() != 2) throw Misfit("operand 0 has shape " + text(tokens) + ", expected [b, s]");
  const std::int64_t s = tokens[1];
  Value<T> y = c.make({1, 1, s, s});
  T* to = y.writable();
  forEachRow(s, s, [=](std::int64_t row) {
    for (std::int64_t column = 0; column < s; ++column)
      to[row * s + column] = column <= row ? T(0) : minusInfinity<T>();
  });
  c.out[0] = std::move(y);
}

template <class T>
void applyMask(Call<T>& c) {
  c.out[0] = broadcastMap(c, c.real(0), c.real(1), [](T a, T b) { return a + b; });
}

template <class T>
void applyMaskBackward(Call<T>& c) {
  const Shape& x = c.real(1).shape;
  const Value<T>& g = c.gradient(0, broadcastOf(x, c.real(2).shape));
  if (c.wants(1)) throw NoMeaning("a mask has no gradient");
  if (c.wants(0)) c.out[0] = summedTo(c, g, x);
}

// x [b, s, h, d] turned by freqs [s, d/2], or turned back.
template <class T>
Value<T> turned(const Call<T>& c, const Value<T>& x, const Value<T>& freqs, bool back) {
  const std::int64_t b = x.shape[0], s = x.shape[1], h = x.shape[2], d = x.shape[3];
  Value<T> y = c.make(x.shape);
  const T *from = x.data(), *f = freqs.data();
  T* to = y.writable();
  forEachRow(b * s, h * d, [&](std::int64_t row) {
    const T* angle = f + row % s * d;
    for (std::int64_t head = 0; head < h; ++head) {
      const T* p = from + (row * h + head) * d;
      T* q = to + (row * h + head) * d;
      for (std::int64_t j = 0; j < d; j += 2) {
        const T re = angle[j], im = back ? -angle[j + 1] : angle[j + 1];
        q[j] = p[j] * re - p[j + 1] * im;
        q[j + 1] = p[j] * im + p[j + 1] * re;
      }
    }
  });
  return y;
}

template <class T>
const Value<T>& rotaryOperand(const Call<T>& c, std::size_t at, const Value<T>& freqs) {
  const Value<T>& x = c.real(at);
  if (x.shape.size() != 4 || x.shape[3] % 2 != 0)
    throw Misfit("operand " + std::to_string(at) + " has shape " + text(x.shape) +
                 ", expected [b, s, h, d] with an even d");
  const Shape expected{x.shape[1], x.shape[3] / 2};
  if (freqs.shape != expected)
    throw Misfit("freqs have shape " + text(freqs.shape) + ", expected " + text(expected));
  return x;
}

template <class T>
void sameLead(const Value<T>& q, const Value<T>& k) {
  if (q.shape[0] != k.shape[0])
    throw Misfit("q has shape " + text(q.shape) + ", k " + text(k.shape) +
                 ": they differ in batch");
}

template <class T>
void rotary(Call<T>& c) {
  const Value<T>& freqs = c.complex(2);
  const Value<T>&q = rotaryOperand(c, 0, freqs), &k = rotaryOperand(c, 1, freqs);
  sameLead(q, k);
  if (c.wants(0)) c.out[0] = turned(c, q, freqs, false);
  if (c.wants(1)) c.out[1] = turned(c, k, freqs, false);
}

// Operands: gradients of both results (either may be absent: 0), q, k, freqs. The transpose of a
// rotation and scaling turns back.
template <class T>
void rotaryBackward(Call<T>& c) {
  const Value<T>& freqs = c.complex(4);
  sameLead(rotaryOperand(c, 2, freqs), rotaryOperand(c, 3, freqs));
  if (c.wants(2)) throw NoMeaning("frequencies have no gradient");
  for (std::size_t r = 0; r < 2; ++r) {
    const Value<T>& x = c.operand(2 + r);
    if (c.present(r)) c.gradient(r, x.shape);
    if (!c.wants(r)) continue;
    c.out[r] = c.present(r) ? turned(c, c.operand(r), freqs, true) : filled(c, x.shape, T(0));
  }
}

}  // namespace

template <class T>
void addEmbeddingAttention(std::vector<NamedKernel<T>>& k) {
  k.push_back({"embedding", embedding<T>});
  k.push_back({"embedding_backward", embeddingBackward<T>});
  k.push_back({"create_mask", createMask<T>});
  k.push_back({"apply_mask", applyMask<T>});
  k.push_back({"apply_mask_backward", applyMaskBackward<T>});
  k.push_back({"apply_rotary_emb", rotary<T>});
  k.push_back({"apply_rotary_emb_backward", rotaryBackward<T>});
}

template void addEmbeddingAttention(std::vector<NamedKernel<double>>&);
template void addEmbeddingAttention(std::vector<NamedKernel<long double>>&);
template void addEmbeddingAttention(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
