// SPDX-License-Identifier: Apache-2.0
// The full normal form: a polynomial over atoms. Everything is rebuilt from the leaves with the
// constructors of the cheap normal form, so it works for raw terms as well, and then products of
// sums are multiplied out. Sound for the same reasons as there: distribution is a ring axiom, and
// the one further rule (reduceReciprocals) is argued where it stands. Not complete for fractions
// over several different denominators.
//
// The budget counts every monomial that is written, also the intermediate ones, and long ones more
// than once, so it bounds the time as well.
#include <algorithm>

#include "terms/term_store.h"

namespace shardproof {

namespace {

constexpr std::uint32_t kFactorsOfOne =
    8;  // a monomial counts as one more for so many factors: it is sorted and stored

}  // namespace

void TermAlgebra::Store::charge(std::size_t monomials) {
  if (monomials > budgetLeft)
    throw Unsupported("expanding a term needs more than the budget of " +
                      std::to_string(budgetGiven) + " monomials");
  budgetLeft -= monomials;
}

TermId TermAlgebra::Store::expand(TermId t, std::size_t budget, Reciprocals reciprocals) {
  if (reciprocals != expandedReciprocals) expanded.clear();
  expandedReciprocals = reciprocals;
  budgetGiven = budget;
  budgetLeft = budget;
  return expandWithinBudget(t);
}

TermId TermAlgebra::Store::expandWithinBudget(TermId t) {
  // Its own stack: a stage may be deeper than the call stack.
  std::vector<TermId> stack{t};
  while (!stack.empty()) {
    const TermId top = stack.back();
    if (expanded.contains(top)) {
      stack.pop_back();
      continue;
    }
    bool ready = true;
    for (const TermId c : children(top)) {
      if (expanded.contains(c)) continue;
      ready = false;
      stack.push_back(c);
    }
    if (!ready) continue;
    stack.pop_back();
    const TermId result = expandNode(top);
    expanded.emplace(top, result);
    expanded.emplace(result, result);
  }
  return expanded.at(t);
}

// The children are expanded already.
TermId TermAlgebra::Store::expandNode(TermId t) {
  switch (kind(t)) {
    case TermKind::kConstant:
    case TermKind::kNegativeInfinity:
    case TermKind::kVariable:
      return t;
    case TermKind::kSum: {
      SumBuilder b(*this);
      const Parts p = parts(t);  // nothing is interned before finish
      b.constant = p.constant;
      for (std::uint32_t i = 0; i < p.size; ++i) addTo(b, expanded.at(p.term(i)), p.code(i));
      charge(b.entries->size());
      return finish(b);
    }
    case TermKind::kProduct: {
      if (const TermId apart = cancelledInSummands(t); apart != t) return expandWithinBudget(apart);
      // All factors together first: what cancels need not be multiplied out.
      ProductBuilder b(*this);
      const std::uint32_t n = length(t);
      // A factor that came out of an expansion counts as expanded although its argument, which is
      // in that form already, was never asked for.
      const auto argument = [&](TermId factor) {
        const auto it = expanded.find(nodes[factor].data);
        return it == expanded.end() ? TermId{nodes[factor].data} : it->second;
      };
      for (std::uint32_t i = 0; i < n; ++i) {
        const Entry e = parts(t).entry(i);
        if (kind(e.term) == TermKind::kExp) {
          multiplyByExp(b, argument(e.term), e.code);
        } else if (kind(e.term) == TermKind::kSqrt) {
          if (!RationalPool::isSmall(e.code))
            throw Unsupported("a square root is raised to a power that is not a small integer");
          const std::int64_t k = RationalPool::small(e.code);
          const TermId base = argument(e.term);
          if (k - (k & 1) != 0) multiplyBy(b, base, rationals.encode((k - (k & 1)) / 2));
          if ((k & 1) != 0) multiplyByRoot(b, base);
        } else {
          multiplyBy(b, expanded.at(e.term), e.code);
        }
      }
      return multiplyOut(finish(b));
    }
    case TermKind::kExp:
      return multiplyOut(exp(expanded.at(nodes[t].data)));
    case TermKind::kSqrt:
      return multiplyOut(power(expanded.at(nodes[t].data), 1));
    case TermKind::kFunction: {
      FunctionParts f = functionParts(t);
      for (TermId& a : f.arguments) a = expanded.at(a);
      return multiplyOut(apply(f.function, f.parameters, f.arguments));
    }
    case TermKind::kIndicator:
      return indicator(expanded.at(indicatorIndex(t)), indicatorValue(t));
  }
  return t;
}

// S^-k (a S + b) w = S^-(k-1) a w + S^-k b w: where a summand of one factor has the base of a
// reciprocal as a factor, the two are cancelled before that base is multiplied out, after which
// only the division of polynomials would find it again. Distribution is a ring axiom, and S^-k is
// on both sides as long as it is not cancelled: the left side requires S to be non-zero. The term
// itself where there is nothing of the kind. (A gradient of softmax is S^-2 (g S - sum g e).)
TermId TermAlgebra::Store::cancelledInSummands(TermId product) {
  std::vector<Entry> factors;
  const Parts p = parts(product);  // nothing is interned below, until the factor is found
  for (std::uint32_t i = 0; i < p.size; ++i) factors.push_back(p.entry(i));
  const auto isReciprocal = [&](TermId base) {
    return std::any_of(factors.begin(), factors.end(), [&](const Entry& e) {
      return e.term == base && kind(base) == TermKind::kSum && rationals.sign(e.code) < 0;
    });
  };
  const auto meetsOne = [&](TermId summand) {
    if (kind(summand) != TermKind::kProduct) return isReciprocal(summand);
    const Parts s = parts(summand);
    for (std::uint32_t k = 0; k < s.size; ++k)
      if (rationals.sign(s.code(k)) > 0 && isReciprocal(s.term(k))) return true;
    return false;
  };
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const TermId sum = factors[f].term;
    if (kind(sum) != TermKind::kSum || factors[f].code != kOne) continue;
    const std::uint32_t n = length(sum);
    bool found = false;
    for (std::uint32_t i = 0; i < n && !found; ++i) found = meetsOne(parts(sum).term(i));
    if (!found) continue;
    factors.erase(factors.begin() + static_cast<std::ptrdiff_t>(f));
    const TermId others = internProduct(factors);
    charge(n + 1);
    SumBuilder b(*this);
    addTo(b, others, parts(sum).constant);
    for (std::uint32_t i = 0; i < n; ++i) {
      const Entry e = parts(sum).entry(i);
      addTo(b, multiply(others, e.term), e.code);
    }
    return finish(b);
  }
  return product;
}

