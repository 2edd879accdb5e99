// SPDX-License-Identifier: Apache-2.0
#include "smt/query.h"

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "shardproof/error.h"

namespace shardproof {

namespace {

using NodeId = std::uint32_t;

class QueryBuilder {
 public:
  QueryBuilder(const TermAlgebra& algebra, Laws laws) : algebra_(algebra), laws_(laws) {
    for (const Term t : algebra.selected()) markNotNeeded(t);
  }

  SmtQuery build(const std::vector<std::pair<Term, Term>>& pairs) {
    for (const auto& [a, b] : pairs) {
      NodeId x = translate(a), y = translate(b);
      if (sort(x) != sort(y)) {
        x = real(x);
        y = real(y);
      }
      query_.claims.emplace_back(x, y);
    }
    return std::move(query_);
  }

 private:
  // All that is in what an indicator chooses.
  void markNotNeeded(Term root) {
    std::vector<Term> stack{root};
    while (!stack.empty()) {
      const Term t = stack.back();
      stack.pop_back();
      if (!notNeeded_.insert(t.id).second) continue;
      for (const Term child : children(t)) stack.push_back(child);
    }
  }

  // Terms are deep: translated without recursion.
  NodeId translate(Term root) {
    std::vector<Term> stack{root};
    while (!stack.empty()) {
      const Term t = stack.back();
      if (done_.contains(t.id)) {
        stack.pop_back();
        continue;
      }
      bool ready = true;
      for (const Term child : children(t)) {
        if (!done_.contains(child.id)) {
          stack.push_back(child);
          ready = false;
        }
      }
      if (!ready) continue;
      done_.emplace(t.id, build(t));
      stack.pop_back();
    }
    return done_.at(root.id);
  }

  std::vector<Term> children(Term t) const {
    switch (algebra_.kind(t)) {
      case TermKind::kSum:
      case TermKind::kProduct: {
        std::vector<Term> result;
        for (const auto& part : algebra_.parts(t)) result.push_back(part.term);
        return result;
      }
      case TermKind::kExp:
      case TermKind::kSqrt:
      case TermKind::kFunction:
      case TermKind::kIndicator:
        return algebra_.arguments(t);
      default:
        return {};
    }
  }

  NodeId build(Term t) {
    switch (algebra_.kind(t)) {
      case TermKind::kConstant:
        return number(algebra_.constantValue(t));
      case TermKind::kNegativeInfinity:
        throw Unsupported("minus infinity outside of an exponential");
      case TermKind::kVariable: {
        const std::uint32_t v = algebra_.variableIndex(t);
        const bool integer = algebra_.variableIsInteger(v) && laws_ == Laws::kAll;
        return node(SmtKind::kVariable, integer ? SmtSort::kInteger : SmtSort::kReal, v, {});
      }
      case TermKind::kSum: {
        std::vector<NodeId> summands;
        if (const Rational c = algebra_.constantValue(t); !c.isZero())
          summands.push_back(number(c));
        for (const auto& part : algebra_.parts(t)) {
          const NodeId x = real(done_.at(part.term.id));
          summands.push_back(part.factor.isOne() ? x : product({number(part.factor), x}));
        }
        return summands.size() == 1 ? summands[0]
                                    : node(SmtKind::kSum, SmtSort::kReal, 0, summands);
      }
      case TermKind::kProduct: {
        std::vector<NodeId> factors;
        for (const auto& part : algebra_.parts(t))
          appendPower(real(done_.at(part.term.id)), part.factor, factors,
                      notNeeded_.contains(part.term.id), algebra_.mayBeInfinite(t));
        return product(factors);
      }
      case TermKind::kExp: {
        const NodeId e = apply("f_exp", {real(done_.at(algebra_.arguments(t)[0].id))},
                               SmtSort::kReal, Rational(1), false);
        fact(algebra_.mayBeInfinite(algebra_.arguments(t)[0]) ? notNegative(e) : positive(e));
        factAbout("f_exp", 0, Rational(1));
        return e;
      }
      case TermKind::kSqrt: {
        const NodeId x = real(done_.at(algebra_.arguments(t)[0].id));
        const NodeId e = apply("f_sqrt", {x}, SmtSort::kReal, std::nullopt, true);
        // Both sides are compared only where the model is defined, and there no argument of a root
        // that is needed is negative.
        const bool needed = !notNeeded_.contains(t.id);
        if (needed) fact(notNegative(x));
        fact(notNegative(e));
        const NodeId square = node(SmtKind::kEqual, SmtSort::kBoolean, 0, {product({e, e}), x});
        fact(needed ? square : either(negative(x), square));
        return e;
      }
      case TermKind::kFunction: {
        const ops::Function f = algebra_.function(t);
        std::vector<NodeId> arguments;
        for (const Term a : algebra_.arguments(t)) arguments.push_back(real(done_.at(a.id)));
        if (f == ops::Function::kStep && laws_ == Laws::kAll)
          return node(SmtKind::kIndicator, SmtSort::kReal, 0, {positive(arguments[0])});
        std::string name = std::string("f_") + ops::name(f);
        for (const std::int64_t p : algebra_.parameters(t)) name += "_" + std::to_string(p);
        name +=
            "/" + std::to_string(
                      arguments.size());  // a maximum of three is another function than one of two
        const auto known = valueAt(f);
        const NodeId value =
            apply(name, arguments,
                  f == ops::Function::kGateChoice && laws_ == Laws::kAll ? SmtSort::kInteger
                                                                         : SmtSort::kReal,
                  known           ? std::optional(known->second)
                  : isExtremum(f) ? std::nullopt
                                  : std::optional(Rational(1)),
                  isLawless(f));
        if (known) factAbout(name, known->first, known->second);
        if (isExtremum(f)) {
          std::vector<NodeId> one;
          for (const NodeId a : arguments) {
            const bool most = f == ops::Function::kMaximum;
            fact(node(SmtKind::kAtLeast, SmtSort::kBoolean, 0,
                      {most ? value : a, most ? a : value}));
            one.push_back(node(SmtKind::kEqual, SmtSort::kBoolean, 0, {value, a}));
          }
          fact(node(SmtKind::kOr, SmtSort::kBoolean, 0, one));
        }
        return value;
      }
      case TermKind::kIndicator: {
        const NodeId index = done_.at(algebra_.arguments(t)[0].id);
        if (laws_ == Laws::kNone)
          return apply("f_is_" + std::to_string(algebra_.parameters(t)[0]), {real(index)},
                       SmtSort::kReal, Rational(1), false);
        const NodeId value = number(Rational(algebra_.parameters(t)[0]), sort(index));
        return node(SmtKind::kIndicator, SmtSort::kReal, 0,
                    {node(SmtKind::kEqual, SmtSort::kBoolean, 0, {index, value})});
      }
    }
    throw std::logic_error("unknown term kind");
  }

