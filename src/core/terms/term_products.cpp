// SPDX-License-Identifier: Apache-2.0
// The normal form of products and powers (term_normal.cpp says what a normal form is). A product is
// a coefficient and factors with exponents: equal bases are added up, exponentials joined, rational
// roots taken out where their sign is known, and a sum loses its common factors and leading
// coefficient.
#include <algorithm>
#include <limits>
#include "terms/term_store.h"

namespace shardproof {

// Multiplies by t^exponent. The exponent is not zero, and an integer unless t is an exp atom.
//   (a b)^n = a^n b^n and (a^m)^n = a^(m n) for integers m, n, wherever the left side is defined (a
//   negative n needs a and b non-zero). Only a positive base is ever raised to a fraction, and then
//   both laws hold as well.
void TermAlgebra::Store::multiplyBy(ProductBuilder& b, TermId t, Code exponent) {
  switch (kind(t)) {
    case TermKind::kConstant:
      if (t == kZeroTerm) {
        if (rationals.sign(exponent) < 0) throw Unsupported("division by a term that is zero");
        b.zero = true;
      } else {
        b.coefficient = rationals.multiply(b.coefficient, rationals.power(nodes[t].data, exponent));
      }
      return;
    case TermKind::kNegativeInfinity:
      infinite("times a term that is not a positive constant");
    case TermKind::kSum: {
      if (!isProperSum(t)) {
        const Entry e = parts(t).entry(0);
        b.coefficient = rationals.multiply(b.coefficient, rationals.power(e.code, exponent));
        multiplyBy(b, e.term, exponent);
        return;
      }
      const Primitive p = primitive(t);
      b.coefficient = rationals.multiply(b.coefficient, rationals.power(p.coefficient, exponent));
      if (p.monomial != kOneTerm) multiplyBy(b, p.monomial, exponent);
      if (isProperSum(p.rest)) {
        b.entries->push_back({p.rest, exponent});
      } else {
        multiplyBy(b, p.rest, exponent);
      }
      return;
    }
    case TermKind::kProduct: {
      const Parts p = parts(t);
      for (std::uint32_t i = 0; i < p.size; ++i)
        b.entries->push_back({p.term(i), rationals.multiply(p.code(i), exponent)});
      b.special = b.special || special(t);
      return;
    }
    default:
      b.entries->push_back({t, exponent});
      b.special = b.special || special(t);
  }
}

// exp(c0 + sum c_i t_i)^e = exp(1)^(c0 e) * prod exp(t_i)^(c_i e): exp of a real number is
// positive, so any rational exponent is defined and exponents add. For t_i = minus infinity exp is
// 0, a positive exponent keeps it 0, and with a negative one the left side is undefined.
void TermAlgebra::Store::multiplyByExp(ProductBuilder& b, TermId argument, Code exponent) {
  switch (kind(argument)) {
    case TermKind::kConstant: {
      const Code e = rationals.multiply(nodes[argument].data, exponent);
      if (e != kZero) multiplyByExpAtom(b, kOneTerm, e);
      return;
    }
    case TermKind::kNegativeInfinity:
      if (rationals.sign(exponent) < 0) throw Unsupported("division by exp of minus infinity");
      b.zero = true;
      return;
    case TermKind::kSum: {
      const std::uint32_t n = length(argument);
      for (std::uint32_t i = 0; i < n; ++i) {
        const Entry e = parts(argument).entry(i);
        multiplyByExpAtom(b, e.term, rationals.multiply(e.code, exponent));
      }
      const Code constant = parts(argument).constant;
      if (constant != kZero) multiplyByExpAtom(b, kOneTerm, rationals.multiply(constant, exponent));
      return;
    }
    default:
      multiplyByExpAtom(b, argument, exponent);
  }
}

void TermAlgebra::Store::multiplyByExpAtom(ProductBuilder& b, TermId argument, Code exponent) {
  const TermId atom = internUnary(TermKind::kExp, argument);
  b.entries->push_back({atom, exponent});
  b.special = b.special || special(atom);
}

// Multiplies by sqrt(c), c > 0: sqrt(p/q) = sqrt(p q) / q, squares are taken out, and one atom for
// each prime remains. So sqrt(8) and 2 sqrt(2) agree. Primes above the bound of trial division may
// stay together in one atom, which is less complete but as sound.
void TermAlgebra::Store::multiplyByRootOf(ProductBuilder& b, Code positive) {
  const mpq_class q = rationals.decode(positive).toMpq();
  mpz_class n = q.get_num() * q.get_den();
  mpz_class outside = 1;
  const auto atom = [&](const mpz_class& prime) {
    const TermId argument = internConstant(rationals.encode(Rational(mpq_class(prime))));
    b.entries->push_back({internUnary(TermKind::kSqrt, argument), kOne});
    b.special = true;
  };
  constexpr unsigned long kTrialBound = 10000;
  for (unsigned long d = 2; d < kTrialBound && n >= d * d; d += d == 2 ? 1 : 2) {
    unsigned count = 0;
    while (mpz_divisible_ui_p(n.get_mpz_t(), d)) {
      n /= d;
      ++count;
    }
    for (unsigned k = 0; k < count / 2; ++k) outside *= d;
    if (count % 2 == 1) atom(d);
  }
  if (mpz_perfect_square_p(n.get_mpz_t())) {
    outside *= sqrt(n);
  } else {
    atom(n);
  }
  b.coefficient = rationals.multiply(b.coefficient,
                                     rationals.encode(Rational(mpq_class(outside, q.get_den()))));
}

// Multiplies by sqrt(base). With base = c * e * r, where c is a rational and e a product of exp
// atoms of finite arguments: sqrt(|c| e r') = sqrt(|c|) e^(1/2) sqrt(r'), r' = sign(c) r, because
// |c| > 0 and e > 0; both sides are defined where r' >= 0. Nothing else is taken out: sqrt(x^2) is
// not x.
void TermAlgebra::Store::multiplyByRoot(ProductBuilder& b, TermId base) {
  ProductBuilder f(*this);
  multiplyBy(f, base, kOne);
  settle(f);
  if (f.zero) {
    b.zero = true;
    return;
  }
  const bool negative = rationals.sign(f.coefficient) < 0;
  const Code size = negative ? rationals.negate(f.coefficient) : f.coefficient;
  const Code half = rationals.encode(Rational(1, 2));
  Scratch rest(*this);
  for (const Entry& e : *f.entries) {
    if (kind(e.term) == TermKind::kExp && !mayBeInfinite(nodes[e.term].data)) {
      b.entries->push_back({e.term, rationals.multiply(e.code, half)});
      b.special = b.special || special(e.term);
    } else {
      rest->push_back(e);
    }
  }
  if (rest->empty() && negative) throw Unsupported("the square root of a negative number");
  if (size != kOne) multiplyByRootOf(b, size);
  if (rest->empty()) return;
  TermId r = internProduct(*rest);
  if (negative) r = scale(RationalPool::kMinusOne, r);
  b.entries->push_back({internUnary(TermKind::kSqrt, r), kOne});
  b.special = true;
}

// Sorts, adds the exponents of equal bases (a^m a^n = a^(m+n), where a != 0 if m or n is negative;
// a^0 = 1), and simplifies the powers of special atoms:
//   sqrt(x)^2 = x where sqrt(x) is defined. The exponent becomes 0 or 1, the rest goes to x.
//   exp(log x) = x where log x is defined. The exponent becomes a fraction in [0, 1), the rest goes
//   to x. [i = v]^n = [i = v] and step(x)^n = step(x) for n >= 1, both being 0 or 1, and likewise 1
//   / [i = v]^n = 1 / [i = v]: where that exists, all are 1. [i = v] [i = w] = 0 for v != w.
void TermAlgebra::Store::settle(ProductBuilder& b) {
  sortAndMerge(*b.entries);
  if (!b.special) return;
  std::vector<Entry>& entries = *b.entries;
  for (bool carried = true; carried;) {
    carried = false;
    const std::size_t n = entries.size();  // multiplyBy appends
    for (std::size_t i = 0; i < n; ++i) {
      const Entry e = entries[i];
      if (!special(e.term)) continue;
      switch (kind(e.term)) {
        case TermKind::kIndicator:
        case TermKind::kFunction:
          entries[i].code = rationals.sign(e.code) < 0 ? RationalPool::kMinusOne : kOne;
          break;
        case TermKind::kSqrt: {
          if (e.code == kOne) break;
          if (!RationalPool::isSmall(e.code))
            throw Unsupported("a square root is raised to a power that is not a small integer");
          const std::int64_t k = RationalPool::small(e.code);
          const std::int64_t whole = (k - (k & 1)) / 2;
          entries[i].code = rationals.encode(k & 1);
          multiplyBy(b, nodes[e.term].data, rationals.encode(whole));
          carried = true;
          break;
        }
        case TermKind::kExp: {
          const Code whole = rationals.floor(e.code);
          if (whole == kZero) break;
          entries[i].code = rationals.add(e.code, rationals.negate(whole));
          multiplyBy(b, functionParts(nodes[e.term].data).arguments[0], whole);
          carried = true;
          break;
        }
        default:
          break;
      }
    }
    if (carried) sortAndMerge(entries);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (kind(entries[i].term) != TermKind::kIndicator) continue;
    for (std::size_t j = i + 1; j < entries.size(); ++j) {
      if (kind(entries[j].term) == TermKind::kIndicator &&
          indicatorIndex(entries[i].term) == indicatorIndex(entries[j].term))
        b.zero = true;
    }
  }
}

TermId TermAlgebra::Store::finish(ProductBuilder& b) {
  if (!b.zero) settle(b);
  if (b.zero) return kZeroTerm;
  return scale(b.coefficient, internProduct(*b.entries));
}

TermId TermAlgebra::Store::multiply(TermId a, TermId b) {
  if (kind(a) == TermKind::kConstant) return scale(nodes[a].data, b);
  if (kind(b) == TermKind::kConstant) return scale(nodes[b].data, a);
  const auto plain = [&](TermId t) {
    const TermKind k = kind(t);
    return (k == TermKind::kVariable || k == TermKind::kFunction || k == TermKind::kExp) &&
           !special(t);
  };
  if (a != b && plain(a) && plain(b)) {
    const Entry entries[2] = {{std::min(a, b), kOne}, {std::max(a, b), kOne}};
    return internProduct(entries);
  }
  ProductBuilder p(*this);
  multiplyBy(p, a, kOne);
  multiplyBy(p, b, kOne);
  return finish(p);
}

// ---------------------------------------------------------------- sums as factors

// The factors that all entries share, each with its smallest exponent.
void TermAlgebra::Store::commonFactors(TermId sum, std::vector<Entry>& into) {
  const Parts s = parts(sum);  // nothing is interned below
  for (std::uint32_t i = 0; i < s.size; ++i) {
    const TermId t = s.term(i);
    const bool product = kind(t) == TermKind::kProduct;
    const Parts p = product ? parts(t) : Parts{&t, 1, true, kZero};
    if (i == 0) {
      for (std::uint32_t k = 0; k < p.size; ++k) into.push_back(p.entry(k));
      continue;
    }
    std::size_t out = 0;
    std::uint32_t k = 0;
    for (const Entry& e : into) {
      while (k < p.size && p.term(k) < e.term) ++k;
      if (k < p.size && p.term(k) == e.term)
        into[out++] = {e.term, rationals.minimum(e.code, p.code(k))};
    }
    into.resize(out);
    if (into.empty()) return;
  }
}

// t divided by factors that it contains, at least with these exponents.
TermId TermAlgebra::Store::dividedBy(TermId t, std::span<const Entry> factors) {
  Scratch left(*this);
  const Parts p = kind(t) == TermKind::kProduct ? parts(t) : Parts{&t, 1, true, kZero};
  std::size_t f = 0;
  for (std::uint32_t i = 0; i < p.size; ++i) {
    Entry e = p.entry(i);
    if (f < factors.size() && factors[f].term == e.term)
      e.code = rationals.add(e.code, rationals.negate(factors[f++].code));
    if (e.code != kZero) left->push_back(e);
  }
  return internProduct(*left);
}

// sum = coefficient * monomial * rest, where rest has 1 as its first coefficient and no factor
// common to its entries. So (8a + 8b)/8 and a + b, or a x + a y and a (x + y), are the same factor,
// and what a numerator shares with all of a denominator cancels. c m_1 + c m_2 = c (m_1 + m_2), and
// pulling out the monomial with the smallest exponents only divides each entry by factors it has.
TermAlgebra::Store::Primitive TermAlgebra::Store::primitive(TermId sum) {
  if ((nodes[sum].meta & kPrimitive) != 0) return {kOne, kOneTerm, sum};
  if (const auto it = primitives.find(sum); it != primitives.end()) return it->second;
  Primitive result{kOne, kOneTerm, sum};
  Scratch common(*this);
  if (parts(sum).constant == kZero) commonFactors(sum, *common);
  if (!common->empty()) {
    SumBuilder rest(*this);
    const std::uint32_t n = length(sum);
    for (std::uint32_t i = 0; i < n; ++i) {
      const Entry e = parts(sum).entry(i);
      addTo(rest, dividedBy(e.term, *common), e.code);
    }
    result.monomial = internProduct(*common);
    result.rest = finish(rest);
    // Divided entries may be sums themselves, so the rest may have anything in common again, or be
    // no sum any more.
    if (isProperSum(result.rest)) {
      const Primitive inner = primitive(result.rest);
      result.coefficient = inner.coefficient;
      result.monomial = multiply(result.monomial, inner.monomial);
      result.rest = inner.rest;
    }
  } else {
    result.coefficient = parts(sum).code(0);
    result.rest = scale(rationals.inverse(result.coefficient), sum);
    nodes[result.rest].meta |= kPrimitive;
  }
  if (result.rest != sum) primitives.emplace(sum, result);
  return result;
}

// ---------------------------------------------------------------- powers, exp, log

}  // namespace shardproof
