// SPDX-License-Identifier: Apache-2.0
// softmax, log_softmax, layer_norm, rms_norm and their gradients (docs/operators.md,
// "Normalisation").
#include "executor/call.h"
#include "executor/lines.h"

namespace shardproof::executor {
namespace {

template <class T>
std::size_t lineDimension(const Call<T>& c, const Value<T>& x) {
  return dimensionOf(integerOf(c.attributes, "dim"), x.shape.size());
}

template <class T>
Value<T> softmaxOf(const Call<T>& c, const Value<T>& x) {
  const Lines lines(x.shape, lineDimension(c, x));
  Value<T> y = c.make(x.shape);
  const T* from = x.data();
  T* to = y.writable();
  forEachRow(lines.count(), lines.n * 8, [&](std::int64_t line) {
    const std::int64_t at = lines.start(line);
    T sum;
    exponentials(from + at, lines.n, lines.inner, to + at, sum);
    const T factor = divide(T(1), sum);
    for (std::int64_t i = 0; i < lines.n; ++i) to[at + i * lines.inner] *= factor;
  });
  return y;
}

template <class T>
void softmax(Call<T>& c) {
  c.out[0] = softmaxOf(c, c.real(0));
}

// y (g - sum(g y))
template <class T>
void softmaxBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  const Value<T>& g = c.gradient(0, x.shape);
  const Lines lines(x.shape, lineDimension(c, x));
  Value<T> y = softmaxOf(c, x);
  const T* dy = g.data();
  T* to = y.writable();
  forEachRow(lines.count(), lines.n, [&](std::int64_t line) {
    const std::int64_t at = lines.start(line), step = lines.inner;
    T sum = T(0);
    for (std::int64_t i = 0; i < lines.n; ++i) sum += dy[at + i * step] * to[at + i * step];
    for (std::int64_t i = 0; i < lines.n; ++i)
      to[at + i * step] = to[at + i * step] * (dy[at + i * step] - sum);
  });
  c.out[0] = std::move(y);
}

template <class T>
void logSoftmax(Call<T>& c) {
  const Value<T>& x = c.real(0);
  const Lines lines(x.shape, lineDimension(c, x));
  Value<T> y = c.make(x.shape);
  const T* from = x.data();
  T* to = y.writable();
  forEachRow(lines.count(), lines.n * 8, [&](std::int64_t line) {
    const std::int64_t at = lines.start(line);
    T sum;
    const T total = exponentials<T>(from + at, lines.n, lines.inner, nullptr, sum);
    for (std::int64_t i = 0; i < lines.n; ++i)
      to[at + i * lines.inner] = from[at + i * lines.inner] - total;
  });
  c.out[0] = std::move(y);
}

// g - softmax(x) sum(g)
template <class T>
void logSoftmaxBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  const Value<T>& g = c.gradient(0, x.shape);
  const Lines lines(x.shape, lineDimension(c, x));
  Value<T> y = softmaxOf(c, x);
  const T* dy = g.data();
  T* to = y.writable();
  forEachRow(lines.count(), lines.n, [&](std::int64_t line) {
    const std::int64_t at = lines.start(line), step = lines.inner;
    const T sum = sumOf(dy + at, lines.n, step);
    for (std::int64_t i = 0; i < lines.n; ++i)
      to[at + i * step] = dy[at + i * step] - to[at + i * step] * sum;
  });
  c.out[0] = std::move(y);
}

// --- layer_norm (centred) and rms_norm: x [..., d], w [d], [b [d]] ---

struct NormSizes {
  std::int64_t rows = 1, d = 0;
};

template <class T>
NormSizes normSizes(const Call<T>& c, std::size_t first) {
  const Shape& x = c.real(first).shape;
  if (x.empty())
    throw Misfit("operand " + std::to_string(first) + " has shape [], expected [..., d]");
  NormSizes s;
  s.d = x.back();
  s.rows = positionsOf(x) / s.d;
  for (std::size_t i = first + 1; i < first + 3; ++i) {
    if (i == first + 2 && !c.present(i)) continue;
    c.real(i);
    c.expect(i, {s.d});
  }
  return s;
}

