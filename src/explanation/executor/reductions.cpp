// SPDX-License-Identifier: Apache-2.0
// Reductions and their gradients (docs/operators.md, "Reductions").
#include "executor/call.h"
#include "executor/lines.h"

namespace shardproof::executor {
namespace {

struct Reduced {
  std::vector<char> dims;
  Shape kept, result;      // with the reduced dimensions as 1; as the operator gives it
  std::int64_t count = 1;  // elements in one sum
  Reduced(const Shape& x, const Attributes& a) : dims(x.size(), 1), kept(x) {
    if (hasAttribute(a, "dim")) {
      dims.assign(x.size(), 0);
      for (const std::int64_t dim : integersOf(a, "dim")) {
        char& reduced = dims[dimensionOf(dim, x.size())];
        if (reduced) throw Misfit("'dim' names a dimension twice");
        reduced = 1;
      }
    }
    const bool keep = flagOf(a, "keepdim", false);
    for (std::size_t d = 0; d < x.size(); ++d) {
      if (dims[d]) {
        count *= x[d];
        kept[d] = 1;
      }
      if (!dims[d] || keep) result.push_back(kept[d]);
    }
  }
};

template <class T>
Value<T> scaledBy(const Call<T>& c, const Value<T>& x, T factor) {
  return mapped(c, x, [=](T a) { return a * factor; });
}

template <class T, bool mean>
void sum(Call<T>& c) {
  const Value<T>& x = c.real(0);
  const Reduced r(x.shape, c.attributes);
  Value<T> y = summed(c, x, r.dims).as(r.result);
  c.out[0] = mean ? scaledBy(c, y, fromRational<T>(Rational(1, r.count))) : y;
}

template <class T, bool mean>
void sumBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  const Reduced r(x.shape, c.attributes);
  Value<T> g = c.gradient(0, r.result).as(r.kept);
  if (mean) g = scaledBy(c, g, fromRational<T>(Rational(1, r.count)));
  c.out[0] = strided(c, g, x.shape, broadcastStrides(r.kept, x.shape), 0);
}

// The reduced dimensions last, as rows: [rows, count].
template <class T>
Value<T> asRows(const Call<T>& c, const Value<T>& x, const Reduced& r) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < r.dims.size(); ++d)
    if (!r.dims[d]) order.push_back(d);
  for (std::size_t d = 0; d < r.dims.size(); ++d)
    if (r.dims[d]) order.push_back(d);
  return permuted(c, x, order).as({x.positions() / r.count, r.count});
}

template <class T, bool largest>
void extreme(Call<T>& c) {
  const Value<T>& x = c.real(0);
  const Reduced r(x.shape, c.attributes);
  const Value<T> rows = asRows(c, x, r);
  Value<T> y = c.make(r.result);
  const T* from = rows.data();
  T* to = y.writable();
  forEachRow(rows.shape[0], r.count, [&](std::int64_t row) {
    const T* p = from + row * r.count;
    T m = p[0];
    for (std::int64_t i = 1; i < r.count; ++i)
      m = largest ? maximumOf(m, p[i]) : minimumOf(m, p[i]);
    to[row] = m;
  });
  c.out[0] = std::move(y);
}

template <class T>
Value<T> logSumExp(const Call<T>& c, const Value<T>& x, const Reduced& r) {
  const Value<T> rows = asRows(c, x, r);
  Value<T> y = c.make(r.result);
  const T* from = rows.data();
  T* to = y.writable();
  forEachRow(rows.shape[0], r.count * 8, [&](std::int64_t row) {
    T total;
    to[row] = exponentials<T>(from + row * r.count, r.count, 1, nullptr, total);
  });
  return y;
}

template <class T>
void logsumexp(Call<T>& c) {
  const Value<T>& x = c.real(0);
  c.out[0] = logSumExp(c, x, Reduced(x.shape, c.attributes));
}

// g exp(x - logsumexp), in the field g exp(x) / sum exp(x): there exp(a - b) is not exp(a) /
// exp(b).
template <class T>
void logsumexpBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  const Reduced r(x.shape, c.attributes);
  const Value<T> g = c.gradient(0, r.result).as(r.kept);
  Value<T> probabilities;
  if constexpr (kIsField<T>) {
    const Value<T> e = mapped(c, x, [](T a) { return expOf(a); });
    probabilities = broadcastMap(c, e, summed(c, e, r.dims), [](T a, T b) { return divide(a, b); });
  } else {
    probabilities =
        broadcastMap(c, x, logSumExp(c, x, r).as(r.kept), [](T a, T b) { return expOf(a - b); });
  }
  c.out[0] = broadcastMap(c, probabilities, g, [](T a, T b) { return a * b; });
}

}  // namespace

template <class T>
void addReductions(std::vector<NamedKernel<T>>& k) {
  k.push_back({"sum", sum<T, false>});
  k.push_back({"sum_backward", sumBackward<T, false>});
  k.push_back({"mean", sum<T, true>});
  k.push_back({"mean_backward", sumBackward<T, true>});
  k.push_back({"amax", extreme<T, true>});
  k.push_back({"amin", extreme<T, false>});
  k.push_back({"logsumexp", logsumexp<T>});
  k.push_back({"logsumexp_backward", logsumexpBackward<T>});
}

template void addReductions(std::vector<NamedKernel<double>>&);
template void addReductions(std::vector<NamedKernel<long double>>&);
template void addReductions(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
