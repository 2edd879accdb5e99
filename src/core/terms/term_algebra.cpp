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
      selected_(std::move(other.selected_)),
      size_(other.size_),
      sizeTerm_(other.sizeTerm_) {
  other.domain_.reset();
}
TermAlgebra& TermAlgebra::operator=(TermAlgebra&& other) noexcept {
  store_ = std::move(other.store_);
  conditions_ = std::move(other.conditions_);
  fractions_ = std::move(other.fractions_);
  selected_ = std::move(other.selected_);
  size_ = other.size_;
  sizeTerm_ = other.sizeTerm_;
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

void TermAlgebra::readNumbersBy(SizeSymbol& size) {
  if (store_->mode != Mode::kNormalized || size_ != nullptr)
    throw std::logic_error("numbers are read by a size in the normal form only, and by one");
  sizeTerm_ = variable(false, {.sign = Sign::kPositive});
  size_ = &size;
}

Term TermAlgebra::ofConstant(const Rational& value) {
  return {store_->internConstant(store_->rationals.encode(value))};
}

Term TermAlgebra::constant(const Rational& value) {
  if (size_ == nullptr) return ofConstant(value);
  const SizedNumber number = size_->note(value);
  return number.dependsOnSize() ? timesSized(number, ofConstant(Rational(1)))
                                : ofConstant(number.constant);
}

Term TermAlgebra::timesPowerOfSize(const Rational& factor, int power, Term a) {
  if (power == 0) return scaleByConstant(factor, a);
  constexpr int kMostPower = 1 << 10;
  if (std::abs(power) > kMostPower) throw Unsupported("a high power of the size");
  const Term sized = {store_->power(sizeTerm_.id, 2 * power)};
  if (kind(a) != TermKind::kSum) return scaleByConstant(factor, mul(sized, a));
  std::vector<Term> summands{scaleByConstant(constantValue(a), sized)};
  for (const Part& part : parts(a))
    summands.push_back(scaleByConstant(part.factor, mul(sized, part.term)));
  Term result = scaleByConstant(factor, {store_->sum(summands, {})});
  result.condition = a.condition;
  return result;
}

std::optional<TermAlgebra::SizedSummands> TermAlgebra::sizedSummands(Term a) {
  SizedSummands summands;
  const auto place = [&](const Rational& factor, Term t) {
    int power = 0;
    Term rest = t;
    if (isSize(t)) {
      power = 1;
      rest = ofConstant(Rational(1));
    } else if (kind(t) == TermKind::kProduct) {
      for (const Part& part : parts(t)) {
        if (!isSize(part.term)) continue;
        if (!part.factor.isInteger()) return false;
        power = static_cast<int>(part.factor.toInt64());
        rest = {store_->multiply(t.id, store_->power(sizeTerm_.id, -2 * power))};
      }
    }
    SizedSummand& summand = summands[rest.id];
    summand.rest = rest;
    summand.powers[power] += factor;
    return true;
  };
  if (!constantValue(a).isZero() && !place(constantValue(a), ofConstant(Rational(1))))
    return std::nullopt;
  for (const Part& part : parts(a))
    if (!place(part.factor, part.term)) return std::nullopt;
  return summands;
}

std::optional<TermAlgebra::SizedSummand> TermAlgebra::withoutPolynomial(Term sum) {
  const auto summands = sizedSummands(sum);
  if (!summands || summands->empty()) return std::nullopt;
  SizedSummand result{sum, summands->begin()->second.powers};
  if (result.powers.size() == 1 && result.powers.begin()->first == 0) return std::nullopt;
  // So that it does not matter which summand is first.
  const Rational leading = result.powers.rbegin()->second;
  for (auto& [power, factor] : result.powers) factor = factor / leading;
  std::vector<Term> rests;
  for (const auto& [id, summand] : *summands) {
    const Rational multiple = summand.powers.rbegin()->second;
    bool same = summand.powers.size() == result.powers.size();
    for (const auto& [power, factor] : result.powers) {
      const auto it = summand.powers.find(power);
      same = same && it != summand.powers.end() && it->second == multiple * factor;
    }
    if (!same) return std::nullopt;
    rests.push_back(scaleByConstant(multiple, summand.rest));
  }
  result.rest = {store_->sum(rests, {}), sum.condition};
  return result;
}

std::optional<Term> TermAlgebra::quotientOfSum(const LinearNumber& divisor, Term a) {
  auto summands = sizedSummands(a);
  if (!summands) return std::nullopt;
  std::vector<Term> quotient;
  for (auto& [id, summand] : *summands) {
    auto& powers = summand.powers;
    const int lowest = powers.begin()->first;
    for (int k = powers.rbegin()->first; k > lowest; --k) {
      const Rational c = powers[k] / divisor.slope;
      if (c.isZero()) continue;
      powers[k - 1] += -(c * divisor.constant);
      quotient.push_back(timesPowerOfSize(c, k - 1, summand.rest));
    }
    if (powers[lowest].isZero()) continue;
    // What does not have the size may have the divisor in one of its factors.
    if (powers.size() > 1) return std::nullopt;
    const auto factor = dividedBy(divisor, summand.rest);
    if (!factor) return std::nullopt;
    quotient.push_back(timesPowerOfSize(powers[lowest], lowest, *factor));
  }
  return Term{store_->sum(quotient, {})};
}

std::optional<Term> TermAlgebra::dividedBy(const LinearNumber& divisor, Term a) {
  std::optional<Term> result;
  if (a.id == Store::kZeroTerm) return a;
  if (kind(a) == TermKind::kSum) {
    result = quotientOfSum(divisor, a);
  } else if (kind(a) == TermKind::kProduct) {
    for (const Part& part : parts(a)) {
      if (!part.factor.isOne() || kind(part.term) != TermKind::kSum) continue;
      const auto quotient = quotientOfSum(divisor, part.term);
      if (!quotient) continue;
      result = Term{
          store_->multiply(store_->multiply(a.id, store_->power(part.term.id, -2)), quotient->id)};
      break;
    }
  }
  if (result) result->condition = a.condition;
  return result;
}

Term TermAlgebra::timesSized(const SizedNumber& number, Term a) {
  if (!number.divisor.slope.isZero()) {
    SizedNumber whole = number;
    whole.divisor = {Rational(1), Rational(0)};
    const auto quotient = dividedBy(number.divisor, a);
    if (!quotient)
      throw Unsupported("a division by " + number.divisor.constant.toString() + " + " +
                        number.divisor.slope.toString() + " m, m being the size");
    return timesSized(whole, *quotient);
  }
  if (number.slope.isZero()) return timesPowerOfSize(number.constant, number.power, a);
  const Term linear = timesPowerOfSize(number.slope, number.power + 1, a);
  if (number.constant.isZero()) return linear;
  return add(timesPowerOfSize(number.constant, number.power, a), linear);
}
Term TermAlgebra::negativeInfinity() { return {Store::kInfinityTerm}; }

Term TermAlgebra::add(Term a, Term b) {
  const Term both[2] = {a, b};
  return sum(both, {});
}

Term TermAlgebra::mul(Term a, Term b) {
  const ConditionSet condition = conditions_->unite(a.condition, b.condition);
  if (size_ != nullptr) {
    for (const auto& [sum, other] : {std::pair(a, b), std::pair(b, a)}) {
      if (kind(sum) != TermKind::kSum) continue;
      const auto factored = withoutPolynomial(sum);
      if (!factored) continue;
      const Term product = mul(factored->rest, other);
      std::vector<Term> summands;
      for (const auto& [power, factor] : factored->powers)
        summands.push_back(timesPowerOfSize(factor, power, product));
      return {store_->sum(summands, {}), condition};
    }
  }
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
  if (size_ == nullptr) return scaleByConstant(factor, a);
  const SizedNumber number = size_->note(factor);
  return number.dependsOnSize() ? timesSized(number, a) : scaleByConstant(number.constant, a);
}

Term TermAlgebra::scaleByConstant(const Rational& factor, Term a) {
  // inf - inf and 0 * inf have no value, so a masked entry must not cancel or vanish.
  if (factor.sign() <= 0 && store_->mode != Mode::kRaw && store_->mayBeInfinite(a.id)) {
    throw Unsupported("minus infinity (the entry of a mask) times a number that is not positive");
  }
  const Code c = store_->rationals.encode(factor);
  return {store_->mode != Mode::kRaw ? store_->scale(c, a.id) : store_->rawScale(c, a.id),
          a.condition};
}

Term TermAlgebra::sum(std::span<const Term> terms, std::span<const std::int64_t> weights) {
  if (size_ != nullptr && !weights.empty()) {
    std::vector<Term> weighted;
    for (std::size_t i = 0; i < terms.size(); ++i)
      weighted.push_back(scale(Rational(weights[i]), terms[i]));
    return sum(weighted, {});
  }
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

void TermAlgebra::expectSmall(std::span<const std::int64_t> numbers) const {
  if (size_ != nullptr && !std::all_of(numbers.begin(), numbers.end(), &SizeSymbol::isSmall))
    throw Unsupported("a position or an index that may depend on the size");
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
  expectSmall(params);
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
  expectSmall({&value, 1});
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
