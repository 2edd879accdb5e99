// SPDX-License-Identifier: Apache-2.0
// Random expressions, built over any algebra and evaluated without one: the reference that every
// normal form must agree with.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "shardproof/error.h"
#include "terms/functions.h"
#include "terms/term_algebra.h"

namespace shardproof::test {

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Op {
    kConstant,
    kVariable,
    kIndicator,
    kSum,
    kProduct,
    kScale,
    kPower,
    kExp,
    kFunction
  };
  Op op = Op::kConstant;
  Rational number;                    // kConstant, kScale
  int variable = 0;                   // kVariable, kIndicator (an integer variable)
  int halves = 0;                     // kPower
  std::int64_t shift = 0, value = 0;  // kIndicator: [variable + shift = value]
  ops::Function function = ops::Function::kStep;
  std::vector<std::int64_t> weights;  // kSum
  std::vector<ExpressionPtr> operands;
};

// For failures.
inline std::string describe(const ExpressionPtr& e) {
  using Op = Expression::Op;
  std::string out;
  switch (e->op) {
    case Op::kConstant:
      return e->number.toString();
    case Op::kVariable:
      return "v" + std::to_string(e->variable);
    case Op::kIndicator:
      return "[v" + std::to_string(e->variable) + " + " + std::to_string(e->shift) + " = " +
             std::to_string(e->value) + "]";
    case Op::kSum:
      out = "sum";
      break;
    case Op::kProduct:
      out = "product";
      break;
    case Op::kScale:
      out = "scale " + e->number.toString();
      break;
    case Op::kPower:
      out = "power " + std::to_string(e->halves) + "/2";
      break;
    case Op::kExp:
      out = "exp";
      break;
    case Op::kFunction:
      out = ops::name(e->function);
      break;
  }
  out += "(";
  for (std::size_t i = 0; i < e->operands.size(); ++i) {
    out += (i == 0 ? "" : ", ") + (e->weights.empty() ? "" : std::to_string(e->weights[i]) + " ") +
           describe(e->operands[i]);
  }
  return out + ")";
}

// Variables 0 .. kReals-1 are real, the next kIntegers are integers.
constexpr int kReals = 4;
constexpr int kIntegers = 2;

template <class A>
typename A::Element build(A& algebra, const ExpressionPtr& e,
                          const std::vector<typename A::Element>& variables) {
  using Element = typename A::Element;
  using Op = Expression::Op;
  std::vector<Element> operands;
  for (const ExpressionPtr& o : e->operands) operands.push_back(build(algebra, o, variables));
  switch (e->op) {
    case Op::kConstant:
      return algebra.constant(e->number);
    case Op::kVariable:
      return variables[static_cast<std::size_t>(e->variable)];
    case Op::kIndicator:
      return algebra.indicator(algebra.add(variables[static_cast<std::size_t>(e->variable)],
                                           algebra.constant(Rational(e->shift))),
                               e->value);
    case Op::kSum:
      return algebra.sum(operands, e->weights);
    case Op::kProduct: {
      Element result = operands[0];
      for (std::size_t i = 1; i < operands.size(); ++i) result = algebra.mul(result, operands[i]);
      return result;
    }
    case Op::kScale:
      return algebra.scale(e->number, operands[0]);
    case Op::kPower:
      return algebra.power(operands[0], e->halves);
    case Op::kExp:
      return algebra.exp(operands[0]);
    case Op::kFunction:
      return algebra.apply(e->function, {}, operands);
  }
  throw std::logic_error("unknown operation");
}

struct Generator {
  std::mt19937_64 random;
  bool transcendental = false;  // exp, roots, logarithms and the like, too

