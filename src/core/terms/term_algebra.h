// SPDX-License-Identifier: Apache-2.0
// The algebra of the proof: hash-consed terms with exact rational coefficients, kept in the cheap
// normal form of docs/design.md by construction (sums and products flattened and sorted, never
// distributed). Equal ids are equal terms, hence equal values wherever both are defined: every
// rewriting keeps the value wherever the term was defined, and may define it at more points (x *
// x^-1 = 1). Each rule's argument stands beside it in term_normal.cpp and term_expand.cpp. Throws
// Unsupported for what has no value (division by a term that is zero, minus infinity where a number
// is needed), and when more than maxTerms terms would be stored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardproof/rational.h"
#include "terms/conditions.h"
#include "terms/facts.h"
#include "terms/functions.h"
#include "terms/size_symbol.h"

namespace shardproof {

class Domain;

struct Term {  // a handle into the algebra's store
  std::uint32_t id = 0;
  ConditionSet condition = 0;  // under which the value exists that the term was made for
                               // (terms/conditions.h); no part of the term
  friend bool operator==(Term a, Term b) { return a.id == b.id; }
};

enum class TermKind : std::uint8_t {
  kConstant,  // a rational
  kNegativeInfinity,
  kVariable,  // real or integer input element
  kSum,       // constant + sum of coefficient * term; terms are neither sums nor constants
  kProduct,  // product of base^exponent, exponent a non-zero rational (integers, except for exp and
             // sqrt atoms)
  kExp,
  kSqrt,       // of one term
  kFunction,   // ops::Function of terms
  kIndicator,  // [term = value]
};

class TermAlgebra {
 public:
  using Element = Term;
  enum class Mode : std::uint8_t {
    kNormalized,  // the cheap normal form by construction
    kRaw,  // no simplification beyond hash-consing and constant folding: what --checker z3 is given
    kFractions,  // kNormalized, and what is defined by quotients of exponentials is written as one,
                 // and sums are put over a common denominator (fractions.h)
  };
  explicit TermAlgebra(Mode mode = Mode::kNormalized, std::size_t maxTerms = 200'000'000);
  ~TermAlgebra();
  TermAlgebra(TermAlgebra&&) noexcept;
  TermAlgebra& operator=(TermAlgebra&&) noexcept;

  // A fresh variable; `label` numbers it for the caller (variable ids are dense, 0, 1, 2, ... in
  // order of creation). `facts`: what is known of its value; that it is total says nothing here.
  Term variable(bool integer, const TensorFacts& facts = {});
  Sign variableSign(std::uint32_t variable) const;
  std::size_t variableCount() const;
  bool variableIsInteger(std::uint32_t variable) const;

  // From now on numbers are read by `size`, and the variable that is made here stands for it: a
  // positive number. Only in mode kNormalized.
  void readNumbersBy(SizeSymbol& size);
  bool readsNumbers() const { return size_ != nullptr; }
  bool isSize(Term t) const { return size_ != nullptr && t.id == sizeTerm_.id; }

  Term constant(const Rational& value);
  Term negativeInfinity();
  // A long sum is one call of `sum`, O(n log n): adding term by term would store every partial sum,
  // each with all its parts.
  Term add(Term a, Term b);
  Term mul(Term a, Term b);
  Term scale(const Rational& factor, Term a);
  Term sum(std::span<const Term> terms, std::span<const std::int64_t> weights);
  bool storesPartialSums() const;
  Term power(Term base, int halves);
  Term exp(Term a);
  Term apply(ops::Function f, std::span<const std::int64_t> params,
             std::span<const Term> arguments);
  Term indicator(Term index, std::int64_t value);
  // The product; the conditions of `t` are needed only where the indicator is 1, if that is 0 or 1
  // by its form (isChoice), and otherwise everywhere.
  Term select(Term indicator, Term t);
  // Mode::kRaw: what was chosen by indicators, variables and constants aside. Where it is not
  // chosen it need not have a value.
  const std::vector<Term>& selected() const { return selected_; }
  // Whether the term can only be 0 or 1: an indicator, a step, the mask of dropout, a product of
  // such, a sum of indicators of one index at different values, and 1 minus one of these.
  bool isChoice(Term t) const;
  bool isZero(Term t) const;