// No factor is a positive power of a sum.
bool TermAlgebra::Store::isFlatMonomial(TermId t) const {
  if (kind(t) == TermKind::kSum) return false;
  if (kind(t) != TermKind::kProduct) return true;
  const Parts p = parts(t);
  for (std::uint32_t i = 0; i < p.size; ++i) {
    if (kind(p.term(i)) == TermKind::kSum && rationals.sign(p.code(i)) > 0) return false;
  }
  return true;
}

bool TermAlgebra::Store::isFlat(TermId t) const {
  if (kind(t) != TermKind::kSum) return isFlatMonomial(t);
  const Parts p = parts(t);
  for (std::uint32_t i = 0; i < p.size; ++i) {
    if (!isFlatMonomial(p.term(i))) return false;
  }
  return true;
}

TermId TermAlgebra::Store::multiplyOut(TermId t) {
  if (isFlat(t)) return reduceReciprocals(t);
  if (kind(t) == TermKind::kProduct) return distribute(t);
  SumBuilder b(*this);
  b.constant = parts(t).constant;
  const std::uint32_t n = length(t);
  for (std::uint32_t i = 0; i < n; ++i) {
    const Entry e = parts(t).entry(i);
    addTo(b, multiplyOut(e.term), e.code);
  }
  charge(b.entries->size());
  return finish(b);
}

