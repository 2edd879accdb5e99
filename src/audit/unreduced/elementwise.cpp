// SPDX-License-Identifier: Apache-2.0
// Elementwise operators and their gradients (docs/operators.md, "Elementwise").
#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

using ops::Function;

// value(x, attributes) and slope(x, attributes).
template <class F, class D>
void unary(DefinitionTable& table, const std::string& name, F value, D slope) {
  table.add(name, [value](const auto& n, std::size_t, Index i) { return value(n.in(0, i), n); });
  table.add(name + "_backward", [slope](const auto& n, std::size_t, Index i) {
    return n.in(0, i) * slope(n.in(1, i), n);
  });
}

// The gradients' operands are: the result's gradient, x, y (or x alone with `scalar`).
template <class F, class D>
void binary(DefinitionTable& table, const std::string& name, F value, D slope) {
  table.add(name, [value](const auto& n, std::size_t, Index i) {
    if (!n.has(1)) return value(n.in(0, i), n.constant(ops::number(n.attributes(), "scalar")), n);
    const Position p = unravel(n.resultShape(0), i);
    return value(n.in(0, broadcastFrom(n.shape(0), p)), n.in(1, broadcastFrom(n.shape(1), p)), n);
  });
  table.add(name + "_backward", [slope](const auto& n, std::size_t r, Index i) {
    if (!n.has(2))
      return n.in(0, i) *
             slope(n.in(1, i), n.constant(ops::number(n.attributes(), "scalar")), 0, n);
    const Shape& result = n.shape(0);
    return overBroadcast(n, n.shape(1 + r), result, i, [&](Index j) {
      const Position p = unravel(result, j);
      return n.in(0, j) * slope(n.in(1, broadcastFrom(n.shape(1), p)),
                                n.in(2, broadcastFrom(n.shape(2), p)), r, n);
    });
  });
}

// Half the argument of the tanh approximation of gelu, and its slope: c (x + 0.044715 x^3).
const Rational kCubic(44715, 1000000);

bool approximate(const Attributes& attributes) {
  return ops::text(attributes, "approximate", "none") == "tanh";
}

int halvesOf(const Attributes& attributes) {
  return static_cast<int>((ops::number(attributes, "scalar") * Rational(2)).toInt64());
}

}  // namespace