  explicit Generator(std::uint64_t seed, bool t = false) : random(seed), transcendental(t) {}
  int below(int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); }
  static std::shared_ptr<Expression> node(Expression::Op op,
                                          std::vector<ExpressionPtr> operands = {}) {
    auto e = std::make_shared<Expression>();
    e->op = op;
    e->operands = std::move(operands);
    return e;
  }
  Rational smallNumber() { return Rational(below(9) - 4, below(4) + 1); }
  ExpressionPtr leaf() {
    const int which = below(10);
    if (which == 0) {
      auto e = node(Expression::Op::kConstant);
      e->number = smallNumber();
      return e;
    }
    if (which == 1) {
      auto e = node(Expression::Op::kIndicator);
      e->variable = kReals + below(kIntegers);
      e->shift = below(3) - 1;
      e->value = below(3);
      return e;
    }
    auto e = node(Expression::Op::kVariable);
    e->variable = below(kReals);
    return e;
  }
  ExpressionPtr expression(int depth) {
    if (depth == 0 || below(8) == 0) return leaf();
    const int which = below(transcendental ? 15 : 11);
    const auto operands = [&](int n) {
      std::vector<ExpressionPtr> result;
      for (int i = 0; i < n; ++i) result.push_back(expression(depth - 1));
      return result;
    };
    if (which < 4) {
      auto e = node(Expression::Op::kSum, operands(2 + below(3)));
      for (std::size_t i = 0; i < e->operands.size(); ++i) e->weights.push_back(below(6) - 2);
      if (below(2) == 0) e->weights.clear();
      return e;
    }
    if (which < 7) return node(Expression::Op::kProduct, operands(2 + below(2)));
    if (which == 7) {
      auto e = node(Expression::Op::kScale, operands(1));
      e->number = smallNumber();
      return e;
    }
    if (which < 10) {
      auto e = node(Expression::Op::kPower, operands(1));
      const int powers[] = {-4, -2, -2, 0, 2, 4, 6};
      e->halves = powers[below(7)];
      return e;
    }
    if (which == 10) {
      auto e = node(Expression::Op::kFunction, operands(below(2) == 0 ? 1 : 2));
      e->function = e->operands.size() == 1
                        ? ops::Function::kStep
                        : (below(2) == 0 ? ops::Function::kMaximum : ops::Function::kMinimum);
      return e;
    }
    if (which < 13) return node(Expression::Op::kExp, operands(1));
    if (which == 13) {
      auto e = node(Expression::Op::kPower, operands(1));
      const int powers[] = {-3, -1, 1, 3};
      e->halves = powers[below(4)];
      return e;
    }
    auto e = node(Expression::Op::kFunction, operands(1));
    const ops::Function functions[] = {ops::Function::kLog, ops::Function::kLog,
                                       ops::Function::kSigmoid, ops::Function::kTanh};
    e->function = functions[below(4)];
    return e;
  }

  // The same value by commuting and regrouping sums and products only.
  ExpressionPtr regrouped(const ExpressionPtr& e) {
    auto result = std::make_shared<Expression>(*e);
    for (ExpressionPtr& o : result->operands) o = regrouped(o);
    const bool sum = e->op == Expression::Op::kSum;
    if (!sum && e->op != Expression::Op::kProduct) return result;
    if (sum && !e->weights.empty()) {
      // Weights become scales, so that the operands may move.
      for (std::size_t i = 0; i < result->operands.size(); ++i) {
        auto scaled = node(Expression::Op::kScale, {result->operands[i]});
        scaled->number = Rational(e->weights[i]);
        result->operands[i] = scaled;
      }
      result->weights.clear();
    }
    std::shuffle(result->operands.begin(), result->operands.end(), random);
    while (result->operands.size() > 2 && below(3) != 0) {
      const ExpressionPtr last = result->operands.back();
      result->operands.pop_back();
      const auto at = static_cast<std::size_t>(below(static_cast<int>(result->operands.size())));
      result->operands[at] = node(e->op, {last, result->operands[at]});
    }
    return result;
  }

  // The same value by multiplying products over sums at random places.
  ExpressionPtr distributed(const ExpressionPtr& e) {
    auto result = std::make_shared<Expression>(*e);
    for (ExpressionPtr& o : result->operands) o = distributed(o);
    if (e->op != Expression::Op::kProduct) return result;
    for (std::size_t i = 0; i < result->operands.size(); ++i) {
      const ExpressionPtr s = result->operands[i];
      if (s->op != Expression::Op::kSum || below(3) == 0) continue;
      auto outside = std::make_shared<Expression>(*s);
      for (ExpressionPtr& o : outside->operands) {
        auto inside = std::make_shared<Expression>(*result);
        inside->operands[i] = o;
        o = inside;
      }
      return outside;
    }
    return result;
  }

  // One leaf, number or power changed.
  ExpressionPtr mutated(const ExpressionPtr& e) {
    auto result = std::make_shared<Expression>(*e);
    if (!e->operands.empty() && below(4) != 0) {
      const auto at = static_cast<std::size_t>(below(static_cast<int>(e->operands.size())));
      result->operands[at] = mutated(result->operands[at]);
      return result;
    }
    switch (e->op) {
      case Expression::Op::kVariable:
        result->variable = (e->variable + 1) % kReals;
        break;
      case Expression::Op::kIndicator:
        ++result->value;
        break;
      case Expression::Op::kConstant:
      case Expression::Op::kScale:
        result->number = e->number + Rational(1);
        break;
      case Expression::Op::kPower:
        result->halves += 2;
        break;
      default: {
        auto one = node(Expression::Op::kVariable);
        return node(Expression::Op::kSum, {result, one});
      }
    }
    return result;
  }
};

