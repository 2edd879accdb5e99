// SPDX-License-Identifier: Apache-2.0
// attention and its gradient (docs/operators.md, "Embedding and attention"): one batch of scores
// after another.
#include <algorithm>

#include "executor/call.h"
#include "executor/lines.h"
#include "executor/product.h"

namespace shardproof::executor {
namespace {

// q [..., s, d], k [..., t, d], v [..., t, e], mask: operands `first` and on.
template <class T>
class Attention {
 public:
  Attention(Call<T>& c, std::size_t first)
      : c_(c), q_(c.real(first)), k_(c.real(first + 1)), v_(c.real(first + 2)) {
    for (const Value<T>* x : {&q_, &k_, &v_})
      if (x->shape.size() < 2)
        throw Misfit("an operand has shape " + text(x->shape) +
                     ", expected at least two dimensions");
    lead_.assign(q_.shape.begin(), q_.shape.end() - 2);
    s = q_.shape[lead_.size()];
    d = q_.shape.back();
    t = k_.shape[k_.shape.size() - 2];
    e = v_.shape.back();
    if (k_.shape.back() != d || v_.shape[v_.shape.size() - 2] != t)
      throw Misfit("queries " + text(q_.shape) + ", keys " + text(k_.shape) + " and values " +
                   text(v_.shape) + " do not fit");
    Shape scores = lead_;
    scores.insert(scores.end(), {s, t});
    batches = positionsOf(lead_);
    firstOf(k_.shape, 2, keys_);
    firstOf(v_.shape, 2, values_);
    if (c.present(first + 3)) {
      mask_ = &c.real(first + 3);
      if (broadcastOf(scores, mask_->shape) != scores)
        throw Misfit("the mask has shape " + text(mask_->shape) +
                     ", expected one that broadcasts to " + text(scores));
      const Shape strides = broadcastStrides(mask_->shape, scores);
      maskRow_ = strides[lead_.size()];
      maskColumn_ = strides[lead_.size() + 1];
      for (std::int64_t b = 0; b < batches; ++b) masks_.push_back(offset(strides, b));
    }
    scale = hasAttribute(c.attributes, "scale") ? fromRational<T>(numberOf(c.attributes, "scale"))
                                                : inverseRootOf(fromRational<T>(Rational(d)));
    p_ = c.make({s, t});
  }

  Shape resultShape() const { return with(e); }
  Shape rowShape() const { return Shape(q_.shape.begin(), q_.shape.end() - 1); }
  const T* queries(std::int64_t b) const { return q_.data() + b * s * d; }
  const T* keys(std::int64_t b) const { return k_.data() + keys_[index(b)]; }
  const T* values(std::int64_t b) const { return v_.data() + values_[index(b)]; }
  std::int64_t keysAt(std::int64_t b) const { return keys_[index(b)]; }
  std::int64_t valuesAt(std::int64_t b) const { return values_[index(b)]; }

  // softmax of the scores of batch b, [s, t], and where wanted the logarithms of the rows' sums.
  const T* weights(std::int64_t b, T* logarithms) {
    T* p = p_.writable();
    multiplied({.m = s, .n = t, .k = d, .a = queries(b), .b = keys(b), .c = p, .transposeB = true});
    forEachRow(s, t * 8, [&](std::int64_t i) {
      T* row = p + i * t;
      for (std::int64_t j = 0; j < t; ++j) row[j] = row[j] * scale;
      if (mask_ != nullptr) {
        const T* own = mask_->data() + masks_[index(b)] + i * maskRow_;
        for (std::int64_t j = 0; j < t; ++j) row[j] = row[j] + own[j * maskColumn_];
      }
      T sum;
      const T total = exponentials(row, t, 1, row, sum);
      if (logarithms != nullptr) logarithms[i] = total;
      const T factor = divide(T(1), sum);
      for (std::int64_t j = 0; j < t; ++j) row[j] = row[j] * factor;
    });
    return p;
  }

  void multiplied(const Product<T>& product) {
    c_.context.flops += 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                        static_cast<double>(product.k);
    multiply(product);
  }

