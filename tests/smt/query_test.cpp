// SPDX-License-Identifier: Apache-2.0
// What a solver is asked, evaluated with the true functions: it says what the terms say, and every
// fact that it states is true. So the facts can be satisfied together wherever the terms are
// defined, and none makes a solver prove what is wrong.
#include "smt/query.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "terms/expression.h"

namespace shardproof {
namespace {

using test::Expression;
using test::kIntegers;
using test::kReals;

// Every node of a query at one point. Symbols are read by their names alone.
class Interpreter {
 public:
  Interpreter(const SmtQuery& query, const std::vector<double>& point)
      : query_(query), point_(point) {
    for (const SmtQuery::Node& n : query.nodes) {
      values_.push_back(evaluate(n));
      // Not a number once anything is none.
      if (!std::isnan(largest_) && !(std::abs(values_.back()) <= largest_))
        largest_ = std::abs(values_.back());
    }
  }
  double value(std::uint32_t node) const { return values_[node]; }
  double largest() const { return largest_; }

  // Whether a fact holds, up to rounding.
  bool holds(std::uint32_t node) const {
    const SmtQuery::Node& n = query_.nodes[node];
    const auto operands = query_.operandsOf(n);
    const double tolerance = 1e-7 * largest_ * largest_;
    switch (n.kind) {
      case SmtKind::kEqual:
        return std::abs(value(operands[0]) - value(operands[1])) <= tolerance;
      case SmtKind::kGreater:
      case SmtKind::kAtLeast:
        return value(operands[0]) >=
               value(operands[1]) - (n.kind == SmtKind::kAtLeast ? tolerance : 0);
      case SmtKind::kOr:
        return std::any_of(operands.begin(), operands.end(),
                           [&](std::uint32_t o) { return holds(o); });
      default:
        throw std::logic_error("not a condition");
    }
  }

 private:
  double evaluate(const SmtQuery::Node& n) const {
    std::vector<double> x;
    for (const std::uint32_t o : query_.operandsOf(n))
      x.push_back(values_.at(o));  // operands stand before
    double result = n.kind == SmtKind::kProduct ? 1 : 0;
    switch (n.kind) {
      case SmtKind::kNumber:
        return query_.numbers.at(n.data).toDouble();
      case SmtKind::kVariable:
        return point_.at(n.data);
      case SmtKind::kSum:
        for (const double v : x) result += v;
        return result;
      case SmtKind::kProduct:
        for (const double v : x) result *= v;
        return result;
      case SmtKind::kToReal:
        return x.at(0);
      case SmtKind::kApply:
        return apply(query_.symbols.at(n.data), x);
      case SmtKind::kEqual:
        return x.at(0) == x.at(1);
      case SmtKind::kGreater:
        return x.at(0) > x.at(1);
      case SmtKind::kAtLeast:
        return x.at(0) >= x.at(1);
      case SmtKind::kOr:
        return std::any_of(x.begin(), x.end(), [](double v) { return v != 0; });
      case SmtKind::kIndicator:
        return x.at(0) != 0;
    }
    throw std::logic_error("unknown kind of node");
  }

  static double apply(const SmtQuery::Symbol& symbol, const std::vector<double>& x) {
    if (x.size() != symbol.arity) throw std::logic_error("a symbol on another number of arguments");
    if (symbol.name == "f_exp") return std::exp(x.at(0));
    if (symbol.name == "f_sqrt") return std::sqrt(x.at(0));
    if (symbol.name == "f_inverse") return 1 / x.at(0);
    if (const std::string power = "f_pow_"; symbol.name.starts_with(power)) {
      const std::string exponent = symbol.name.substr(power.size());
      const std::size_t slash = exponent.find('/');
      return std::pow(x.at(0),
                      std::stod(exponent.substr(0, slash)) /
                          (slash == std::string::npos ? 1 : std::stod(exponent.substr(slash + 1))));
    }
    for (const ops::Function f :
         {ops::Function::kMaximum, ops::Function::kMinimum, ops::Function::kLog,
          ops::Function::kSigmoid, ops::Function::kTanh}) {
      if (symbol.name == std::string("f_") + ops::name(f) + "/" + std::to_string(x.size()))
        return ops::evaluate(f, {}, x);
    }
    throw std::logic_error("unknown symbol " + symbol.name);
  }