// Exact arithmetic; a value that is not defined is empty. Not for exp and the like.
struct ExactAlgebra {
  using Element = std::optional<Rational>;
  Element constant(const Rational& v) { return v; }
  Element add(const Element& a, const Element& b) {
    return a && b ? Element(*a + *b) : std::nullopt;
  }
  Element mul(const Element& a, const Element& b) {
    return a && b ? Element(*a * *b) : std::nullopt;
  }
  Element scale(const Rational& f, const Element& a) { return mul(f, a); }
  Element sum(const std::vector<Element>& terms, const std::vector<std::int64_t>& weights) {
    Element total = Rational(0);
    for (std::size_t i = 0; i < terms.size(); ++i)
      total = add(total, weights.empty() ? terms[i] : scale(Rational(weights[i]), terms[i]));
    return total;
  }
  Element integerPower(const Element& a, std::int64_t n) {
    if (!a || (a->isZero() && n < 0)) return std::nullopt;
    return a->pow(n);
  }
  Element power(const Element& a, int halves) {
    if (halves % 2 != 0) throw std::logic_error("no exact root");
    return integerPower(a, halves / 2);
  }
  Element exp(const Element&) { throw std::logic_error("no exact exponential"); }
  Element apply(ops::Function f, std::initializer_list<int>,
                const std::vector<Element>& arguments) {
    Element result = arguments[0];
    for (const Element& a : arguments) {
      if (!a) return std::nullopt;
      if (f == ops::Function::kStep) return Rational(a->sign() > 0 ? 1 : 0);
      if (f == ops::Function::kMaximum ? *result < *a : *a < *result) result = a;
    }
    return result;
  }
  Element indicator(const Element& index, std::int64_t v) {
    return index ? Element(Rational(*index == Rational(v) ? 1 : 0)) : std::nullopt;
  }
};

// Values of terms at a point, by inspection.
inline std::optional<Rational> exactValue(const TermAlgebra& a, Term t,
                                          const std::vector<std::optional<Rational>>& point) {
  ExactAlgebra exact;
  std::unordered_map<std::uint32_t, std::optional<Rational>> memo;
  const auto value = [&](const auto& self, Term u) -> std::optional<Rational> {
    if (const auto it = memo.find(u.id); it != memo.end()) return it->second;
    std::optional<Rational> result;
    switch (a.kind(u)) {
      case TermKind::kConstant:
        result = a.constantValue(u);
        break;
      case TermKind::kVariable:
        result = point[a.variableIndex(u)];
        break;
      case TermKind::kSum:
        result = a.constantValue(u);
        for (const TermAlgebra::Part& p : a.parts(u))
          result = exact.add(result, exact.scale(p.factor, self(self, p.term)));
        break;
      case TermKind::kProduct:
        result = Rational(1);
        for (const TermAlgebra::Part& p : a.parts(u))
          result = exact.mul(result, exact.integerPower(self(self, p.term), p.factor.toInt64()));
        break;
      case TermKind::kFunction: {
        std::vector<std::optional<Rational>> arguments;
        for (const Term x : a.arguments(u)) arguments.push_back(self(self, x));
        result = exact.apply(a.function(u), {}, arguments);
        break;
      }
      case TermKind::kIndicator:
        result = exact.indicator(self(self, a.arguments(u)[0]), a.parameters(u)[0]);
        break;
      default:
        throw std::logic_error("no exact value");
    }
    memo.emplace(u.id, result);
    return result;
  };
  return value(value, t);
}

// In doubles; `largest` becomes the largest magnitude met on the way, by which the rounding error
// is judged.
inline double doubleValue(const TermAlgebra& a, Term t, const std::vector<double>& point,
                          double& largest) {
  std::unordered_map<std::uint32_t, double> memo;
  const auto value = [&](const auto& self, Term u) -> double {
    if (const auto it = memo.find(u.id); it != memo.end()) return it->second;
    double result = 0;
    switch (a.kind(u)) {
      case TermKind::kConstant:
        result = a.constantValue(u).toDouble();
        break;
      case TermKind::kNegativeInfinity:
        result = -INFINITY;
        break;
      case TermKind::kVariable:
        result = point[a.variableIndex(u)];
        break;
      case TermKind::kSum:
        result = a.constantValue(u).toDouble();
        for (const TermAlgebra::Part& p : a.parts(u))
          result += p.factor.toDouble() * self(self, p.term);
        break;
      case TermKind::kProduct:
        result = 1;
        for (const TermAlgebra::Part& p : a.parts(u)) {
          const double base = self(self, p.term);
          result *= p.factor.isOne() ? base : std::pow(base, p.factor.toDouble());
        }
        break;
      case TermKind::kExp:
        result = std::exp(self(self, a.arguments(u)[0]));
        break;
      case TermKind::kSqrt:
        result = std::sqrt(self(self, a.arguments(u)[0]));
        break;
      case TermKind::kFunction: {
        std::vector<double> arguments;
        for (const Term x : a.arguments(u)) arguments.push_back(self(self, x));
        result = ops::evaluate(a.function(u), a.parameters(u), arguments);
        break;
      }
      case TermKind::kIndicator:
        result = self(self, a.arguments(u)[0]) == static_cast<double>(a.parameters(u)[0]) ? 1 : 0;
        break;
    }
    if (!(std::abs(result) <= largest)) largest = std::abs(result);
    memo.emplace(u.id, result);
    return result;
  };
  return value(value, t);
}

inline std::vector<Term> makeVariables(TermAlgebra& a) {
  std::vector<Term> result;
  for (int i = 0; i < kReals + kIntegers; ++i) result.push_back(a.variable(i >= kReals));
  return result;
}

}  // namespace shardproof::test