  std::int64_t batches = 1, s = 0, t = 0, d = 0, e = 0;
  T scale;

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  Shape with(std::int64_t last) const {
    Shape shape = q_.shape;
    shape.back() = last;
    return shape;
  }
  // Of a batch's place in the leading dimensions.
  std::int64_t offset(const Shape& strides, std::int64_t b) const {
    std::int64_t at = 0;
    for (std::size_t i = lead_.size(); i-- > 0;) {
      at += b % lead_[i] * strides[i];
      b /= lead_[i];
    }
    return at;
  }
  // Where the matrix of each batch begins in a tensor whose last `own` dimensions are a matrix.
  void firstOf(const Shape& shape, std::size_t own, std::vector<std::int64_t>& into) const {
    const Shape batch(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(own));
    if (broadcastOf(lead_, batch) != lead_)
      throw Misfit("leading dimensions of " + text(shape) + " do not broadcast to those of " +
                   text(q_.shape));
    const Shape strides = broadcastStrides(batch, lead_);
    const std::int64_t matrix = shape[shape.size() - 2] * shape.back();
    for (std::int64_t b = 0; b < batches; ++b) into.push_back(offset(strides, b) * matrix);
  }

  Call<T>& c_;
  const Value<T>&q_, &k_, &v_;
  const Value<T>* mask_ = nullptr;
  Shape lead_;
  std::vector<std::int64_t> keys_, values_, masks_;
  std::int64_t maskRow_ = 0, maskColumn_ = 0;
  Value<T> p_;
};

template <class T>
void attention(Call<T>& c) {
  Attention<T> a(c, 0);
  Value<T> o = c.make(a.resultShape()), lse = c.make(a.rowShape());
  T *to = o.writable(), *logarithms = lse.writable();
  for (std::int64_t b = 0; b < a.batches; ++b) {
    const T* p = a.weights(b, logarithms + b * a.s);
    a.multiplied({.m = a.s, .n = a.e, .k = a.t, .a = p, .b = a.values(b), .c = to + b * a.s * a.e});
  }
  c.out[0] = std::move(o);
  c.out[1] = std::move(lse);
}

// With g and h the gradients of o and lse, w = g v^T: that of the scores is p (w - sum(p w) + h).
template <class T>
void attentionBackward(Call<T>& c) {
  Attention<T> a(c, 2);
  if (c.wants(3)) throw NoMeaning("a mask has no gradient");
  const T* g = c.present(0) ? c.gradient(0, a.resultShape()).data() : nullptr;
  const T* h = c.present(1) ? c.gradient(1, a.rowShape()).data() : nullptr;
  Value<T> dq = c.make(c.operand(2).shape), dk = filled(c, c.operand(3).shape, T(0)),
           dv = filled(c, c.operand(4).shape, T(0));
  Value<T> slopes = filled(c, {a.s, a.t}, T(0)), share = c.make({a.t, std::max(a.d, a.e)});
  T *ofQueries = dq.writable(), *ofKeys = dk.writable(), *ofValues = dv.writable(),
    *w = slopes.writable(), *one = share.writable();
  const auto addTo = [&](T* total, std::int64_t n) {
    forEach(n, [=](std::int64_t i) { total[i] = total[i] + one[i]; });
  };
  for (std::int64_t b = 0; b < a.batches; ++b) {
    const T* p = a.weights(b, nullptr);
    if (g != nullptr) {
      const T* own = g + b * a.s * a.e;
      a.multiplied({.m = a.t, .n = a.e, .k = a.s, .a = p, .b = own, .c = one, .transposeA = true});
      addTo(ofValues + a.valuesAt(b), a.t * a.e);
      a.multiplied(
          {.m = a.s, .n = a.t, .k = a.e, .a = own, .b = a.values(b), .c = w, .transposeB = true});
    } else {
      std::fill(w, w + a.s * a.t, T(0));
    }
    forEachRow(a.s, a.t * 4, [&](std::int64_t i) {
      T* row = w + i * a.t;
      T sum = T(0);
      for (std::int64_t j = 0; j < a.t; ++j) sum = sum + p[i * a.t + j] * row[j];
      const T shift = h != nullptr ? h[b * a.s + i] - sum : T(0) - sum;
      for (std::int64_t j = 0; j < a.t; ++j) row[j] = p[i * a.t + j] * (row[j] + shift) * a.scale;
    });
    a.multiplied(
        {.m = a.s, .n = a.d, .k = a.t, .a = w, .b = a.keys(b), .c = ofQueries + b * a.s * a.d});
    a.multiplied(
        {.m = a.t, .n = a.d, .k = a.s, .a = w, .b = a.queries(b), .c = one, .transposeA = true});
    addTo(ofKeys + a.keysAt(b), a.t * a.d);
  }
  c.out[0] = std::move(dq);
  c.out[1] = std::move(dk);
  c.out[2] = std::move(dv);
}

}  // namespace

template <class T>
void addAttention(std::vector<NamedKernel<T>>& k) {
  k.push_back({"attention", attention<T>});
  k.push_back({"attention_backward", attentionBackward<T>});
}

template void addAttention(std::vector<NamedKernel<double>>&);
template void addAttention(std::vector<NamedKernel<long double>>&);
template void addAttention(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