  // Does the normal form (src/core/terms/term_normal.cpp, term_raw.cpp) know of this function no
  // more than that equal arguments give equal results?
  static bool isLawless(ops::Function f) {
    switch (f) {
      case ops::Function::kLog:
      case ops::Function::kMaskEntry:
        return false;
      default:
        return true;
    }
  }

  static bool isExtremum(ops::Function f) {
    return f == ops::Function::kMaximum || f == ops::Function::kMinimum;
  }

  // The one value of a function that both forms of terms fold.
  static std::optional<std::pair<std::int64_t, Rational>> valueAt(ops::Function f) {
    switch (f) {
      case ops::Function::kSigmoid:
      case ops::Function::kNormalCdf:
        return std::pair{0, Rational(1, 2)};
      case ops::Function::kTanh:
        return std::pair{0, Rational(0)};
      case ops::Function::kLog:
        return std::pair{1, Rational(0)};
      default:
        return std::nullopt;
    }
  }
  void factAbout(const std::string& function, std::int64_t argument, const Rational& value) {
    const NodeId applied =
        apply(function, {number(Rational(argument))}, SmtSort::kReal, value, false);
    fact(node(SmtKind::kEqual, SmtSort::kBoolean, 0, {applied, number(value)}));
  }

  void appendPower(NodeId x, const Rational& exponent, std::vector<NodeId>& factors, bool notNeeded,
                   bool mayVanish) {
    if (exponent.fitsInt64()) return appendIntegerPower(x, exponent.toInt64(), factors, notNeeded);
    // base^(p/2) or exp(a)^q: an uninterpreted function of the base that is at least positive.
    const NodeId e =
        apply("f_pow_" + exponent.toString(), {x}, SmtSort::kReal, std::nullopt, false);
    fact(exponent.sign() > 0 || notNeeded || mayVanish ? notNegative(e) : positive(e));
    if (const Rational twice = exponent * Rational(2); twice.fitsInt64()) {
      std::vector<NodeId> square;
      appendIntegerPower(x, twice.toInt64(), square, notNeeded);
      const NodeId same =
          node(SmtKind::kEqual, SmtSort::kBoolean, 0, {product({e, e}), product(square)});
      fact(notNeeded ? either(negative(x), same) : same);
    }
    factors.push_back(e);
  }

