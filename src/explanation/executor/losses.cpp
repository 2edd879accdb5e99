// SPDX-License-Identifier: Apache-2.0
// cross_entropy, its gradient, and one_hot (docs/operators.md, "Losses").
#include "executor/call.h"
#include "executor/lines.h"

namespace shardproof::executor {
namespace {

struct LossSizes {
  std::int64_t rows = 1, classes = 0;
  Shape lead;
};

template <class T>
LossSizes lossSizes(const Call<T>& c, std::size_t first) {
  const Shape& x = c.real(first).shape;
  if (x.empty())
    throw Misfit("operand " + std::to_string(first) + " has shape [], expected [..., classes]");
  LossSizes s;
  s.classes = x.back();
  s.lead = Shape(x.begin(), x.end() - 1);
  s.rows = positionsOf(s.lead);
  c.integer(first + 1);
  c.expect(first + 1, s.lead);
  return s;
}

// A label that is no class gives no value.
template <class T>
void crossEntropy(Call<T>& c) {
  const LossSizes s = lossSizes(c, 0);
  const T *x = c.operand(0).data(), *labels = c.operand(1).data();
  Value<T> losses = c.make(s.lead);
  T* to = losses.writable();
  forEachRow(s.rows, s.classes * 8, [&](std::int64_t row) {
    const std::int64_t label = toIndex(labels[row]);
    T sum;
    const T all = exponentials<T>(x + row * s.classes, s.classes, 1, nullptr, sum);
    to[row] = label < 0 || label >= s.classes ? undefined<T>() : all - x[row * s.classes + label];
  });
  const std::string reduction = textOf(c.attributes, "reduction", "mean");
  if (reduction == "none") {
    c.out[0] = std::move(losses);
    return;
  }
  const Value<T> total = summed(c, losses, std::vector<char>(s.lead.size(), 1)).as({});
  const T factor = fromRational<T>(reduction == "mean" ? Rational(1, s.rows) : Rational(1));
  c.out[0] = mapped(c, total, [=](T a) { return a * factor; });
}

// g (softmax(x) - [class = label])
template <class T>
void crossEntropyBackward(Call<T>& c) {
  const LossSizes s = lossSizes(c, 1);
  if (c.wants(1)) throw NoMeaning("labels have no gradient");
  const std::string reduction = textOf(c.attributes, "reduction", "mean");
  const bool each = reduction == "none";
  const Value<T>& g = c.gradient(0, each ? s.lead : Shape{});
  const T factor = fromRational<T>(reduction == "mean" ? Rational(1, s.rows) : Rational(1));
  const T *x = c.operand(1).data(), *labels = c.operand(2).data(), *dy = g.data();
  Value<T> dx = c.make(c.operand(1).shape);
  T* to = dx.writable();
  forEachRow(s.rows, s.classes * 8, [&](std::int64_t row) {
    const T gradient = dy[each ? row : 0] * factor;
    const std::int64_t label = toIndex(labels[row]);
    T* line = to + row * s.classes;
    T sum;
    exponentials(x + row * s.classes, s.classes, 1, line, sum);
    const T scale = label < 0 || label >= s.classes ? undefined<T>() : divide(gradient, sum);
    for (std::int64_t i = 0; i < s.classes; ++i) line[i] *= scale;
    if (label >= 0 && label < s.classes) line[label] -= gradient;
  });
  c.out[0] = std::move(dx);
}

template <class T>
void oneHot(Call<T>& c) {
  const Value<T>& ids = c.integer(0);
  const std::int64_t start = integerOf(c.attributes, "start"),
                     width = integerOf(c.attributes, "stop") - start;
  if (width < 1) throw Misfit("'stop' is not above 'start'");
  Shape shape = ids.shape;
  shape.push_back(width);
  Value<T> y = c.make(shape);
  const T* from = ids.data();
  T* to = y.writable();
  forEachRow(ids.positions(), width, [&](std::int64_t row) {
    const std::int64_t id = toIndex(from[row]);
    for (std::int64_t i = 0; i < width; ++i)
      to[row * width + i] = isUndefined(from[row]) ? from[row] : T(id == start + i ? 1 : 0);
  });
  c.out[0] = std::move(y);
}

}  // namespace

template <class T>
void addLosses(std::vector<NamedKernel<T>>& k) {
  k.push_back({"cross_entropy", crossEntropy<T>});
  k.push_back({"cross_entropy_backward", crossEntropyBackward<T>});
  k.push_back({"one_hot", oneHot<T>});
}

template void addLosses(std::vector<NamedKernel<double>>&);
template void addLosses(std::vector<NamedKernel<long double>>&);
template void addLosses(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