TermId TermAlgebra::Store::multiplyMonomials(TermId a, TermId b) {
  const TermId product = multiply(a, b);
  charge(kind(product) == TermKind::kProduct ? length(product) / kFactorsOfOne : 0);
  // A square root that met itself brings its base back, which may be a sum.
  return isFlat(product) ? product : multiplyOut(product);
}

TermId TermAlgebra::Store::distribute(TermId product) {
  std::vector<Entry> rest;
  std::vector<Entry> sums;
  const Parts p = parts(product);
  for (std::uint32_t i = 0; i < p.size; ++i) {
    const Entry e = p.entry(i);
    (kind(e.term) == TermKind::kSum && rationals.sign(e.code) > 0 ? sums : rest).push_back(e);
  }
  // A polynomial is a list of code * term here; its constant is an entry of the term 1.
  const auto append = [&](std::vector<Entry>& polynomial, TermId t, Code c) {
    SumBuilder b(*this);
    addTo(b, t, c);
    charge(b.entries->size());
    polynomial.insert(polynomial.end(), b.entries->begin(), b.entries->end());
    if (b.constant != kZero) polynomial.push_back({kOneTerm, b.constant});
  };
  std::vector<Entry> polynomial{{internProduct(rest), kOne}};
  std::vector<Entry> factor;
  std::vector<Entry> next;
  for (const Entry& s : sums) {
    if (!RationalPool::isSmall(s.code)) throw Unsupported("a power too large for any budget");
    factor.clear();
    append(factor, multiplyOut(s.term), kOne);
    for (std::int64_t k = RationalPool::small(s.code); k > 0; --k) {
      next.clear();
      for (const Entry& u : polynomial) {
        for (const Entry& v : factor)
          append(next, multiplyMonomials(u.term, v.term), rationals.multiply(u.code, v.code));
      }
      sortAndMerge(next);
      polynomial.swap(next);
    }
  }
  SumBuilder b(*this);
  for (const Entry& e : polynomial) addTo(b, e.term, e.code);
  return reduceReciprocals(finish(b));
}

// Which entry of a sum counts as its leading one: the largest in the graded lexicographic order.
// kFree if the rule below is not to be applied to this sum: because it is long, or because its
// monomials are not products of positive powers of atoms whose powers stay powers.
std::uint32_t TermAlgebra::Store::leadingEntry(TermId sum) {
  if (const auto it = leading.find(sum); it != leading.end()) return it->second;
  constexpr std::uint32_t kLongest = 16;
  const Parts s = parts(sum);  // nothing is interned below
  std::uint32_t best = kFree;
  std::vector<Entry> bestFactors;
  std::int64_t bestDegree = -1;
  bool usable = s.size <= kLongest;
  for (std::uint32_t i = 0; i < s.size && usable; ++i) {
    const TermId t = s.term(i);
    const Parts m = kind(t) == TermKind::kProduct ? parts(t) : Parts{&t, 1, true, kZero};
    std::vector<Entry> factors;
    std::int64_t degree = 0;
    for (std::uint32_t k = 0; k < m.size && usable; ++k) {
      const Entry e = m.entry(k);
      const TermKind base = kind(e.term);
      usable = RationalPool::isSmall(e.code) && RationalPool::small(e.code) > 0 &&
               base != TermKind::kSum && base != TermKind::kSqrt &&
               !(base == TermKind::kExp && special(e.term));
      degree += usable ? RationalPool::small(e.code) : 0;
      factors.push_back(e);
    }
    // Lexicographic with the smallest id as the most significant variable.
    bool larger = degree > bestDegree;
    if (degree == bestDegree) {
      const auto [a, b] = std::mismatch(
          factors.begin(), factors.end(), bestFactors.begin(), bestFactors.end(),
          [](const Entry& x, const Entry& y) { return x.term == y.term && x.code == y.code; });
      if (a != factors.end() && b != bestFactors.end())
        larger = a->term != b->term ? a->term < b->term : a->code > b->code;
    }
    if (larger) {
      best = i;
      bestFactors = std::move(factors);
      bestDegree = degree;
    }
  }
  if (!usable) best = kFree;
  leading.emplace(sum, best);
  return best;
}