  void appendIntegerPower(NodeId x, std::int64_t n, std::vector<NodeId>& factors, bool notNeeded) {
    if (n < 0) {
      // 1/x as a number that is named by x: division in the solvers' logic is total and would say
      // nothing about x = 0, which neither side is defined for.
      const NodeId inverse = apply("f_inverse", {x}, SmtSort::kReal, std::nullopt, true);
      const NodeId one =
          node(SmtKind::kEqual, SmtSort::kBoolean, 0, {product({x, inverse}), number(Rational(1))});
      const NodeId zero = number(Rational(0));
      fact(notNeeded ? either(node(SmtKind::kEqual, SmtSort::kBoolean, 0, {x, zero}), one) : one);
      x = inverse;
      n = -n;
    }
    if (n > 64) throw Unsupported("a power above 64 for the solver");
    factors.insert(factors.end(), static_cast<std::size_t>(n), x);
  }

  NodeId product(const std::vector<NodeId>& factors) {
    if (factors.empty()) return number(Rational(1));
    return factors.size() == 1 ? factors[0] : node(SmtKind::kProduct, SmtSort::kReal, 0, factors);
  }
  NodeId notNegative(NodeId x) {
    return node(SmtKind::kAtLeast, SmtSort::kBoolean, 0, {x, number(Rational(0))});
  }
  NodeId negative(NodeId x) {
    return node(SmtKind::kGreater, SmtSort::kBoolean, 0, {number(Rational(0)), x});
  }
  NodeId either(NodeId a, NodeId b) { return node(SmtKind::kOr, SmtSort::kBoolean, 0, {a, b}); }
  NodeId positive(NodeId x) {
    return node(SmtKind::kGreater, SmtSort::kBoolean, 0, {x, number(Rational(0))});
  }
  NodeId real(NodeId x) {
    return sort(x) == SmtSort::kInteger ? node(SmtKind::kToReal, SmtSort::kReal, 0, {x}) : x;
  }
  SmtSort sort(NodeId x) const { return query_.nodes[x].sort; }

  NodeId number(const Rational& value, SmtSort as = SmtSort::kReal) {
    const auto [it, inserted] =
        numbers_.emplace(value.toString(), static_cast<std::uint32_t>(query_.numbers.size()));
    if (inserted) query_.numbers.push_back(value);
    return node(SmtKind::kNumber, as, it->second, {});
  }

  NodeId apply(const std::string& name, const std::vector<NodeId>& arguments, SmtSort result,
               const std::optional<Rational>& constant, bool lawless) {
    const auto [it, inserted] =
        symbols_.emplace(name, static_cast<std::uint32_t>(query_.symbols.size()));
    if (inserted)
      query_.symbols.push_back({name, static_cast<std::uint32_t>(arguments.size()), result,
                                laws_ == Laws::kAll ? constant : std::optional(Rational(1)),
                                lawless && laws_ == Laws::kAll});
    return node(SmtKind::kApply, result, it->second, arguments);
  }

  void fact(NodeId condition) {
    if (laws_ == Laws::kNone) return;
    if (known_.insert(condition).second) query_.facts.push_back(condition);
  }

  // Equal content is one node.
  NodeId node(SmtKind kind, SmtSort nodeSort, std::uint32_t data,
              const std::vector<NodeId>& operands) {
    std::vector<std::uint32_t> content{
        static_cast<std::uint32_t>(kind) << 8 | static_cast<std::uint32_t>(nodeSort), data};
    content.insert(content.end(), operands.begin(), operands.end());
    const auto [it, inserted] =
        nodes_.emplace(std::move(content), static_cast<NodeId>(query_.nodes.size()));
    if (inserted) {
      query_.nodes.push_back({kind, nodeSort, data,
                              static_cast<std::uint32_t>(query_.operands.size()),
                              static_cast<std::uint32_t>(operands.size())});
      query_.operands.insert(query_.operands.end(), operands.begin(), operands.end());
    }
    return it->second;
  }

  const TermAlgebra& algebra_;
  const Laws laws_;
  std::unordered_set<std::uint32_t> notNeeded_;  // terms, for values at which both sides have one
  SmtQuery query_;
  std::unordered_map<std::uint32_t, NodeId> done_;
  std::map<std::vector<std::uint32_t>, NodeId> nodes_;
  std::map<std::string, std::uint32_t> numbers_, symbols_;
  std::set<NodeId> known_;
};

}  // namespace

SmtQuery buildQuery(const TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& pairs,
                    Laws laws) {
  return QueryBuilder(algebra, laws).build(pairs);
}

}  // namespace shardproof
