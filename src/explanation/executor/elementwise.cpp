// SPDX-License-Identifier: Apache-2.0
// Elementwise operators and their gradients (docs/operators.md, "Elementwise").
#include "executor/call.h"

namespace shardproof::executor {
namespace {

template <class T>
void identity(Call<T>& c) {
  for (std::size_t r = 0; r < c.wanted.size(); ++r)
    if (c.wants(r)) c.out[r] = c.operand(0);
}

template <class T>
void floating(Call<T>& c) {
  c.out[0] = c.real(0);
}

// Operands: the gradient, and perhaps what it is the gradient for.
template <class T>
void identityBackward(Call<T>& c) {
  if (c.present(1)) {
    c.real(1);
    c.gradient(0, c.operand(1).shape);
  }
  c.out[0] = c.real(0);
}

template <class T>
void multirefBackward(Call<T>& c) {
  Value<T> sum;
  for (std::size_t i = 0; i < c.in.size(); ++i) {
    if (!c.present(i)) continue;
    const Value<T>& g = c.real(i);
    if (!sum) {
      sum = g;
      continue;
    }
    c.expect(i, sum.shape);
    sum = mapped(c, sum, g, [](T a, T b) { return a + b; });
  }
  if (!sum) throw Misfit("no gradient is present");
  c.out[0] = sum;
}

// --- binary, or with a number ---

template <class T>
struct Second {  // the second operand: a tensor or the attribute `scalar`
  explicit Second(const Call<T>& c, std::size_t at) : given(c.present(at)) {
    if (!given) number = fromRational<T>(numberOf(c.attributes, "scalar"));
  }
  bool given;
  T number{};
};

template <class T, int sign>
void addScaled(Call<T>& c) {
  const Value<T>& x = c.real(0);
  T alpha = fromRational<T>(numberOf(c.attributes, "alpha", Rational(1)));
  if (sign < 0) alpha = -alpha;
  const Second<T> y(c, 1);
  if (y.given) {
    c.out[0] = broadcastMap(c, x, c.real(1), [=](T a, T b) { return a + alpha * b; });
  } else {
    const T term = alpha * y.number;
    c.out[0] = mapped(c, x, [=](T a) { return a + term; });
  }
}

// A gradient of the broadcast result of two operands at 1 and 2.
template <class T>
const Value<T>& binaryGradient(const Call<T>& c) {
  const Shape& x = c.real(1).shape;
  return c.gradient(0, c.present(2) ? broadcastOf(x, c.real(2).shape) : x);
}

template <class T, int sign>
void addScaledBackward(Call<T>& c) {
  const Value<T>& g = binaryGradient(c);
  if (c.wants(0)) c.out[0] = summedTo(c, g, c.operand(1).shape);
  if (c.wants(1)) {
    T alpha = fromRational<T>(numberOf(c.attributes, "alpha", Rational(1)));
    if (sign < 0) alpha = -alpha;
    const Value<T> s = summedTo(c, g, c.operand(2).shape);
    c.out[1] = mapped(c, s, [=](T a) { return alpha * a; });
  }
}

template <class T>
void mul(Call<T>& c) {
  const Second<T> y(c, 1);
  if (y.given) c.out[0] = broadcastMap(c, c.real(0), c.real(1), [](T a, T b) { return a * b; });
  else c.out[0] = mapped(c, c.real(0), [k = y.number](T a) { return a * k; });
}

template <class T>
void mulBackward(Call<T>& c) {
  const Value<T>& g = binaryGradient(c);
  const Second<T> y(c, 2);
  const auto product = [](T a, T b) { return a * b; };
  if (c.wants(0)) {
    if (y.given)
      c.out[0] = summedTo(c, broadcastMap(c, g, c.operand(2), product), c.operand(1).shape);
    else c.out[0] = mapped(c, g, [k = y.number](T a) { return a * k; });
  }
  if (c.wants(1))
    c.out[1] = summedTo(c, broadcastMap(c, g, c.operand(1), product), c.operand(2).shape);
}

// In the field a division is many multiplications, so the number is inverted once; real numbers are
// rounded once, by a division each.
template <class T>
Value<T> dividedBy(Call<T>& c, const Value<T>& x, T number) {
  if constexpr (std::is_floating_point_v<T>) {
    return mapped(c, x, [=](T a) { return divide(a, number); });
  } else {
    return mapped(c, x, [inverse = divide(T(1), number)](T a) { return a * inverse; });
  }
}

template <class T>
void div(Call<T>& c) {
  const Second<T> y(c, 1);
  if (y.given)
    c.out[0] = broadcastMap(c, c.real(0), c.real(1), [](T a, T b) { return divide(a, b); });
  else c.out[0] = dividedBy(c, c.real(0), y.number);
}

template <class T>
void divBackward(Call<T>& c) {
  const Value<T>& g = binaryGradient(c);
  const Second<T> y(c, 2);
  if (c.wants(0)) {
    if (y.given)
      c.out[0] =
          summedTo(c, broadcastMap(c, g, c.operand(2), [](T a, T b) { return divide(a, b); }),
                   c.operand(1).shape);
    else c.out[0] = dividedBy(c, g, y.number);
  }
  if (c.wants(1)) {  // -g x / y^2
    const Value<T> ratio =
        broadcastMap(c, c.operand(1), c.operand(2), [](T a, T b) { return -divide(a, b * b); });
    c.out[1] =
        summedTo(c, broadcastMap(c, g, ratio, [](T a, T b) { return a * b; }), c.operand(2).shape);
  }
}

// --- unary: a value and a slope ---

template <class T>
struct Neg {
  static T value(T x) { return -x; }
  static T slope(T) { return T(-1); }
};
template <class T>
struct Square {
  static T value(T x) { return x * x; }
  static T slope(T x) { return x + x; }
};
template <class T>
struct Exp {
  static T value(T x) { return expOf(x); }
  static T slope(T x) { return expOf(x); }
};
template <class T>
struct Log {
  static T value(T x) { return logOf(x); }
  static T slope(T x) {
    if constexpr (!kIsField<T>) {
      if (!(x > 0)) return undefined<T>();  // where there is no value there is no slope
    }
    return divide(T(1), x);
  }
};
template <class T>
struct Sqrt {
  static T value(T x) { return rootOf(x); }
  static T slope(T x) { return divide(T(1), rootOf(x) * T(2)); }
};
template <class T>
struct Rsqrt {
  static T value(T x) { return inverseRootOf(x); }
  static T slope(T x) {  // -1/2 x^(-3/2)
    const T r = inverseRootOf(x);
    return divide(-(r * r * r), T(2));
  }
};
template <class T>
struct Sigmoid {
  static T value(T x) { return sigmoidOf(x); }
  static T slope(T x) {
    const T s = sigmoidOf(x);
    return s * (T(1) - s);
  }
};
template <class T>
struct Tanh {
  static T value(T x) { return tanhOf(x); }
  static T slope(T x) {
    const T t = tanhOf(x);
    return T(1) - t * t;
  }
};
template <class T>
struct Silu {
  static T value(T x) { return x * sigmoidOf(x); }
  static T slope(T x) {
    const T s = sigmoidOf(x);
    return s * (T(1) + x * (T(1) - s));
  }
};

template <class T, template <class> class F>
void unary(Call<T>& c) {
  c.out[0] = mapped(c, c.real(0), [](T x) { return F<T>::value(x); });
}
template <class T, template <class> class F>
void unaryBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  c.out[0] = mapped(c, c.gradient(0, x.shape), x, [](T g, T a) { return g * F<T>::slope(a); });
}

template <class T>
void relu(Call<T>& c) {
  const Value<T>& x = c.real(0);
  c.out[0] = mapped(c, x, [](T a) {
    if constexpr (kIsField<T>) return a * stepOf(a);
    else return a > 0 ? a : a * T(0) + T(0);  // minus infinity is no number
  });
}
template <class T>
void reluBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  c.out[0] = mapped(c, c.gradient(0, x.shape), x, [](T g, T a) {
    if constexpr (kIsField<T>) return a.infinite() ? g * T(0) : g * stepOf(a);
    else return g * stepOf(a);
  });
}