// (x - mean) / sqrt(variance + eps), without mean for rms_norm; gives back the factor.
template <class T, bool centred>
T normalized(const T* x, std::int64_t d, T eps, T* to) {
  const T inverseD = fromRational<T>(Rational(1, d));
  T mean = T(0);
  if (centred) mean = sumOf(x, d) * inverseD;
  for (std::int64_t i = 0; i < d; ++i) to[i] = x[i] - mean;
  T squares[4] = {T(0), T(0), T(0), T(0)};
  for (std::int64_t i = 0; i < d; ++i) squares[i & 3] += to[i] * to[i];
  const T factor =
      inverseRootOf(((squares[0] + squares[1]) + (squares[2] + squares[3])) * inverseD + eps);
  for (std::int64_t i = 0; i < d; ++i) to[i] *= factor;
  return factor;
}

template <class T, bool centred>
void norm(Call<T>& c) {
  const NormSizes s = normSizes(c, 0);
  const T eps = fromRational<T>(numberOf(c.attributes, "eps"));
  Value<T> y = c.make(c.operand(0).shape);
  const T *x = c.operand(0).data(), *w = c.operand(1).data(),
          *b = c.present(2) ? c.operand(2).data() : nullptr;
  T* to = y.writable();
  forEachRow(s.rows, s.d * 2, [&](std::int64_t row) {
    T* line = to + row * s.d;
    normalized<T, centred>(x + row * s.d, s.d, eps, line);
    for (std::int64_t i = 0; i < s.d; ++i) line[i] *= w[i];
    if (b != nullptr)
      for (std::int64_t i = 0; i < s.d; ++i) line[i] += b[i];
  });
  c.out[0] = std::move(y);
}

// With n the normalized x, f the factor and h = g w: dx = f (h - [mean(h)] - n mean(h n)), dw = sum
// of g n over rows, db = sum of g.
template <class T, bool centred>
void normBackward(Call<T>& c) {
  const NormSizes s = normSizes(c, 1);
  const T eps = fromRational<T>(numberOf(c.attributes, "eps"));
  const Value<T>& g = c.gradient(0, c.operand(1).shape);
  Value<T> dx = c.make(c.operand(1).shape), products = c.make({s.rows, s.d});
  const T *dy = g.data(), *x = c.operand(1).data(), *w = c.operand(2).data();
  T *to = dx.writable(), *n = products.writable();
  const T inverseD = fromRational<T>(Rational(1, s.d));
  forEachRow(s.rows, s.d * 4, [&](std::int64_t row) {
    const T* gradient = dy + row * s.d;
    T *line = to + row * s.d, *normal = n + row * s.d;
    const T factor = normalized<T, centred>(x + row * s.d, s.d, eps, normal);
    T mean = T(0), along = T(0);
    for (std::int64_t i = 0; i < s.d; ++i) {
      line[i] = gradient[i] * w[i];
      mean += line[i];
      along += line[i] * normal[i];
    }
    mean = centred ? mean * inverseD : T(0);
    along *= inverseD;
    for (std::int64_t i = 0; i < s.d; ++i) line[i] = factor * (line[i] - mean - normal[i] * along);
    for (std::int64_t i = 0; i < s.d; ++i) normal[i] *= gradient[i];
  });
  if (c.wants(0)) c.out[0] = std::move(dx);
  if (c.wants(1)) c.out[1] = summed(c, products, {1, 0}).as({s.d});
  if (c.wants(2)) c.out[2] = summed(c, g.as({s.rows, s.d}), {1, 0}).as({s.d});
}

}  // namespace

template <class T>
void addNormalization(std::vector<NamedKernel<T>>& k) {
  k.push_back({"softmax", softmax<T>});
  k.push_back({"softmax_backward", softmaxBackward<T>});
  k.push_back({"log_softmax", logSoftmax<T>});
  k.push_back({"log_softmax_backward", logSoftmaxBackward<T>});
  k.push_back({"layer_norm", norm<T, true>});
  k.push_back({"layer_norm_backward", normBackward<T, true>});
  k.push_back({"rms_norm", norm<T, false>});
  k.push_back({"rms_norm_backward", normBackward<T, false>});
}

template void addNormalization(std::vector<NamedKernel<double>>&);
template void addNormalization(std::vector<NamedKernel<long double>>&);
template void addNormalization(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
