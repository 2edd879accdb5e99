// SPDX-License-Identifier: Apache-2.0
// Expressions that are equal by construction have one normal form; expressions that differ have
// not. The constructions are the rules that docs/soundness.md lists
// ("Normal form"), read from right to left and applied at random places.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "choices.h"
#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "smt/solver.h"
#include "terms/expression.h"

namespace shardproof::test {
namespace {

using Op = Expression::Op;
using Node = std::shared_ptr<Expression>;
constexpr std::size_t kBudget = 3000;

Node make(Op op, std::vector<ExpressionPtr> operands = {}) {
  auto e = std::make_shared<Expression>();
  e->op = op;
  e->operands = std::move(operands);
  return e;
}
Node number(const Rational& r) {
  Node e = make(Op::kConstant);
  e->number = r;
  return e;
}
Node scale(const Rational& r, ExpressionPtr x) {
  Node e = make(Op::kScale, {std::move(x)});
  e->number = r;
  return e;
}
Node power(ExpressionPtr x, int halves) {
  Node e = make(Op::kPower, {std::move(x)});
  e->halves = halves;
  return e;
}
Node function(ops::Function f, std::vector<ExpressionPtr> arguments) {
  Node e = make(Op::kFunction, std::move(arguments));
  e->function = f;
  return e;
}
Node variable(int v) {
  Node e = make(Op::kVariable);
  e->variable = v;
  return e;
}
Node sum(std::vector<ExpressionPtr> operands) { return make(Op::kSum, std::move(operands)); }
Node product(std::vector<ExpressionPtr> operands) {
  return make(Op::kProduct, std::move(operands));
}

enum class Fragment { kRational, kAll };  // without and with exp, roots and logarithms

// Divisors and arguments of roots and logarithms are variables, or exponentials of anything: of
// sums the normal form knows less than arithmetic does.
ExpressionPtr expression(Choices& c, int depth, Fragment fragment) {
  const auto leaf = [&]() -> ExpressionPtr {
    switch (c.below(6)) {
      case 4: {
        Node e = make(Op::kIndicator);
        e->variable = kReals + c.below(kIntegers);
        e->shift = c.below(3) - 1;
        e->value = c.below(3);
        return e;
      }
      case 5:
        return number(Rational(c.below(9) - 4, c.below(3) + 1));
      default:
        return variable(c.below(kReals));
    }
  };
  if (depth == 0) return leaf();
  const auto inner = [&] { return expression(c, depth - 1, fragment); };
  switch (c.below(fragment == Fragment::kAll ? 12 : 8)) {
    case 0:
      return leaf();
    case 1:
    case 2:
      return sum({inner(), inner(), inner()});
    case 3:
    case 4:
      return product({inner(), inner()});
    case 5: {
      static const std::vector<Rational> factors{Rational(2), Rational(-1), Rational(3, 2),
                                                 Rational(-1, 5)};
      return scale(c.among(factors), inner());
    }
    case 6:
      return c.oneIn(2) ? power(variable(c.below(kReals)), -2 * (1 + c.below(2)))
                        : power(inner(), 4);
    case 7: {
      static const std::vector<ops::Function> functions{
          ops::Function::kSigmoid, ops::Function::kTanh, ops::Function::kMaximum,
          ops::Function::kMinimum, ops::Function::kStep};
      const ops::Function f = c.among(functions);
      return ops::isSymmetric(f) ? function(f, {inner(), inner()}) : function(f, {inner()});
    }
    case 8:
    case 9:
      return make(Op::kExp, {inner()});
    case 10: {
      static const std::vector<int> halves{1, -1, 3, -3};
      return power(c.oneIn(2) ? ExpressionPtr(make(Op::kExp, {inner()}))
                              : ExpressionPtr(variable(c.below(kReals))),
                   c.among(halves));
    }
    default:
      return function(ops::Function::kLog, {c.oneIn(2) ? ExpressionPtr(make(Op::kExp, {inner()}))
                                                       : ExpressionPtr(variable(c.below(kReals)))});
  }
}

bool uses(const ExpressionPtr& e, const std::function<bool(const Expression&)>& what) {
  return what(*e) || std::any_of(e->operands.begin(), e->operands.end(),
                                 [&](const ExpressionPtr& o) { return uses(o, what); });
}

// exp(2 log(x)) becomes x^2, and that x is positive is forgotten: sqrt(x^2) and log(x^2) stay as
// they are.
bool isLog(const Expression& e) {
  return e.op == Op::kFunction && e.function == ops::Function::kLog;
}

template <class Change>
ExpressionPtr atRandomPlace(Choices& c, const ExpressionPtr& e, Change&& change) {
  if (!e->operands.empty() && c.below(3) != 0) {
    auto copy = std::make_shared<Expression>(*e);
    ExpressionPtr& o =
        copy->operands[static_cast<std::size_t>(c.below(static_cast<int>(copy->operands.size())))];
    o = atRandomPlace(c, o, change);
    return copy;
  }
  return change(e);
}

// One step from e to an expression of the same value, wherever both are defined.
ExpressionPtr equalTo(Choices& c, const ExpressionPtr& e, Fragment fragment) {
  const auto some = [&] { return variable(c.below(kReals)); };
  auto copy = std::make_shared<Expression>(*e);
  auto& in = copy->operands;
  const int rule = c.below(8);
  if (rule < 4) {  // rules of the operation; where none applies the general ones below
    switch (e->op) {
      case Op::kSum:
      case Op::kProduct:
        if (rule == 0) {  // a + b = b + a
          std::rotate(in.begin(), in.begin() + 1, in.end());
          return copy;
        }
        if (rule == 1 && in.size() > 2) {  // a + b + c = a + (b + c)
          const ExpressionPtr last = in.back();
          in.pop_back();
          in.back() = make(e->op, {in.back(), last});
          return copy;
        }
        if (e->op == Op::kProduct) {  // a (b + c) = a b + a c
          for (std::size_t i = 0; i < in.size(); ++i) {
            if (in[i]->op != Op::kSum || !in[i]->weights.empty()) continue;
            auto outside = std::make_shared<Expression>(*in[i]);
            for (ExpressionPtr& o : outside->operands) {
              auto one = std::make_shared<Expression>(*e);
              one->operands[i] = o;
              o = one;
            }
            return outside;
          }
        }
        break;
      case Op::kScale:  // c (a + b) = c a + c b
        if (in[0]->op == Op::kSum && in[0]->weights.empty()) {
          auto outside = std::make_shared<Expression>(*in[0]);
          for (ExpressionPtr& o : outside->operands) o = scale(e->number, o);
          return outside;
        }
        break;
      case Op::kPower:
        if (in[0]->op == Op::kProduct && e->halves % 2 == 0) {  // (a b)^n = a^n b^n
          auto outside = std::make_shared<Expression>(*in[0]);
          for (ExpressionPtr& o : outside->operands) o = power(o, e->halves);
          return outside;
        }
        if (e->halves % 2 != 0)
          return product(
              {power(in[0], 1), power(in[0], e->halves - 1)});  // x^(n + 1/2) = sqrt(x) x^n
        if (e->halves == 4) return product({in[0], in[0]});
        if (e->halves == -4) return product({power(in[0], -2), power(in[0], -2)});
        break;
      case Op::kExp:
        if (in[0]->op == Op::kSum && in[0]->weights.empty()) {  // exp(a + b) = exp(a) exp(b)
          std::vector<ExpressionPtr> factors;
          for (const ExpressionPtr& o : in[0]->operands) factors.push_back(make(Op::kExp, {o}));
          return product(factors);
        }
        if (rule == 0)
          return power(make(Op::kExp, {scale(Rational(1, 2), in[0])}), 4);  // exp(a) = exp(a/2)^2
        if (rule == 1 && !uses(in[0], isLog))
          return power(make(Op::kExp, {scale(Rational(2), in[0])}), 1);  // exp(a) = sqrt(exp(2 a))
        if (rule == 2)
          return power(make(Op::kExp, {scale(Rational(-1), in[0])}), -2);  // exp(a) = 1 / exp(-a)
        break;
      case Op::kIndicator:
        if (rule == 0) return product({e, e});
        ++copy->shift;  // [i + s = v] = [i + s + 1 = v + 1]
        ++copy->value;
        return copy;
      case Op::kFunction:
        if (ops::isSymmetric(e->function)) {
          if (rule == 0) return function(e->function, {in[1], in[0]});
          return function(
              e->function,
              {in[0], function(e->function,
                               {in[1], in[rule == 1 ? 0 : 1]})});  // max(a, b) = max(a, max(b, a))
        }
        if (e->function == ops::Function::kStep && rule < 2) return product({e, e});
        if (e->function == ops::Function::kLog) {  // log(x) = log(x exp(v)) - v
          const ExpressionPtr v = some();
          return sum({function(ops::Function::kLog, {product({in[0], make(Op::kExp, {v})})}),
                      scale(Rational(-1), v)});
        }
        break;
      default:
        break;
    }
  }
  const bool positive = fragment == Fragment::kAll && !uses(e, isLog);
  switch (c.below(fragment == Fragment::kRational ? 5 : positive ? 7 : 6)) {
    case 0:
      return sum({scale(Rational(1, 3), e), scale(Rational(2, 3), e)});  // a partial sum
    case 1:
      return scale(Rational(-4), scale(Rational(-1, 4), e));
    case 2: {
      const ExpressionPtr v = some();
      return sum({e, v, scale(Rational(-1), v)});
    }
    case 3: {
      const ExpressionPtr v = some();
      return product({e, v, power(v, -2)});  // x / x = 1
    }
    case 4:
      return product({number(Rational(3, 7)), e, number(Rational(7, 3))});
    case 5: {
      const ExpressionPtr v = some();
      return product({e, make(Op::kExp, {v}), make(Op::kExp, {scale(Rational(-1), v)})});
    }
    default:
      return function(ops::Function::kLog, {make(Op::kExp, {e})});  // log(exp(e)) = e
  }
}

// One sign, coefficient, operand or exponent changed.
ExpressionPtr changed(Choices& c, const ExpressionPtr& e) {
  auto copy = std::make_shared<Expression>(*e);
  const int which = c.below(3);
  if (which == 0) return scale(Rational(-1), e);
  switch (e->op) {
    case Op::kVariable:
      copy->variable = (e->variable + 1) % kReals;
      return copy;
    case Op::kConstant:
    case Op::kScale:
      copy->number = e->number + Rational(1);
      return copy;
    case Op::kIndicator:
      ++copy->value;
      return copy;
    case Op::kPower:
      copy->halves += which == 1 ? 2 : -4;
      return copy;
    case Op::kSum:
    case Op::kProduct:
      if (which == 1) copy->operands.pop_back();
      else copy->operands.push_back(e->operands[0]);
      return copy;
    default:
      return scale(Rational(3, 2), e);
  }
}

// Do they differ at a point where both have a value? Far more than rounding explains.
bool differInNumbers(const ExpressionPtr& e, const ExpressionPtr& f, std::mt19937_64 random) {
  DoubleAlgebra doubles;
  for (int k = 0; k < 12; ++k) {
    std::vector<double> point;
    for (int i = 0; i < kReals; ++i)
      point.push_back((k % 2 == 0     ? 1
                       : random() % 2 ? -1
                                      : 1) *
                      (0.2 + static_cast<double>(random() % 1000) / 700));
    for (int i = 0; i < kIntegers; ++i) point.push_back(static_cast<double>(random() % 4) - 1);
    const double x = build(doubles, e, point), y = build(doubles, f, point);
    if (std::isfinite(x) && std::isfinite(y) && std::abs(x) < 1e6 && std::abs(y) < 1e6 &&
        std::abs(x - y) > 1e-3 * (1 + std::abs(x)))
      return true;
  }
  return false;
}

std::string both(const ExpressionPtr& e, const ExpressionPtr& f) {
  return describe(e) + "\n  and\n" + describe(f);
}

bool proved(TermAlgebra& terms, Term x, Term y) {
  return x == y || terms.expand(x, kBudget) == terms.expand(y, kBudget);
}

TEST(Identities, EqualByConstructionIsProved) {
  int compared = 0;
  EXPECT_TRUE(holds(1500, [&] {
    Choices c = drawChoices(150);
    const Fragment fragment = c.oneIn(2) ? Fragment::kAll : Fragment::kRational;
    const ExpressionPtr e = expression(c, 1 + c.below(3), fragment);
    ExpressionPtr f = e;
    for (int steps = 1 + c.below(6); steps > 0; --steps)
      f = atRandomPlace(c, f, [&](const ExpressionPtr& x) { return equalTo(c, x, fragment); });
    TermAlgebra terms;
    const std::vector<Term> variables = makeVariables(terms);
    try {
      const Term x = build(terms, e, variables), y = build(terms, f, variables);
      if (!proved(terms, x, y))
        RC_FAIL(both(e, f) + "\n  are " + terms.toString(terms.expand(x, kBudget), {}) +
                "\n  and " + terms.toString(terms.expand(y, kBudget), {}));
      ++compared;
    } catch (const Unsupported&) {  // too many monomials, or no value anywhere
    }
  }));
  EXPECT_GT(compared, 1200);
}

TEST(Identities, WhatDiffersIsNotProvedAndItsFingerprintsDiffer) {
  int compared = 0, fingerprints = 0;
  EXPECT_TRUE(holds(1500, [&] {
    Choices c = drawChoices(150);
    const Fragment fragment = c.oneIn(2) ? Fragment::kAll : Fragment::kRational;
    const ExpressionPtr e = expression(c, 1 + c.below(3), fragment);
    ExpressionPtr f = atRandomPlace(c, e, [&](const ExpressionPtr& x) { return changed(c, x); });
    // The change must not hide behind another form of the rest.
    for (int steps = c.below(4); steps > 0; --steps)
      f = atRandomPlace(c, f, [&](const ExpressionPtr& x) { return equalTo(c, x, fragment); });
    if (!differInNumbers(e, f, c.random())) return;
    TermAlgebra terms;
    const std::vector<Term> variables = makeVariables(terms);
    try {
      const Term x = build(terms, e, variables), y = build(terms, f, variables);
      if (proved(terms, x, y)) RC_FAIL(both(e, f) + "\n  both are " + terms.toString(x, {}));
      ++compared;
    } catch (const Unsupported&) {
      return;
    }
    // A root loses its sign modulo the prime, and the order of residues is another.
    const auto blind = [](const Expression& n) {
      return (n.op == Op::kPower && n.halves % 2 != 0) ||
             (n.op == Op::kFunction &&
              (ops::isSymmetric(n.function) || n.function == ops::Function::kStep));
    };
    if (uses(e, blind) || uses(f, blind)) return;
    ModularAlgebra modular;
    std::mt19937_64 random = c.random();
    bool differ = false;
    for (int k = 0; k < 64 && !differ; ++k) {  // all combinations of the integers four times
      std::vector<ModularAlgebra::Element> point;
      for (int i = 0; i < kReals; ++i) point.push_back({random() % ModularAlgebra::kPrime, false});
      for (const int i : {k % 4 - 1, k / 4 % 4 - 1}) point.push_back(modular.constant(Rational(i)));
      try {
        differ = !(build(modular, e, point) == build(modular, f, point));
      } catch (const Unsupported&) {
      }
    }
    if (!differ) RC_FAIL(both(e, f) + "\n  have equal fingerprints");
    ++fingerprints;
  }));
  EXPECT_GT(compared, 600);
  EXPECT_GT(fingerprints, 200);
}

// Z3 on the raw terms: it refutes nothing that is equal, and proves nothing that differs.
TEST(Identities, TheSolverDoesNotSayTheOpposite) {
  int decided = 0;
  EXPECT_TRUE(holds(16, [&] {
    Choices c = drawChoices(60);
    const ExpressionPtr e = expression(c, 1 + c.below(2), Fragment::kRational);
    ExpressionPtr f = e;
    const bool different = c.oneIn(2);
    if (different) f = atRandomPlace(c, e, [&](const ExpressionPtr& x) { return changed(c, x); });
    for (int steps = 1 + c.below(3); steps > 0; --steps)
      f = atRandomPlace(c, f,
                        [&](const ExpressionPtr& x) { return equalTo(c, x, Fragment::kRational); });
    const bool differ = different && differInNumbers(e, f, c.random());
    if (different && !differ) return;
    TermAlgebra raw(TermAlgebra::Mode::kRaw);
    const std::vector<Term> variables = makeVariables(raw);
    try {
      const SmtVerdict verdict =
          findDifference(raw, {{build(raw, e, variables), build(raw, f, variables)}}, 200, 2048)
              .verdict;
      if (verdict == (differ ? SmtVerdict::kUnsat : SmtVerdict::kSat))
        RC_FAIL(both(e, f) + (differ ? "\n  are equal for Z3" : "\n  differ for Z3"));
      decided += verdict != SmtVerdict::kUnknown;
    } catch (const Unsupported&) {
    }
  }));
  EXPECT_GT(decided, 8);
}

}  // namespace
}  // namespace shardproof::test