void defineElementwise(DefinitionTable& table) {
  for (const char* name : {"identity", "to", "contiguous", "float", "multiref", "identity_backward",
                           "to_backward", "contiguous_backward", "float_backward"}) {
    table.add(name, [](const auto& n, std::size_t, Index i) { return n.in(0, i); });
  }
  table.add("multiref_backward", [](const auto& n, std::size_t, Index i) {
    auto sum = n.sum();
    for (std::size_t k = 0; k < n.operands(); ++k) {
      if (n.has(k)) sum.add(n.in(k, i));
    }
    return sum.value();
  });

  const auto alpha = [](const auto& n) {
    return ops::number(n.attributes(), "alpha", Rational(1));
  };
  binary(
      table, "add", [alpha](auto x, auto y, const auto& n) { return x + y.times(alpha(n)); },
      [alpha](auto, auto, std::size_t r, const auto& n) {
        return n.constant(r == 0 ? Rational(1) : alpha(n));
      });
  binary(
      table, "sub", [alpha](auto x, auto y, const auto& n) { return x - y.times(alpha(n)); },
      [alpha](auto, auto, std::size_t r, const auto& n) {
        return n.constant(r == 0 ? Rational(1) : -alpha(n));
      });
  binary(
      table, "mul", [](auto x, auto y, const auto&) { return x * y; },
      [](auto x, auto y, std::size_t r, const auto&) { return r == 0 ? y : x; });
  binary(
      table, "div", [](auto x, auto y, const auto&) { return x * y.power(-2); },
      [](auto x, auto y, std::size_t r, const auto&) {
        return r == 0 ? y.power(-2) : x.times(Rational(-1)) * y.power(-4);
      });

  unary(
      table, "neg", [](auto x, const auto&) { return x.times(Rational(-1)); },
      [](auto, const auto& n) { return n.constant(Rational(-1)); });
  unary(
      table, "square", [](auto x, const auto&) { return x * x; },
      [](auto x, const auto&) { return x.times(Rational(2)); });
  unary(
      table, "exp", [](auto x, const auto&) { return x.exp(); },
      [](auto x, const auto&) { return x.exp(); });
  unary(
      table, "log", [](auto x, const auto&) { return x.apply(Function::kLog); },
      [](auto x, const auto&) { return x.power(-2); });
  unary(
      table, "sqrt", [](auto x, const auto&) { return x.power(1); },
      [](auto x, const auto&) { return x.power(-1).times(Rational(1, 2)); });
  unary(
      table, "rsqrt", [](auto x, const auto&) { return x.power(-1); },
      [](auto x, const auto&) { return x.power(-3).times(Rational(-1, 2)); });
  unary(
      table, "sigmoid", [](auto x, const auto&) { return x.apply(Function::kSigmoid); },
      [](auto x, const auto&) {
        const auto s = x.apply(Function::kSigmoid);
        return s * (x.of(1) - s);
      });
  unary(
      table, "tanh", [](auto x, const auto&) { return x.apply(Function::kTanh); },
      [](auto x, const auto&) {
        const auto t = x.apply(Function::kTanh);
        return x.of(1) - t * t;
      });
  const std::pair<const char*, Function> opaque[] = {
      {"sin", Function::kSine},      {"cos", Function::kCosine}, {"erf", Function::kErf},
      {"floor", Function::kFloor},   {"ceil", Function::kCeil},  {"round", Function::kRound},
      {"trunc", Function::kTruncate}};
  for (const auto& [name, f] : opaque)
    table.add(name, [g = f](const auto& n, std::size_t, Index i) { return n.in(0, i).apply(g); });
  unary(
      table, "silu", [](auto x, const auto&) { return x * x.apply(Function::kSigmoid); },
      [](auto x, const auto&) {
        const auto s = x.apply(Function::kSigmoid);
        return s + x * s * (x.of(1) - s);
      });
  unary(
      table, "relu", [](auto x, const auto&) { return x * x.apply(Function::kStep); },
      [](auto x, const auto&) { return x.apply(Function::kStep); });
  unary(
      table, "gelu",
      [](auto x, const auto& n) {
        if (!approximate(n.attributes())) return x * x.apply(Function::kNormalCdf);
        const auto u = n.apply(Function::kSqrtTwoOverPi) * (x + (x * x * x).times(kCubic));
        return x.times(Rational(1, 2)) * (x.of(1) + u.apply(Function::kTanh));
      },
      [](auto x, const auto& n) {
        if (!approximate(n.attributes()))
          return x.apply(Function::kNormalCdf) + x * x.apply(Function::kNormalPdf);
        const auto c = n.apply(Function::kSqrtTwoOverPi);
        const auto t = (c * (x + (x * x * x).times(kCubic))).apply(Function::kTanh);
        const auto inner = c * (x.of(1) + (x * x).times(kCubic * Rational(3)));
        return (x.of(1) + t).times(Rational(1, 2)) +
               x.times(Rational(1, 2)) * (x.of(1) - t * t) * inner;
      });
  unary(
      table, "pow", [](auto x, const auto& n) { return x.power(halvesOf(n.attributes())); },
      [](auto x, const auto& n) {
        const int halves = halvesOf(n.attributes());
        return halves == 0 ? x.of(0) : x.power(halves - 2).times(Rational(halves, 2));
      });

  // x [mask = 1] / (1 - p). `value`: x or the result's gradient, `mask`: the operand.
  const auto dropped = [](const auto& n, std::size_t value, std::size_t mask, Index i) {
    const Rational p = ops::number(n.attributes(), "p");
    if (p.isZero()) return n.in(value, i);
    if (p.isOne()) return n.zero();
    if (!n.has(mask)) throw Unsupported("dropout without its mask");
    return n.integer(mask, i) == 1 ? n.in(value, i).times((Rational(1) - p).inverse()) : n.zero();
  };
  table.add("dropout",
            [dropped](const auto& n, std::size_t, Index i) { return dropped(n, 0, 1, i); });
  table.add("dropout_backward",
            [dropped](const auto& n, std::size_t, Index i) { return dropped(n, 0, 2, i); });

  // condition, x, y: x where the condition is 1, else y. What is not chosen is not looked at.
  const auto chosen = [](const auto& n, std::size_t condition, const Position& p) -> std::size_t {
    const auto c = n.in(condition, broadcastFrom(n.shape(condition), p)) - n.constant(Rational(1));
    return n.algebra().isZero(c.value) ? 0 : 1;
  };
  table.add("where", [chosen](const auto& n, std::size_t, Index i) {
    const Position p = unravel(n.resultShape(0), i);
    const std::size_t k = 1 + chosen(n, 0, p);
    return n.in(k, broadcastFrom(n.shape(k), p));
  });
  table.add("where_backward", [chosen](const auto& n, std::size_t r, Index i) {
    const Shape& result = n.shape(0);
    return overBroadcast(n, n.shape(1 + r), result, i, [&](Index j) {
      return chosen(n, 1, unravel(result, j)) + 1 == r ? n.in(0, j) : n.zero();
    });
  });
}

}  // namespace shardproof::unreduced
