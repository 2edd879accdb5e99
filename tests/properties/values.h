// SPDX-License-Identifier: Apache-2.0
// The value of a term in another algebra.
#pragma once

#include <cmath>
#include <unordered_map>
#include <vector>

#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof::test {

// exp(x)^(p/q): exp atoms have rational exponents in the normal form.
inline double fractionalPower(DoubleAlgebra&, double base, const Rational& exponent) {
  return std::pow(base, exponent.toDouble());
}
inline ModularAlgebra::Element fractionalPower(ModularAlgebra&, ModularAlgebra::Element,
                                               const Rational&) {
  throw Unsupported("a root of a fingerprint");
}

// The normal form has exp(a - b) as exp(a) exp(b)^-1, and each of these may be beyond what doubles
// hold.
inline bool beyondDoubles(double power) {
  return power != 0 ? !(std::abs(power) < 1e100 && std::abs(power) > 1e-100) : true;
}
inline bool beyondDoubles(const ModularAlgebra::Element&) { return false; }

template <class A>
class TermValues {
 public:
  using Element = typename A::Element;
  TermValues(const TermAlgebra& terms, A& algebra, const std::vector<Element>& point)
      : terms_(terms), algebra_(algebra), point_(point) {}

  Element of(Term t) {
    if (const auto it = known_.find(t.id); it != known_.end()) return it->second;
    const Element value = compute(t);
    known_.emplace(t.id, value);
    return value;
  }
  // Some power on the way was too large or too small.
  bool extreme() const { return extreme_; }
  // Every value that was met on the way.
  const std::unordered_map<std::uint32_t, Element>& known() const { return known_; }

 private:
  Element compute(Term t) {
    switch (terms_.kind(t)) {
      case TermKind::kConstant:
        return algebra_.constant(terms_.constantValue(t));
      case TermKind::kNegativeInfinity:
        return algebra_.negativeInfinity();
      case TermKind::kVariable:
        return point_.at(terms_.variableIndex(t));
      case TermKind::kSum: {
        std::vector<Element> summands{algebra_.constant(terms_.constantValue(t))};
        for (const auto& part : terms_.parts(t))
          summands.push_back(algebra_.scale(part.factor, of(part.term)));
        return algebra_.sum(summands, {});
      }
      case TermKind::kProduct: {
        Element product = algebra_.constant(Rational(1));
        for (const auto& part : terms_.parts(t)) {
          const Element base = of(part.term);
          const Element factor =
              part.factor.fitsInt64()
                  ? algebra_.power(base, static_cast<int>(2 * part.factor.toInt64()))
                  : fractionalPower(algebra_, base, part.factor);
          extreme_ =
              extreme_ || (terms_.kind(part.term) == TermKind::kExp && beyondDoubles(factor));
          product = algebra_.mul(product, factor);
        }
        return product;
      }
      case TermKind::kExp:
        return algebra_.exp(of(terms_.arguments(t)[0]));
      case TermKind::kSqrt:
        return algebra_.power(of(terms_.arguments(t)[0]), 1);
      case TermKind::kFunction: {
        std::vector<Element> arguments;
        for (const Term a : terms_.arguments(t)) arguments.push_back(of(a));
        return algebra_.apply(terms_.function(t), terms_.parameters(t), arguments);
      }
      case TermKind::kIndicator:
        return algebra_.indicator(of(terms_.arguments(t)[0]), terms_.parameters(t)[0]);
    }
    throw std::logic_error("unknown term kind");
  }

  const TermAlgebra& terms_;
  A& algebra_;
  const std::vector<Element>& point_;
  std::unordered_map<std::uint32_t, Element> known_;
  bool extreme_ = false;
};

}  // namespace shardproof::test