// x Phi(x), or with tanh: x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
template <class T>
void gelu(Call<T>& c) {
  const Value<T>& x = c.real(0);
  if (textOf(c.attributes, "approximate", "none") == "none") {
    c.out[0] = mapped(c, x, [](T a) { return a * normalCdf(a); });
    return;
  }
  const T k = rootOfTwoOverPi<T>(), cubic = fromRational<T>(Rational(44715, 1000000)),
          half = fromRational<T>(Rational(1, 2));
  c.out[0] =
      mapped(c, x, [=](T a) { return half * a * (T(1) + tanhOf(k * (a + cubic * a * a * a))); });
}
template <class T>
void geluBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  const Value<T>& g = c.gradient(0, x.shape);
  if (textOf(c.attributes, "approximate", "none") == "none") {
    c.out[0] = mapped(c, g, x, [](T d, T a) { return d * (normalCdf(a) + a * normalPdf(a)); });
    return;
  }
  const T k = rootOfTwoOverPi<T>(), cubic = fromRational<T>(Rational(44715, 1000000)),
          half = fromRational<T>(Rational(1, 2));
  c.out[0] = mapped(c, g, x, [=](T d, T a) {
    const T t = tanhOf(k * (a + cubic * a * a * a));
    const T inner = k * (T(1) + T(3) * cubic * a * a);
    return d * half * ((T(1) + t) + a * (T(1) - t * t) * inner);
  });
}

std::int64_t halvesOf(const Attributes& attributes) {
  return (numberOf(attributes, "scalar") * Rational(2)).toInt64();
}