  const SmtQuery& query_;
  const std::vector<double>& point_;
  std::vector<double> values_;
  double largest_ = 1;
};

TEST(Query, SaysWhatTheTermsSayAndStatesOnlyFacts) {
  test::Generator g(7, true);
  int compared = 0, facts = 0, unsupported = 0;
  for (int round = 0; round < 4000; ++round) {
    TermAlgebra terms(round % 2 == 0 ? TermAlgebra::Mode::kRaw : TermAlgebra::Mode::kNormalized);
    const std::vector<Term> variables = test::makeVariables(terms);
    const auto one = g.expression(2 + g.below(3)), other = g.regrouped(one);
    std::vector<std::pair<Term, Term>> pairs;
    SmtQuery query;
    try {
      pairs = {{build(terms, one, variables), build(terms, other, variables)}};
      query = buildQuery(terms, pairs);
    } catch (const Unsupported&) {
      ++unsupported;
      continue;
    }
    for (int k = 0; k < 4; ++k) {
      std::vector<double> point;
      for (int i = 0; i < kReals; ++i)
        point.push_back((g.below(4001) - 2000) / 1000.0 + 1e-4 * M_PI);
      for (int i = 0; i < kIntegers; ++i) point.push_back(g.below(4) - 1);
      const Interpreter at(query, point);
      if (!(at.largest() < 1e5)) continue;  // not defined there, or too large to be compared
      std::vector<double> nearby = point;
      for (int i = 0; i < kReals; ++i) nearby[static_cast<std::size_t>(i)] += 1e-3 * M_E;
      for (const bool right : {false, true}) {
        const auto agree = [&](const std::vector<double>& where) {
          const Interpreter there(query, where);
          double largest = 1;
          const double expected =
              test::doubleValue(terms, right ? pairs[0].second : pairs[0].first, where, largest);
          const double found =
              there.value(right ? query.claims.at(0).second : query.claims.at(0).first);
          return !(largest < 1e5) || std::abs(expected - found) <= 1e-7 * largest * largest;
        };
        // At a step's or an indicator's very edge rounding decides: there a point nearby must
        // agree.
        EXPECT_TRUE(agree(point) || agree(nearby)) << describe(one);
        ++compared;
      }
      for (const std::uint32_t fact : query.facts) {
        EXPECT_TRUE(at.holds(fact)) << "fact " << fact << " of " << describe(one);
        ++facts;
      }
    }
  }
  EXPECT_GT(compared, 10000);
  EXPECT_GT(facts, 10000);
  EXPECT_LT(unsupported, 400);
}

// The test can fail: a fact that is not true is found.
TEST(Query, AFactThatIsNotTrueIsFound) {
  TermAlgebra terms(TermAlgebra::Mode::kRaw);
  const Term x = terms.variable(false);
  const Term e = terms.exp(x);
  SmtQuery query = buildQuery(terms, {{e, e}});
  ASSERT_FALSE(query.facts.empty());
  const std::vector<double> point{0.5};
  for (const std::uint32_t fact : query.facts) EXPECT_TRUE(Interpreter(query, point).holds(fact));
  for (SmtQuery::Node& n : query.nodes) {
    if (n.kind == SmtKind::kGreater)
      std::swap(query.operands[n.first], query.operands[n.first + 1]);
  }
  bool all = true;
  for (const std::uint32_t fact : query.facts) all = all && Interpreter(query, point).holds(fact);
  EXPECT_FALSE(all);
}

}  // namespace
}  // namespace shardproof