  // Every operation above unites the conditions of its operands and adds those of its own: of
  // base^(halves/2) with a negative or odd `halves`, and of a logarithm. Not in raw mode.
  Conditions& conditions() { return *conditions_; }
  const Conditions& conditions() const { return *conditions_; }
  // The condition that a value exists which the caller numbers.
  ConditionSet defined(std::uint32_t number) {
    return conditions_->single({Condition::Kind::kDefined, number, 0});
  }

  // --- inspection (for the checker, the solver and messages) ---
  TermKind kind(Term t) const;
  Rational constantValue(Term t) const;       // kConstant; kSum: its constant part
  std::uint32_t variableIndex(Term t) const;  // kVariable
  struct Part {  // of a sum: coefficient * term; of a product: term ^ exponent
    Rational factor;
    Term term;
  };
  std::vector<Part> parts(Term t) const;               // kSum, kProduct
  std::vector<Term> arguments(Term t) const;           // kExp, kSqrt, kFunction, kIndicator
  ops::Function function(Term t) const;                // kFunction
  std::vector<std::int64_t> parameters(Term t) const;  // kFunction: params; kIndicator: {value}
  std::size_t termCount() const;
  std::size_t memoryBytes() const;
  // A readable rendering; `variableName` labels variables; cut off with "..." after `limit`
  // characters. May the value be minus infinity, through an entry of a mask, also as the largest of
  // several?
  bool mayBeInfinite(Term t) const;
  std::string toString(Term t, const std::vector<std::string>& variableNames,
                       std::size_t limit = 400) const;

  // The full normal form: expanded to a polynomial over atoms (variables, opaque applications on
  // normalised arguments, reciprocals of sums, exponentials, indicators). Throws
  // Unsupported("...budget...") when more than `budget` monomials would be needed.
  // Reciprocals::kAtoms leaves out that x/(x+y) + y/(x+y) is 1.
  enum class Reciprocals { kAtoms, kDivided };
  Term expand(Term t, std::size_t budget, Reciprocals reciprocals = Reciprocals::kDivided);

  // --- Mode::kFractions ---
  // Whether the two are equal once both are multiplied by what they divide by. Throws Unsupported
  // when more than `budget` monomials would be needed.
  bool equalFractions(Term a, Term b, std::size_t budget);
  // For how many summands more than an element and one summand positions must be kept apart for
  // all that has been put over common denominators so far (ReductionOptions::extraSummands).
  int fractionSummands() const;
  // What would need more than `most` throws Unsupported as soon as that is known.
  void allowFractionSummands(int most);

 private:
  struct Store;
  struct Fractions;
  Term logarithmOfFactors(Term a);
  ConditionSet partial(Term base, int halves);
  Domain& domain();
  void refuseInfinite(Term t, const char* where) const;  // throws Unsupported
  // Numbers that are no factors or summands may not depend on the size. Throws Unsupported.
  void expectSmall(std::span<const std::int64_t> numbers) const;
  // (number.constant + number.slope m) m^number.power times a, for the size m.
  Term timesSized(const SizedNumber& number, Term a);
  // factor m^power times a, each summand of it by itself.
  Term timesPowerOfSize(const Rational& factor, int power, Term a);
  // A sum as what each of its summands is multiplied with, polynomials in the size (by power), and
  // the rest, by the rest's id. Nothing where the size stands in a root.
  struct SizedSummand {
    Term rest;
    std::map<int, Rational> powers;
  };
  using SizedSummands = std::map<std::uint32_t, SizedSummand>;
  std::optional<SizedSummands> sizedSummands(Term sum);
  // The same, where all polynomials are multiples of one: that one, which is not 1, and the sum of
  // the rests. A product has the polynomial outside of its factors.
  std::optional<SizedSummand> withoutPolynomial(Term sum);
  // The exact quotient by divisor.constant + divisor.slope m, if a has that as a factor.
  std::optional<Term> dividedBy(const LinearNumber& divisor, Term a);
  std::optional<Term> quotientOfSum(const LinearNumber& divisor, Term a);
  Term scaleByConstant(const Rational& factor, Term a);
  Term ofConstant(const Rational& value);
  ConditionSet conditionsOf(std::span<const Term> terms);

  std::unique_ptr<Store> store_;
  std::unique_ptr<Conditions> conditions_;
  std::unique_ptr<Domain> domain_;        // made when first needed: domain()
  std::unique_ptr<Fractions> fractions_;  // with Mode::kFractions
  std::vector<Term> selected_;
  SizeSymbol* size_ = nullptr;
  Term sizeTerm_;
};

}  // namespace shardproof