template <class T>
void pow(Call<T>& c) {
  const std::int64_t halves = halvesOf(c.attributes);
  c.out[0] = mapped(c, c.real(0), [=](T x) { return powerOf(x, halves); });
}
template <class T>
void powBackward(Call<T>& c) {
  const std::int64_t halves = halvesOf(c.attributes);
  const Value<T>& x = c.real(1);
  const T exponent = fromRational<T>(Rational(halves, 2));
  c.out[0] = mapped(c, c.gradient(0, x.shape), x, [=](T g, T a) {
    if (halves == 0) return g * T(0);  // the slope of 1 and of x needs no x
    if (halves == 2) return g;
    return g * (exponent * powerOf(a, halves - 2));
  });
}

// With a mask: x [mask = 1] / (1 - p). The mask that is drawn is made by who runs the node
// (draw.h), so that here there always is one.
template <class T>
void dropped(Call<T>& c, const Value<T>& x, std::size_t maskAt) {
  const Rational p = numberOf(c.attributes, "p");
  if (p.isOne()) {
    c.out[0] = mapped(c, x, [](T a) { return a * T(0) + T(0); });  // 0 where x has a value
    return;
  }
  const T keep = fromRational<T>((Rational(1) - p).inverse());
  if (p.isZero() && !c.present(maskAt)) {
    c.out[0] = x;
    return;
  }
  const Value<T>& mask = c.integer(maskAt);
  c.expect(maskAt, x.shape);
  if (p.isZero()) {
    c.out[0] = x;
    return;
  }
  c.out[0] = mapped(c, x, mask, [=](T a, T m) { return m == T(1) ? a * keep : a * T(0); });
}
template <class T>
void dropout(Call<T>& c) {
  dropped(c, c.real(0), 1);
}
template <class T>
void dropoutBackward(Call<T>& c) {
  dropped(c, c.gradient(0, c.real(1).shape), 2);
}

template <class T, Opaque f>
void opaque(Call<T>& c) {
  c.out[0] = mapped(c, c.real(0), [](T x) { return opaqueOf<f>(x); });
}

}  // namespace

template <class T>
void addElementwise(std::vector<NamedKernel<T>>& k) {
  for (const char* name : {"identity", "to", "contiguous", "multiref"})
    k.push_back({name, identity<T>});
  k.push_back({"float", floating<T>});
  for (const char* name :
       {"identity_backward", "to_backward", "contiguous_backward", "float_backward"})
    k.push_back({name, identityBackward<T>});
  k.push_back({"multiref_backward", multirefBackward<T>});
  k.push_back({"add", addScaled<T, 1>});
  k.push_back({"add_backward", addScaledBackward<T, 1>});
  k.push_back({"sub", addScaled<T, -1>});
  k.push_back({"sub_backward", addScaledBackward<T, -1>});
  k.push_back({"mul", mul<T>});
  k.push_back({"mul_backward", mulBackward<T>});
  k.push_back({"div", div<T>});
  k.push_back({"div_backward", divBackward<T>});
  k.push_back({"neg", unary<T, Neg>});
  k.push_back({"neg_backward", unaryBackward<T, Neg>});
  k.push_back({"square", unary<T, Square>});
  k.push_back({"square_backward", unaryBackward<T, Square>});
  k.push_back({"exp", unary<T, Exp>});
  k.push_back({"exp_backward", unaryBackward<T, Exp>});
  k.push_back({"log", unary<T, Log>});
  k.push_back({"log_backward", unaryBackward<T, Log>});
  k.push_back({"sqrt", unary<T, Sqrt>});
  k.push_back({"sqrt_backward", unaryBackward<T, Sqrt>});
  k.push_back({"rsqrt", unary<T, Rsqrt>});
  k.push_back({"rsqrt_backward", unaryBackward<T, Rsqrt>});
  k.push_back({"sigmoid", unary<T, Sigmoid>});
  k.push_back({"sigmoid_backward", unaryBackward<T, Sigmoid>});
  k.push_back({"tanh", unary<T, Tanh>});
  k.push_back({"tanh_backward", unaryBackward<T, Tanh>});
  k.push_back({"sin", opaque<T, Opaque::kSine>});
  k.push_back({"cos", opaque<T, Opaque::kCosine>});
  k.push_back({"erf", opaque<T, Opaque::kErf>});
  k.push_back({"floor", opaque<T, Opaque::kFloor>});
  k.push_back({"ceil", opaque<T, Opaque::kCeil>});
  k.push_back({"round", opaque<T, Opaque::kRound>});
  k.push_back({"trunc", opaque<T, Opaque::kTruncate>});
  k.push_back({"silu", unary<T, Silu>});
  k.push_back({"silu_backward", unaryBackward<T, Silu>});
  k.push_back({"relu", relu<T>});
  k.push_back({"relu_backward", reluBackward<T>});
  k.push_back({"gelu", gelu<T>});
  k.push_back({"gelu_backward", geluBackward<T>});
  k.push_back({"pow", pow<T>});
  k.push_back({"pow_backward", powBackward<T>});
  k.push_back({"dropout", dropout<T>});
  k.push_back({"dropout_backward", dropoutBackward<T>});
}

template void addElementwise(std::vector<NamedKernel<double>>&);
template void addElementwise(std::vector<NamedKernel<long double>>&);
template void addElementwise(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
