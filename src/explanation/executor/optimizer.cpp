// SPDX-License-Identifier: Apache-2.0
// grad_norm, clip_grad, sgd and adamw (docs/operators.md, "Training step"). Forward only.
#include "executor/call.h"

namespace shardproof::executor {
namespace {

template <class T>
void gradNorm(Call<T>& c) {
  const Value<T>& g = c.real(0);
  const Value<T> squares = mapped(c, g, [](T a) { return a * a; });
  const Value<T> sum = summed(c, squares, std::vector<char>(g.shape.size(), 1)).as({});
  c.out[0] = mapped(c, sum, [](T a) { return rootOf(a); });
}

template <class T>
void clipGrad(Call<T>& c) {
  const Value<T>&g = c.real(0), &norm = c.real(1);
  c.expect(1, {}, norm.shape.empty() || norm.shape == Shape{1});
  const T max = fromRational<T>(numberOf(c.attributes, "max_norm")),
          eps = fromRational<T>(numberOf(c.attributes, "eps", Rational(1, 1000000)));
  const T factor = minimumOf(T(1), divide(max, norm.data()[0] + eps));
  c.out[0] = mapped(c, g, [=](T a) { return a * factor; });
}

template <class T>
void allOfOneShape(const Call<T>& c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    c.real(i);
    c.expect(i, c.operand(0).shape);
  }
}

template <class T>
void sgd(Call<T>& c) {
  const bool buffered = c.present(2);
  allOfOneShape(c, buffered ? 3 : 2);
  const auto number = [&](const char* key) {
    return fromRational<T>(numberOf(c.attributes, key, Rational(0)));
  };
  const T lr = number("lr"), momentum = number("momentum"), taken = T(1) - number("dampening"),
          decay = number("weight_decay");
  const bool nesterov = flagOf(c.attributes, "nesterov", false);
  const Value<T>& p = c.operand(0);
  Value<T> d = mapped(c, c.operand(1), p, [=](T g, T w) { return g + decay * w; });
  if (buffered) {
    const Value<T> b =
        mapped(c, c.operand(2), d, [=](T m, T s) { return momentum * m + taken * s; });
    d = nesterov ? mapped(c, d, b, [=](T s, T m) { return s + momentum * m; }) : b;
    if (c.wants(1)) c.out[1] = b;
  }
  if (c.wants(0)) c.out[0] = mapped(c, p, d, [=](T w, T s) { return w - lr * s; });
}

template <class T>
void adamw(Call<T>& c) {
  allOfOneShape(c, 4);
  const auto number = [&](const char* key, const Rational& otherwise) {
    return fromRational<T>(numberOf(c.attributes, key, otherwise));
  };
  const T lr = fromRational<T>(numberOf(c.attributes, "lr")),
          beta1 = number("beta1", Rational(9, 10)), beta2 = number("beta2", Rational(999, 1000)),
          eps = number("eps", Rational(1, 100000000)),
          decay = number("weight_decay", Rational(1, 100));
  const std::int64_t step = integerOf(c.attributes, "step");
  const Value<T>&p = c.operand(0), &g = c.operand(1);
  const Value<T> m =
      mapped(c, c.operand(2), g, [=](T a, T d) { return beta1 * a + (T(1) - beta1) * d; });
  const Value<T> v =
      mapped(c, c.operand(3), g, [=](T a, T d) { return beta2 * a + (T(1) - beta2) * d * d; });
  if (c.wants(0)) {
    const T correction1 = divide(T(1), T(1) - integerPower(beta1, step)),
            correction2 = divide(T(1), T(1) - integerPower(beta2, step)), kept = T(1) - lr * decay;
    const Value<T> update = mapped(c, m, v, [=](T a, T b) {
      return divide(lr * (a * correction1), rootOf(b * correction2) + eps);
    });
    c.out[0] = mapped(c, p, update, [=](T w, T u) { return kept * w - u; });
  }
  if (c.wants(1)) c.out[1] = m;
  if (c.wants(2)) c.out[2] = v;
}

}  // namespace

template <class T>
void addOptimizers(std::vector<NamedKernel<T>>& k) {
  k.push_back({"grad_norm", gradNorm<T>});
  k.push_back({"clip_grad", clipGrad<T>});
  k.push_back({"sgd", sgd<T>});
  k.push_back({"adamw", adamw<T>});
}

template void addOptimizers(std::vector<NamedKernel<double>>&);
template void addOptimizers(std::vector<NamedKernel<long double>>&);
template void addOptimizers(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