// Let S = c m + r be a denominator with leading monomial m. Then S^-k m u = (S^-(k-1) u - S^-k r u)
// / c, which holds wherever the left side is defined, because that needs S != 0. Applied until no
// monomial contains S^-1 and m together, so that x/(x+y) + y/(x+y) becomes 1. It ends: among the
// monomials of one power of S the new ones are smaller in a graded order, whose exponents are
// bounded below (those that the rule lowers stay non-negative). Should that argument fail for some
// atom, the budget ends it.
TermId TermAlgebra::Store::reduceReciprocals(TermId t) {
  const TermKind k = kind(t);
  if (k != TermKind::kSum && k != TermKind::kProduct) return t;
  if (expandedReciprocals == Reciprocals::kAtoms) return t;
  // The reciprocal and the leading entry of its sum that occur together in a monomial.
  const auto find = [&](TermId monomial) -> Entry {
    if (kind(monomial) != TermKind::kProduct) return {kFree, 0};
    const Parts p = parts(monomial);
    for (std::uint32_t i = 0; i < p.size; ++i) {
      if (kind(p.term(i)) != TermKind::kSum) continue;
      const std::uint32_t lead = leadingEntry(p.term(i));
      if (lead == kFree) continue;
      const TermId m = parts(p.term(i)).term(lead);
      const Parts factors = kind(m) == TermKind::kProduct ? parts(m) : Parts{&m, 1, true, kZero};
      std::uint32_t at = 0;
      bool divides = true;
      for (std::uint32_t f = 0; f < factors.size && divides; ++f) {
        while (at < p.size && p.term(at) < factors.term(f)) ++at;
        divides = at < p.size && p.term(at) == factors.term(f) &&
                  !rationals.less(p.code(at), factors.code(f));
      }
      if (divides) return {p.term(i), lead};
    }
    return {kFree, 0};
  };
  for (TermId current = t;;) {
    std::vector<Entry> monomials;
    SumBuilder b(*this);
    if (kind(current) == TermKind::kSum) {
      const Parts p = parts(current);
      b.constant = p.constant;
      for (std::uint32_t i = 0; i < p.size; ++i) monomials.push_back(p.entry(i));
    } else {
      monomials.push_back({current, kOne});
    }
    bool changed = false;
    for (const Entry& e : monomials) {
      const Entry found = find(e.term);
      if (found.term == kFree) {
        addTo(b, e.term, e.code);
        continue;
      }
      changed = true;
      const TermId s = found.term;
      const std::uint32_t n = length(s);
      charge(n + 1);
      const Entry lead = parts(s).entry(found.code);
      const Code c = rationals.multiply(e.code, rationals.inverse(lead.code));
      std::vector<Entry> factors;
      if (kind(lead.term) == TermKind::kProduct) {
        const Parts m = parts(lead.term);
        for (std::uint32_t i = 0; i < m.size; ++i) factors.push_back(m.entry(i));
      } else {
        factors.push_back({lead.term, kOne});
      }
      const TermId u = dividedBy(e.term, factors);
      addTo(b, multiply(u, s), c);
      const Code minus = rationals.negate(c);
      addTo(b, u, rationals.multiply(minus, parts(s).constant));
      for (std::uint32_t i = 0; i < n; ++i) {
        if (i == found.code) continue;
        const Entry r = parts(s).entry(i);
        addTo(b, multiplyMonomials(u, r.term), rationals.multiply(minus, r.code));
      }
    }
    if (!changed) return current;
    current = finish(b);
    if (kind(current) != TermKind::kSum && kind(current) != TermKind::kProduct) return current;
  }
}

}  // namespace shardproof
