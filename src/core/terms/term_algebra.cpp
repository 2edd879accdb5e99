// SPDX-License-Identifier: Apache-2.0
#include "terms/term_algebra.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "terms/domain.h"
#include "terms/fractions.h"
#include "terms/term_store.h"

namespace shardproof {
namespace {

std::vector<TermId> ids(std::span<const Term> terms) {
  std::vector<TermId> result;
  result.reserve(terms.size());
  for (const Term t : terms) result.push_back(t.id);
  return result;
}

constexpr std::int64_t kMostHalves = 1 << 20;

// s and y with x = s y by its form, s a step: step(s y) = s step(y) then, as s is 0 or 1, and both
// are 0 where it is 0. So the sign of relu(y) is that of y: a gradient may take its mask from the
// result.
std::optional<std::pair<Term, Term>> withoutStep(TermAlgebra& algebra, Term x) {
  using Part = TermAlgebra::Part;
  if (algebra.kind(x) != TermKind::kProduct && algebra.kind(x) != TermKind::kSum)
    return std::nullopt;
  if (algebra.kind(x) == TermKind::kSum && !algebra.constantValue(x).isZero()) return std::nullopt;
  const auto isStep = [&](Term t) {
    return algebra.kind(t) == TermKind::kFunction && algebra.function(t) == ops::Function::kStep;
  };
  const auto factorsOf = [&](Term t) {
    return algebra.kind(t) == TermKind::kProduct ? algebra.parts(t)
                                                 : std::vector<Part>{{Rational(1), t}};
  };
  const auto has = [&](Term summand, Term s) {
    const auto factors = factorsOf(summand);
    return std::any_of(factors.begin(), factors.end(),
                       [&](const Part& f) { return f.term.id == s.id && f.factor.isOne(); });
  };
  const std::vector<Part> summands =
      algebra.kind(x) == TermKind::kSum ? algebra.parts(x) : std::vector<Part>{{Rational(1), x}};
  std::optional<Term> common;
  for (const Part& f : factorsOf(summands.front().term))
    if (!common && isStep(f.term) &&
        std::all_of(summands.begin(), summands.end(), [&](auto& s) { return has(s.term, f.term); }))
      common = f.term;
  if (!common) return std::nullopt;
  std::vector<Term> rest;
  for (const Part& summand : summands) {
    Term product = algebra.constant(Rational(1));
    for (const Part& f : factorsOf(summand.term)) {
      if (f.term.id == common->id) continue;
      const Rational halves = f.factor * Rational(2);
      if (!halves.isInteger() || !halves.fitsInt64() || std::abs(halves.toInt64()) > kMostHalves)
        return std::nullopt;
      product = algebra.mul(product, algebra.power(f.term, static_cast<int>(halves.toInt64())));
    }
    rest.push_back(algebra.scale(summand.factor, product));
  }
  return std::pair(*common, algebra.sum(rest, {}));
}

}  // namespace

TermAlgebra::TermAlgebra(Mode mode, std::size_t maxTerms)
    : store_(std::make_unique<Store>(mode, maxTerms)),
      conditions_(std::make_unique<Conditions>()),
      fractions_(mode == Mode::kFractions ? std::make_unique<Fractions>(*store_) : nullptr) {}
TermAlgebra::~TermAlgebra() = default;
// The domain knows its algebra by address: another one is made when needed.
TermAlgebra::TermAlgebra(TermAlgebra&& other) noexcept
    : store_(std::move(other.store_)),
      conditions_(std::move(other.conditions_)),
      fractions_(std::move(other.fractions_)),
      selected_(std::move(other.selected_)) {
  other.domain_.reset();
}
TermAlgebra& TermAlgebra::operator=(TermAlgebra&& other) noexcept {
  store_ = std::move(other.store_);
  conditions_ = std::move(other.conditions_);
  fractions_ = std::move(other.fractions_);
  selected_ = std::move(other.selected_);
  domain_.reset();
  other.domain_.reset();
  return *this;
}

Term TermAlgebra::variable(bool integer, const TensorFacts& facts) {
  const TermId id = store_->newVariable(integer);
  store_->variableSign.push_back(facts.sign);
  if (facts.mayBeInfinite) store_->nodes[id].meta |= Store::kMasked;
  return {id};
}
Sign TermAlgebra::variableSign(std::uint32_t variable) const {
  return store_->variableSign.at(variable);
}
std::size_t TermAlgebra::variableCount() const { return store_->integerVariable.size(); }
bool TermAlgebra::variableIsInteger(std::uint32_t variable) const {
  return store_->integerVariable.at(variable);
}

Term TermAlgebra::constant(const Rational& value) {
  return {store_->internConstant(store_->rationals.encode(value))};
}
Term TermAlgebra::negativeInfinity() { return {Store::kInfinityTerm}; }

Term TermAlgebra::add(Term a, Term b) {
  const Term both[2] = {a, b};
  return sum(both, {});
}

Term TermAlgebra::mul(Term a, Term b) {
  const ConditionSet condition = conditions_->unite(a.condition, b.condition);
  if (store_->mode != Mode::kRaw) {
    // x step(x) = x for x >= 0: what is a magnitude is that of itself.
    if (kind(b) == TermKind::kFunction && function(b) == ops::Function::kStep &&
        arguments(b)[0].id == a.id && domain().sign(a) != Sign::kUnknown)
      return {a.id, condition};
    // As for scale(). What is not a constant may be zero or negative.
    const auto positive = [&](Term t) {
      return kind(t) == TermKind::kConstant && constantValue(t).sign() > 0;
    };
    if ((store_->mayBeInfinite(a.id) && !positive(b)) ||
        (store_->mayBeInfinite(b.id) && !positive(a))) {
      throw Unsupported(
          "minus infinity (the entry of a mask) times a term that is not a positive constant");
    }
  }
  return {
      store_->mode != Mode::kRaw ? store_->multiply(a.id, b.id) : store_->rawMultiply(a.id, b.id),
      condition};
}

Term TermAlgebra::scale(const Rational& factor, Term a) {
  // inf - inf and 0 * inf have no value, so a masked entry must not cancel or vanish.
  if (factor.sign() <= 0 && store_->mode != Mode::kRaw && store_->mayBeInfinite(a.id)) {
    throw Unsupported("minus infinity (the entry of a mask) times a number that is not positive");
  }
  const Code c = store_->rationals.encode(factor);
  return {store_->mode != Mode::kRaw ? store_->scale(c, a.id) : store_->rawScale(c, a.id),
          a.condition};
}

Term TermAlgebra::sum(std::span<const Term> terms, std::span<const std::int64_t> weights) {
  TermId id =
      store_->mode != Mode::kRaw ? store_->sum(terms, weights) : store_->rawSum(terms, weights);
  if (fractions_) id = fractions_->ofSum(id);
  return {id, conditionsOf(terms)};
}

bool TermAlgebra::storesPartialSums() const { return store_->mode != Mode::kRaw; }

ConditionSet TermAlgebra::partial(Term base, int halves) {
  if (store_->mode == Mode::kRaw || store_->kind(base.id) == TermKind::kConstant)
    return base.condition;  // of constants: known, or refused
  return conditions_->unite(base.condition, domain().of(base, halves));
}

Domain& TermAlgebra::domain() {
  if (!domain_) domain_ = std::make_unique<Domain>(*this);
  return *domain_;
}

ConditionSet TermAlgebra::conditionsOf(std::span<const Term> terms) {
  ConditionSet all = 0;
  for (const Term t : terms) {
    if (t.condition != all) all = conditions_->unite(all, t.condition);
  }
  return all;
}

void TermAlgebra::refuseInfinite(Term t, const char* where) const {
  if (store_->mayBeInfinite(t.id))
    throw Unsupported(std::string("minus infinity (the entry of a mask) ") + where);
}

Term TermAlgebra::power(Term base, int halves) {
  if (halves != 2) refuseInfinite(base, "to a power");
  const TermId id = store_->mode != Mode::kRaw ? store_->power(base.id, halves)
                                               : store_->rawPower(base.id, halves);
  return {id, halves < 0 || halves % 2 != 0 ? partial(base, halves) : base.condition};
}

Term TermAlgebra::exp(Term a) {
  return {store_->mode != Mode::kRaw ? store_->exp(a.id) : store_->rawExp(a.id), a.condition};
}

Term TermAlgebra::apply(ops::Function f, std::span<const std::int64_t> params,
                        std::span<const Term> arguments) {
  // Sums, exp, extrema and positive factors are defined on it, and nothing else: sin(x) - sin(x)
  // is 0 for numbers only.
  if (!ops::isSymmetric(f))
    for (const Term t : arguments)
      refuseInfinite(t, (std::string("as an argument of ") + ops::name(f)).c_str());
  if (fractions_ && arguments.size() == 1 && !store_->mayBeInfinite(arguments[0].id)) {
    const Term x = arguments[0];
    const Term one = constant(Rational(1));
    if (f == ops::Function::kSigmoid)  // 1 / (1 + exp(-x)), defined wherever x is
      return power(add(one, exp(scale(Rational(-1), x))), -2);
    if (f == ops::Function::kTanh)  // 1 - 2 / (1 + exp(2x)), likewise
      return add(one, scale(Rational(-2), power(add(one, exp(scale(Rational(2), x))), -2)));
    if (f == ops::Function::kLog) return logarithmOfFactors(x);
  }
  if (f == ops::Function::kStep && store_->mode != Mode::kRaw) {
    const Term x = arguments[0];
    if (domain().sign(x) == Sign::kPositive) return {Store::kOneTerm, x.condition};
    if (domain().neverPositive(x)) return {Store::kZeroTerm, x.condition};
    if (const auto chosen = withoutStep(*this, x)) {
      Term result = mul(chosen->first, apply(f, params, {&chosen->second, 1}));
      result.condition = x.condition;
      return result;
    }
  }
  const std::vector<TermId> a = ids(arguments);
  const TermId id =
      store_->mode != Mode::kRaw ? store_->apply(f, params, a) : store_->rawApply(f, params, a);
  return {id, f == ops::Function::kLog ? partial(arguments[0], 0) : conditionsOf(arguments)};
}

// log(a^k b) = k log(a) + log(b) where a is positive wherever it is defined: both sides are defined
// where b is positive.
Term TermAlgebra::logarithmOfFactors(Term x) {
  const ConditionSet condition = partial(x, 0);
  TermId rest = x.id;
  std::vector<Term> logarithms;
  if (store_->kind(x.id) == TermKind::kSum && !store_->isProperSum(x.id))
    rest = store_->parts(x.id).term(0);
  if (store_->kind(rest) == TermKind::kProduct) {
    std::vector<Term> positive;
    for (const Part& factor : parts(Term{rest})) {
      // Exponentials come out of any logarithm.
      if (kind(factor.term) == TermKind::kExp || domain().sign(factor.term) != Sign::kPositive)
        continue;
      const TermId argument = factor.term.id;
      logarithms.push_back(
          scale(factor.factor, {store_->apply(ops::Function::kLog, {}, std::span(&argument, 1))}));
      positive.push_back({store_->internProduct(
          std::vector<Entry>{{argument, store_->rationals.encode(-factor.factor)}})});
    }
    rest = x.id;
    for (const Term p : positive) rest = store_->multiply(rest, p.id);
  } else {
    rest = x.id;
  }
  logarithms.push_back({store_->apply(ops::Function::kLog, {}, std::span(&rest, 1))});
  Term result = sum(logarithms, {});
  result.condition = condition;
  return result;
}

Term TermAlgebra::indicator(Term index, std::int64_t value) {
  refuseInfinite(index, "as an index");
  if (store_->mode == Mode::kRaw) return {store_->rawIndicator(index.id, value), index.condition};
  // Of what is 0 or 1 by its form: itself, or 1 minus it.
  if (value == 1 && isChoice(index)) return index;
  if (value == 0 && isChoice(index)) return add(constant(Rational(1)), scale(Rational(-1), index));
  return {store_->indicator(index.id, value), index.condition};
}

Term TermAlgebra::select(Term indicator, Term t) {
  if (indicator.id == Store::kZeroTerm) return indicator;  // known not to be taken, whatever it is
  if (store_->mode == Mode::kRaw && store_->kind(indicator.id) != TermKind::kConstant &&
      store_->kind(t.id) != TermKind::kVariable && store_->kind(t.id) != TermKind::kConstant)
    selected_.push_back(t);
  Term selected = mul(indicator, t);
  if (t.condition == 0 || !isChoice(indicator) || store_->kind(indicator.id) == TermKind::kConstant)
    return selected;
  // [i = 1] [i = 2] is the term 0, whose number would say that there is no guard.
  const auto both = [&](std::uint32_t guard) -> std::optional<std::uint32_t> {
    if (guard == 0) return indicator.id;
    const TermId together = store_->multiply(guard, indicator.id);
    if (together == Store::kZeroTerm) return std::nullopt;
    return together;
  };
  selected.condition = conditions_->unite(indicator.condition,
                                          conditions_->guarded(t.condition, indicator.id, both));
  return selected;
}

bool TermAlgebra::isChoice(Term t) const {
  switch (kind(t)) {
    case TermKind::kConstant:
      return constantValue(t).isZero() || constantValue(t).isOne();
    case TermKind::kIndicator:
      return true;
    case TermKind::kFunction:
      return function(t) == ops::Function::kStep || function(t) == ops::Function::kDropoutMask;
    case TermKind::kProduct: {
      const std::vector<Part> factors = parts(t);
      return std::all_of(factors.begin(), factors.end(), [&](const Part& f) {
        return f.factor.isInteger() && f.factor.sign() > 0 && isChoice(f.term);
      });
    }
    case TermKind::kSum: {
      // Indicators of one index at different values: at most one of them is 1.
      const std::vector<Part> terms = parts(t);
      const Rational constant = constantValue(t);
      if (!constant.isZero() && !constant.isOne()) return false;
      const Rational sign(constant.isZero() ? 1 : -1);
      const bool alike =
          std::all_of(terms.begin(), terms.end(), [&](const Part& p) { return p.factor == sign; });
      if (!alike) return false;
      if (terms.size() == 1) return isChoice(terms[0].term);
      return std::all_of(terms.begin(), terms.end(), [&](const Part& p) {
        return kind(p.term) == TermKind::kIndicator &&
               arguments(p.term) == arguments(terms[0].term);
      });
    }
    default:
      return false;
  }
}

bool TermAlgebra::isZero(Term t) const {
  return t.id == Store::kZeroTerm && t.condition == 0;
}  // what is skipped would lose its conditions

TermKind TermAlgebra::kind(Term t) const { return store_->kind(t.id); }

Rational TermAlgebra::constantValue(Term t) const {
  const Code c = store_->kind(t.id) == TermKind::kSum ? store_->parts(t.id).constant
                                                      : store_->nodes[t.id].data;
  return store_->rationals.decode(c);
}

std::uint32_t TermAlgebra::variableIndex(Term t) const { return store_->nodes[t.id].data; }

std::vector<TermAlgebra::Part> TermAlgebra::parts(Term t) const {
  const Store::Parts p = store_->parts(t.id);
  std::vector<Part> result;
  result.reserve(p.size);
  for (std::uint32_t i = 0; i < p.size; ++i)
    result.push_back({store_->rationals.decode(p.code(i)), {p.term(i)}});
  return result;
}

std::vector<Term> TermAlgebra::arguments(Term t) const {
  std::vector<Term> result;
  for (const TermId a : store_->children(t.id)) result.push_back({a});
  return result;
}

ops::Function TermAlgebra::function(Term t) const { return store_->functionOf(t.id); }

std::vector<std::int64_t> TermAlgebra::parameters(Term t) const {
  if (store_->kind(t.id) == TermKind::kIndicator) return {store_->indicatorValue(t.id)};
  return store_->functionParts(t.id).parameters;
}

std::size_t TermAlgebra::termCount() const { return store_->nodes.size(); }
std::size_t TermAlgebra::memoryBytes() const { return store_->memoryBytes(); }

Term TermAlgebra::expand(Term t, std::size_t budget, Reciprocals reciprocals) {
  return {store_->expand(t.id, budget, reciprocals)};
}

bool TermAlgebra::equalFractions(Term a, Term b, std::size_t budget) {
  return fractions_->equal(a.id, b.id, budget);
}

int TermAlgebra::fractionSummands() const { return fractions_->summands(); }

void TermAlgebra::allowFractionSummands(int most) { fractions_->allow(most); }

bool TermAlgebra::mayBeInfinite(Term t) const { return store_->mayBeInfinite(t.id); }

}  // namespace shardproof
