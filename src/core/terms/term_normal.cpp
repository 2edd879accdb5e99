// SPDX-License-Identifier: Apache-2.0
// The cheap normal form: every constructor returns the normal form of its result, given operands in
// normal form.
//
// What "sound" means here. Each rule replaces a term by one that has the same value wherever the
// first is defined; the second may be defined at more points (x * x^-1 = 1 also where x = 0). Rules
// compose, so a term's normal form has the term's value wherever the term is defined, and two terms
// with one normal form have equal values wherever both are defined. Each rule below gives its
// argument; where none is given it is a ring axiom of the reals.
//
// Minus infinity is no real number. It comes from masks, and only sum, exp, maximum and scaling by
// a positive number are defined on it; anything else throws Unsupported. The atom kMaskEntry stands
// for a value that is either 0 or minus infinity; terms that may be infinite on account of it are
// marked (mayBeInfinite), and rules that need a finite argument leave them alone. The entry of a
// position with itself is 0; of one that stands for several it is an atom that is not marked
// (docs/soundness.md, "Masks").
#include <algorithm>
#include <limits>

#include "terms/term_store.h"

namespace shardproof {

void TermAlgebra::Store::sortAndMerge(std::vector<Entry>& v) {
  const std::size_t n = v.size();
  const auto before = [](const Entry& a, const Entry& b) { return a.term < b.term; };
  bool strict = true;
  for (std::size_t i = 1; i < n && strict; ++i) strict = v[i - 1].term < v[i].term;
  if (!strict) {
    if (n <= 16) {
      for (std::size_t i = 1; i < n; ++i) {
        const Entry e = v[i];
        std::size_t j = i;
        for (; j > 0 && e.term < v[j - 1].term; --j) v[j] = v[j - 1];
        v[j] = e;
      }
    } else {
      std::sort(v.begin(), v.end(), before);
    }
  }
  std::size_t out = 0;
  for (std::size_t i = 0; i < n;) {
    Entry e = v[i++];
    while (i < n && v[i].term == e.term) e.code = rationals.add(e.code, v[i++].code);
    if (e.code != kZero) v[out++] = e;
  }
  v.resize(out);
}

// ---------------------------------------------------------------- sums

// Adds code * t. Nested sums are flattened; scaling one scales its coefficients, which distributes
// over a sum of scaled terms only and makes nothing larger.
void TermAlgebra::Store::addTo(SumBuilder& b, TermId t, Code c) {
  switch (kind(t)) {
    case TermKind::kConstant:
      if (c != kZero && t != kZeroTerm)
        b.constant = rationals.add(b.constant, rationals.multiply(c, nodes[t].data));
      return;
    case TermKind::kNegativeInfinity:
      if (rationals.sign(c) <= 0) infinite("scaled by a number that is not positive");
      b.infinite = true;
      return;
    case TermKind::kSum: {
      if (c == kZero) return;
      const Parts p = parts(t);
      if (p.constant != kZero)
        b.constant = rationals.add(b.constant, rationals.multiply(c, p.constant));
      for (std::uint32_t i = 0; i < p.size; ++i)
        b.entries->push_back({p.term(i), rationals.multiply(c, p.code(i))});
      return;
    }
    default:
      if (c != kZero) b.entries->push_back({t, c});
  }
}

// c m = m for c > 0 and the entry m of a mask, which is 0 or minus infinity: a mask that is added
// twice is the same mask.
Code TermAlgebra::Store::maskFactor(TermId t, Code c) const {
  const bool mask =
      c != kOne && kind(t) == TermKind::kFunction && functionOf(t) == ops::Function::kMaskEntry;
  return mask && rationals.sign(c) > 0 ? kOne : c;
}

TermId TermAlgebra::Store::finish(SumBuilder& b) {
  // Minus infinity plus anything finite is minus infinity.
  if (b.infinite) return kInfinityTerm;
  sortAndMerge(*b.entries);
  for (Entry& e : *b.entries) e.code = maskFactor(e.term, e.code);
  return internSum(b.constant, *b.entries);
}

TermId TermAlgebra::Store::sum(std::span<const Term> terms, std::span<const std::int64_t> weights) {
  SumBuilder b(*this);
  for (std::size_t i = 0; i < terms.size(); ++i)
    addTo(b, terms[i].id, weights.empty() ? kOne : rationals.encode(weights[i]));
  return finish(b);
}

TermId TermAlgebra::Store::scale(Code c, TermId t) {
  if (c == kOne) return t;
  switch (kind(t)) {
    case TermKind::kConstant:
      return internConstant(rationals.multiply(c, nodes[t].data));
    case TermKind::kNegativeInfinity:
      if (rationals.sign(c) <= 0) infinite("scaled by a number that is not positive");
      return t;
    case TermKind::kSum: {
      if (c == kZero) return kZeroTerm;
      Scratch entries(*this);
      const Parts p = parts(t);
      for (std::uint32_t i = 0; i < p.size; ++i)
        entries->push_back({p.term(i), maskFactor(p.term(i), rationals.multiply(c, p.code(i)))});
      return internSum(rationals.multiply(c, p.constant), *entries);
    }
    default: {
      if (c == kZero) return kZeroTerm;  // the term may be undefined somewhere, zero is not
      const Entry e{t, maskFactor(t, c)};
      return e.code == kOne ? t : internSum(kZero, {&e, 1});
    }
  }
}

// ---------------------------------------------------------------- products

}  // namespace shardproof
