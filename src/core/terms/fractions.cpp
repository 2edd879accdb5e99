// SPDX-License-Identifier: Apache-2.0
#include "terms/fractions.h"

#include <algorithm>

#include "util/union_find.h"

namespace shardproof {

namespace {

// Monomials, for one sum that is put over a common denominator as it is made.
constexpr std::size_t kLocalBudget = 20'000;

}  // namespace

TermId TermAlgebra::Fractions::ofSum(TermId t) {
  // Minus infinity is no number to be added up over a denominator.
  if (s.kind(t) != TermKind::kSum || s.mayBeInfinite(t)) return t;
  if (const auto it = done_.find(t); it != done_.end()) return it->second;
  const Store::Parts p = s.parts(t);
  bool divides = false;
  for (std::uint32_t i = 0; i < p.size && !divides; ++i) {
    if (s.kind(p.term(i)) != TermKind::kProduct) continue;
    const Store::Parts factors = s.parts(p.term(i));
    for (std::uint32_t k = 0; k < factors.size; ++k)
      divides = divides || (s.kind(factors.term(k)) == TermKind::kSum &&
                            s.rationals.sign(factors.code(k)) < 0);
  }
  const TermId result = divides ? addedUp(t) : withoutNegativePowers(t);
  done_.emplace(t, result);
  done_.emplace(result, result);
  return result;
}

// exp(-x) + 1 = exp(-x) (1 + exp(x)): of two summands that differ in exponentials of numbers only,
// the lowest powers go out. So 1/(1 + exp(-x)) and exp(x)/(1 + exp(x)) are one.
TermId TermAlgebra::Fractions::withoutNegativePowers(TermId sum) {
  if (s.kind(sum) != TermKind::kSum) return sum;
  const std::vector<Summand> both = summandsOf(sum);
  if (both.size() != 2) return sum;
  const Fraction a = fractionOf(both[0].term, Store::kOne);
  const Fraction b = fractionOf(both[1].term, Store::kOne);
  if (remainder(a.bare) != remainder(b.bare)) return sum;
  std::map<TermId, Code> lowest;
  for (const TermId bare : {a.bare, b.bare}) {
    const Store::Parts p =
        s.kind(bare) == TermKind::kProduct ? s.parts(bare) : Store::Parts{&bare, 1, true, 0};
    for (std::uint32_t i = 0; i < p.size; ++i) {
      if (!isFinitePower(p.term(i))) continue;
      const auto [it, fresh] = lowest.emplace(p.term(i), Store::kZero);
      it->second = s.rationals.minimum(it->second, p.code(i));
    }
  }
  std::vector<Entry> out, inverse;
  for (const auto& [atom, power] : lowest) {
    if (power == Store::kZero) continue;
    out.push_back({atom, power});
    inverse.push_back({atom, s.rationals.negate(power)});
  }
  // The lowest of both are below 0 only where one of the two has a negative power.
  if (out.empty()) return sum;
  const TermId times = s.internProduct(inverse);
  Store::SumBuilder rest(s);
  const std::int64_t together = madeWithoutSums(a.bare) + madeWithoutSums(b.bare);
  note(s.internProduct(out), together);
  for (const Summand& m : both) {
    const TermId left = s.multiply(m.term, times);
    note(fractionOf(left, Store::kOne).bare, together);
    s.addTo(rest, left, m.factor);
  }
  return s.multiply(s.internProduct(out), s.finish(rest));
}

TermAlgebra::Fractions::Fraction TermAlgebra::Fractions::fractionOf(TermId t, Code factor) {
  Fraction f;
  f.factor = factor;
  std::vector<Entry> bare;
  const Store::Parts p =
      s.kind(t) == TermKind::kProduct ? s.parts(t) : Store::Parts{&t, 1, true, Store::kZero};
  for (std::uint32_t i = 0; i < p.size; ++i) {
    const Entry e = p.entry(i);
    if (e.term == Store::kOneTerm) continue;
    if (s.kind(e.term) != TermKind::kSum) {
      bare.push_back(e);
    } else if (!RationalPool::isSmall(e.code)) {
      throw Unsupported("a power of a sum that is not small");
    } else if (const std::int64_t power = RationalPool::small(e.code); power > 0) {
      f.over[e.term] = power;
    } else {
      f.under[e.term] = -power;
    }
  }
  f.bare = s.internProduct(bare);
  f.summands = std::max<std::int64_t>(1, madeWithoutSums(f.bare));
  return f;
}

TermAlgebra::Fractions::FractionList TermAlgebra::Fractions::fractionsOf(TermId sum) {
  FractionList list;
  for (const Summand& m : summandsOf(sum)) list.push_back(fractionOf(m.term, m.factor));
  return list;
}

TermId TermAlgebra::Fractions::termOf(const Fraction& f) {
  Store::ProductBuilder product(s);
  s.multiplyBy(product, f.bare, Store::kOne);
  for (const auto& [sum, power] : f.over) s.multiplyBy(product, sum, s.rationals.encode(power));
  for (const auto& [sum, power] : f.under) s.multiplyBy(product, sum, s.rationals.encode(-power));
  return s.finish(product);
}

// What is left of a monomial without the exponentials of numbers.
TermId TermAlgebra::Fractions::remainder(TermId bare) {
  if (isFinitePower(bare)) return Store::kOneTerm;
  if (s.kind(bare) != TermKind::kProduct) return bare;
  std::vector<Entry> rest;
  const Store::Parts p = s.parts(bare);
  for (std::uint32_t i = 0; i < p.size; ++i)
    if (!isFinitePower(p.term(i))) rest.push_back(p.entry(i));
  return s.internProduct(rest);
}

// Which fractions are put over one denominator. Two denominators belong together if they meet in
// one fraction, or if all summands of one, but for a constant, are summands of the other. What is
// divided by nothing belongs where it differs from a numerator by exponentials only, if there is
// one such place. Nothing here depends on how terms are numbered: what is done at one position is
// done at all that permutations turn it into.
TermAlgebra::Fractions::Components TermAlgebra::Fractions::components(
    const FractionList& fractions) {
  std::map<TermId, std::size_t> number;
  for (const Fraction& f : fractions)
    for (const auto& [sum, power] : f.under) number.emplace(sum, number.size());
  std::map<TermId, std::vector<std::size_t>> having;  // by summand
  for (const auto& [sum, n] : number)
    for (const Summand& m : summandsOf(sum))
      if (m.term != Store::kOneTerm) having[m.term].push_back(n);
  UnionFind<std::size_t> together(number.size());
  for (const auto& [sum, n] : number) {
    std::map<std::size_t, std::size_t> shared;
    std::size_t own = 0;
    for (const Summand& m : summandsOf(sum)) {
      if (m.term == Store::kOneTerm) continue;
      ++own;
      charge(having[m.term].size());
      for (const std::size_t other : having[m.term]) ++shared[other];
    }
    for (const auto& [other, count] : shared)
      if (count == own) together.unite(n, other);
  }
  for (const Fraction& f : fractions) {
    if (f.under.empty()) continue;
    const std::size_t first = number.at(f.under.begin()->first);
    for (const Powers* powers : {&f.under, &f.over})
      for (const auto& [sum, power] : *powers)
        if (const auto it = number.find(sum); it != number.end()) together.unite(first, it->second);
  }
  std::map<std::size_t, std::vector<std::size_t>> groups;
  std::map<TermId, std::set<std::size_t>> places;  // by the numerator's remainder
  for (std::size_t i = 0; i < fractions.size(); ++i) {
    if (fractions[i].under.empty()) continue;
    const std::size_t root = together.find(number.at(fractions[i].under.begin()->first));
    groups[root].push_back(i);
    places[remainder(fractions[i].bare)].insert(root);
  }
  Components result;
  for (std::size_t i = 0; i < fractions.size(); ++i) {
    if (!fractions[i].under.empty()) continue;
    const auto it = places.find(remainder(fractions[i].bare));
    if (it != places.end() && it->second.size() == 1) {
      groups[*it->second.begin()].push_back(i);
    } else {
      result.others.push_back(i);
    }
  }
  for (auto& [root, group] : groups) result.groups.push_back(std::move(group));
  return result;
}

TermId TermAlgebra::Fractions::addedUp(TermId sum) {
  try {
    budget_ = kLocalBudget;
    const FractionList fractions = fractionsOf(sum);
    const Components parts = components(fractions);
    Store::SumBuilder b(s);
    const auto keep = [&](std::size_t i) { s.addTo(b, termOf(fractions[i]), fractions[i].factor); };
    for (const std::size_t i : parts.others) keep(i);
    for (const std::vector<std::size_t>& group : parts.groups) {
      if (group.size() == 1) {
        keep(group[0]);
        continue;
      }
      FractionList members;
      for (const std::size_t i : group) members.push_back(fractions[i]);
      s.addTo(b, overOneDenominator(members), Store::kOne);
    }
    return s.finish(b);
  } catch (const Unsupported&) {
    if (left_ == 0 || ++tooLarge_ > kMostTooLarge) throw;
    return sum;  // too large: it stays as it is, which is never wrong
  }
}

TermAlgebra::Fractions::Powers TermAlgebra::Fractions::bringTogether(FractionList& fractions,
                                                                     std::int64_t& most) {
  Powers denominator;
  for (const Fraction& f : fractions)
    for (const auto& [sum, power] : f.under) denominator[sum] = std::max(denominator[sum], power);
  most = std::max<std::int64_t>(most, static_cast<std::int64_t>(denominator.size()));
  for (Fraction& f : fractions) {
    for (const auto& [sum, power] : denominator) {
      const auto under = f.under.find(sum);
      const std::int64_t missing = power - (under == f.under.end() ? 0 : under->second);
      if (missing > 0) f.over[sum] += missing;
    }
    f.under.clear();
    for (const auto& [sum, power] : f.over)
      f.summands = std::min(kMany, f.summands + std::min(power, kMany) * mostMade(sum));
    most = std::max(most, f.summands);
  }
  return denominator;
}

void TermAlgebra::Fractions::count(std::int64_t most, std::int64_t joined) {
  most_ = std::max(most_, most);
  joined_ = std::max(joined_, joined);
  if (summands() <= allowed_) return;
  left_ = 0;  // it never becomes less
  throw Unsupported("common denominators need more positions than can be kept apart");
}

TermId TermAlgebra::Fractions::overOneDenominator(const FractionList& fractions) {
  const auto alike = [&](auto&& of) {
    return std::all_of(fractions.begin(), fractions.end(),
                       [&](const Fraction& f) { return of(f) == of(fractions[0]); });
  };
  const bool sameDenominator = alike([](const Fraction& f) { return f.under; });
  const bool sameRemainder = alike([&](const Fraction& f) { return remainder(f.bare); });
  if (sameDenominator && !(sameRemainder && alike([](const Fraction& f) { return f.over; }))) {
    Store::SumBuilder b(s);  // nothing to multiply, and what to divide by is hardly in there
    for (Fraction f : fractions) {
      f.under.clear();
      s.addTo(b, termOf(f), f.factor);
    }
    Fraction whole;
    whole.under = fractions[0].under;
    return s.multiply(s.finish(b), termOf(whole));
  }
  // Powers of one sum with other things above them (a gradient of softmax, S^-1 a - S^-2 b).
  const bool powersOfOne = std::all_of(fractions.begin(), fractions.end(), [&](const Fraction& f) {
    return f.under.size() == 1 && f.under.begin()->first == fractions[0].under.begin()->first;
  });
  if (powersOfOne && !sameRemainder) {
    Store::SumBuilder b(s);
    for (const Fraction& f : fractions) s.addTo(b, termOf(f), f.factor);
    return s.finish(b);
  }
  FractionList list = multipliedOut(fractions, false);
  std::int64_t most = 1;
  Powers denominator = bringTogether(list, most);
  Numerators numerators(*this, list, denominator);
  Polynomial numerator = numerators.sum();
  std::int64_t joined = Numerators::joined(numerator);
  for (auto& [sum, power] : denominator) {
    while (power > 0 && !numerator.empty()) {
      auto quotient = numerators.quotient(numerator, sum);
      if (!quotient) break;
      numerator = std::move(*quotient);
      --power;
      most = std::max<std::int64_t>(most, 2);
    }
  }
  if (!numerator.empty()) joined = Numerators::joined(numerator);
  count(most, joined);
  if (numerator.empty()) return Store::kZeroTerm;
  Fraction whole;
  for (const auto& [sum, power] : denominator)
    if (power > 0) whole.under[sum] = power;
  return s.multiply(withoutNegativePowers(numerators.termOf(numerator)), termOf(whole));
}

// The sums that are factors of a sum's summands, and those of their summands.
const std::set<TermId>& TermAlgebra::Fractions::sumsWithin(TermId sum) {
  if (const auto it = within_.find(sum); it != within_.end()) return it->second;
  const Level level(*this);
  std::set<TermId> found;
  for (const Fraction& f : fractionsOf(sum)) {
    for (const Powers* powers : {&f.over, &f.under}) {
      for (const auto& [inner, power] : *powers) {
        found.insert(inner);
        const std::set<TermId>& further = sumsWithin(inner);
        charge(further.size());
        found.insert(further.begin(), further.end());
      }
    }
  }
  return within_.emplace(sum, std::move(found)).first->second;
}

void TermAlgebra::Fractions::collectDenominators(const Fraction& f, std::set<TermId>& found,
                                                 std::set<TermId>& seen) {
  const Level level(*this);
  for (const auto& [sum, power] : f.under) found.insert(sum);
  for (const auto& [sum, power] : f.over) {
    if (sumsWithin(sum).empty() || !seen.insert(sum).second) continue;
    for (const Fraction& inner : fractionsOf(sum)) collectDenominators(inner, found, seen);
  }
}

// Sums that hold some that are divided by are multiplied out, or with `everything` all but these:
// they are left to the numerators.
TermAlgebra::Fractions::FractionList TermAlgebra::Fractions::multipliedOut(FractionList open,
                                                                           bool everything) {
  std::set<TermId> denominators, seen;
  for (const Fraction& f : open) collectDenominators(f, denominators, seen);
  FractionList result;
  while (!open.empty()) {
    Fraction f = std::move(open.back());
    open.pop_back();
    const auto found = std::find_if(f.over.begin(), f.over.end(), [&](const auto& factor) {
      if (denominators.contains(factor.first)) return false;
      if (everything) return true;
      const std::set<TermId>& within = sumsWithin(factor.first);
      return std::any_of(within.begin(), within.end(),
                         [&](TermId sum) { return denominators.contains(sum); });
    });
    if (found == f.over.end()) {
      result.push_back(std::move(f));
      continue;
    }
    const TermId sum = found->first;
    if (--found->second == 0) f.over.erase(found);
    for (const Fraction& m : fractionsOf(sum)) {
      Fraction g = f;
      const auto [bare, factor] = times(f.bare, m.bare);
      g.bare = bare;
      g.factor = s.rationals.multiply(factor, s.rationals.multiply(f.factor, m.factor));
      g.summands = std::min(kMany, f.summands + m.summands);
      note(g.bare, madeWithoutSums(f.bare) + madeWithoutSums(m.bare));
      if (g.factor == Store::kZero) continue;
      for (const auto& [x, power] : m.over) g.over[x] += power;
      for (const auto& [x, power] : m.under) g.under[x] += power;
      for (auto it = g.under.begin(); it != g.under.end();) {
        const auto above = g.over.find(it->first);
        const std::int64_t both = above == g.over.end() ? 0 : std::min(above->second, it->second);
        if (both > 0 && (above->second -= both) == 0) g.over.erase(above);
        it = (it->second -= both) == 0 ? g.under.erase(it) : std::next(it);
      }
      open.push_back(std::move(g));
    }
  }
  return result;
}

bool TermAlgebra::Fractions::isZero(TermId sum, bool everything) {
  const FractionList fractions = multipliedOut(fractionsOf(sum), everything);
  Components parts = components(fractions);
  if (!parts.others.empty()) parts.groups.push_back(std::move(parts.others));
  std::int64_t most = 1;
  for (const std::vector<std::size_t>& group : parts.groups) {
    FractionList members;
    for (const std::size_t i : group) members.push_back(fractions[i]);
    const Powers denominator = bringTogether(members, most);
    if (!Numerators(*this, members, denominator).sum().empty()) return false;
  }
  count(most, 1);
  return true;
}

bool TermAlgebra::Fractions::equal(TermId a, TermId b, std::size_t budget) {
  if (a == b) return true;
  if (s.mayBeInfinite(a) || s.mayBeInfinite(b)) return false;
  Store::SumBuilder difference(s);
  s.addTo(difference, a, Store::kOne);
  s.addTo(difference, b, RationalPool::kMinusOne);
  const TermId d = s.finish(difference);
  if (d == Store::kZeroTerm) return true;
  if (s.kind(d) != TermKind::kSum) return false;
  for (const bool everything : {false, true}) {
    budget_ = budget;
    if (isZero(d, everything)) return true;
  }
  return false;
}

}  // namespace shardproof
