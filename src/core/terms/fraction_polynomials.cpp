// SPDX-License-Identifier: Apache-2.0
// The numerators of fractions: polynomials over monomials and blocks (fractions.h).
#include <algorithm>

#include "terms/fractions.h"

namespace shardproof {

namespace {

// What is looked at to find the summands of a sum that others than the sum have.
constexpr std::size_t kMostCompared = 20'000;

}  // namespace

void TermAlgebra::Fractions::charge(std::size_t monomials) {
  if (monomials > left_) {
    left_ = 0;
    throw Unsupported("common denominators need more monomials than the budget of a stage");
  }
  left_ -= monomials;
  if (monomials > budget_)
    throw Unsupported("a common denominator needs more than the budget of monomials");
  budget_ -= monomials;
}

std::vector<TermAlgebra::Fractions::Summand> TermAlgebra::Fractions::summandsOf(TermId sum) {
  const Store::Parts p = s.parts(sum);  // nothing is interned below
  std::vector<Summand> result;
  if (p.constant != Store::kZero) result.push_back({Store::kOneTerm, p.constant});
  for (std::uint32_t i = 0; i < p.size; ++i) result.push_back({p.term(i), p.code(i)});
  return result;
}

std::int64_t TermAlgebra::Fractions::madeWithoutSums(TermId bare) const {
  if (bare == Store::kOneTerm) return 0;
  const auto it = made_.find(bare);
  return it == made_.end() ? 1 : it->second;
}

std::int64_t TermAlgebra::Fractions::made(TermId summand) {
  const Fraction f = fractionOf(summand, Store::kOne);
  std::int64_t result = madeWithoutSums(f.bare);
  for (const Powers* powers : {&f.over, &f.under})
    for (const auto& [sum, power] : *powers)
      result = std::min(kMany, result + std::min(power, kMany) * mostMade(sum));
  return result;
}

std::int64_t TermAlgebra::Fractions::mostMade(TermId sum) {
  if (const auto it = mostMade_.find(sum); it != mostMade_.end()) return it->second;
  const Level level(*this);
  std::int64_t most = 1;
  for (const Summand& m : summandsOf(sum)) most = std::max(most, made(m.term));
  mostMade_.emplace(sum, most);
  return most;
}

void TermAlgebra::Fractions::note(TermId bare, std::int64_t summands) {
  if (summands <= 1 || bare == Store::kOneTerm) return;
  std::int64_t& known = made_[bare];
  known = std::max(known, std::min(summands, kMany));
}

// The exponential of a number: never zero, so that any power of it exists.
bool TermAlgebra::Fractions::isFinitePower(TermId atom) const {
  return s.kind(atom) == TermKind::kExp && !s.mayBeInfinite(s.nodes[atom].data) && !s.special(atom);
}

// The product of two monomials without sums, as a monomial and its coefficient.
std::pair<TermId, Code> TermAlgebra::Fractions::times(TermId a, TermId b) {
  charge(1);
  const TermId r = s.multiply(a, b);
  if (s.kind(r) == TermKind::kConstant) return {Store::kOneTerm, s.nodes[r].data};
  if (s.kind(r) == TermKind::kSum && !s.isProperSum(r)) {
    const Entry e = s.parts(r).entry(0);
    return {e.term, e.code};
  }
  const Fraction f = fractionOf(r, Store::kOne);
  if (s.kind(r) == TermKind::kSum || !f.over.empty() || !f.under.empty())
    throw Unsupported("a product of roots that is a sum");
  return {r, Store::kOne};
}

TermAlgebra::Fractions::Numerators::Numerators(Fractions& owner, const FractionList& fractions,
                                               const Powers& denominator)
    : owner_(owner), s(owner.s), fractions_(fractions), denominator_(denominator) {
  for (const Fraction& f : fractions)
    for (const auto& [sum, power] : f.over) sums_.emplace(sum, owner.summandsOf(sum));
  for (const auto& [sum, power] : denominator) sums_.emplace(sum, owner.summandsOf(sum));
  findBlocks();
}

// Summands of denominators by which a fraction that has the sum and one that has not may differ: x
// S and x m for a summand m of S. They must not disappear in a block.
std::set<TermId> TermAlgebra::Fractions::Numerators::metOutside() {
  std::set<TermId> bare, met;
  for (const Fraction& f : fractions_) bare.insert(f.bare);
  std::size_t compared = 0;
  for (const auto& [sum, power] : denominator_) {
    const std::vector<Summand>& summands = sums_.at(sum);
    std::set<TermId> beside;
    for (const Fraction& f : fractions_)
      if (f.over.contains(sum)) beside.insert(f.bare);
    compared += beside.size() * summands.size();
    if (compared > kMostCompared) break;
    for (const TermId x : beside)
      for (const Summand& m : summands)
        if (bare.contains(owner_.times(x, m.term).first)) met.insert(m.term);
  }
  return met;
}

// Each sum is the sum over blocks of a rational and the block; a block of one monomial is it.
void TermAlgebra::Fractions::Numerators::findBlocks() {
  std::vector<TermId> monomials;
  std::map<TermId, std::vector<std::pair<std::size_t, Code>>> coefficients;  // by sum
  std::size_t index = 0;
  for (const auto& [sum, summands] : sums_) {
    for (const Summand& m : summands) {
      auto& list = coefficients[m.term];
      if (list.empty()) monomials.push_back(m.term);
      list.emplace_back(index, m.factor);
    }
    ++index;
  }
  const std::set<TermId> met = metOutside();
  std::map<std::vector<std::pair<std::size_t, Code>>, std::vector<TermId>> alike;
  for (const TermId m : monomials) {
    if (met.contains(m)) continue;
    std::vector<std::pair<std::size_t, Code>> key = coefficients[m];
    const Code inverse = s.rationals.inverse(key[0].second);
    for (auto& [sum, code] : key) code = s.rationals.multiply(code, inverse);
    alike[key].push_back(m);
  }
  std::map<TermId, std::uint32_t> blockOf;  // of those with more than one monomial
  for (const auto& [key, members] : alike) {
    if (members.size() < 2) continue;
    Store::SumBuilder b(s);
    for (const TermId m : members) {
      blockOf.emplace(m, static_cast<std::uint32_t>(blocks_.size()));
      s.addTo(b, m, coefficients[m][0].second);
    }
    blocks_.push_back(s.finish(b));
  }
  for (const auto& [sum, summands] : sums_) {
    Polynomial& p = polynomials_[sum];
    for (const Summand& m : summands) {
      const auto block = blockOf.find(m.term);
      if (block == blockOf.end()) {
        add(p, {m.term, {}}, m.factor, owner_.made(m.term));
        continue;
      }
      const Code ratio =
          s.rationals.multiply(m.factor, s.rationals.inverse(coefficients[m.term][0].second));
      p[{Store::kOneTerm, {{block->second, 1}}}] = {ratio, 0};  // the same for all of the block
    }
  }
}

void TermAlgebra::Fractions::Numerators::add(Polynomial& p, const Monomial& m, Code factor,
                                             std::int64_t joined) {
  if (factor == Store::kZero) return;
  const auto [it, fresh] = p.emplace(m, Value{factor, joined});
  if (fresh) return;
  it->second.factor = s.rationals.add(it->second.factor, factor);
  it->second.joined = std::max(it->second.joined, joined);
  if (it->second.factor == Store::kZero) p.erase(it);
}

TermAlgebra::Fractions::Polynomial TermAlgebra::Fractions::Numerators::product(
    const Polynomial& a, const Polynomial& b) {
  Polynomial result;
  for (const auto& [m, v] : a) {
    for (const auto& [n, w] : b) {
      Monomial both;
      const auto [bare, factor] = owner_.times(m.bare, n.bare);
      both.bare = bare;
      std::map<std::uint32_t, std::int64_t> powers(m.blocks.begin(), m.blocks.end());
      for (const auto& [block, power] : n.blocks) powers[block] += power;
      both.blocks.assign(powers.begin(), powers.end());
      add(result, both, s.rationals.multiply(factor, s.rationals.multiply(v.factor, w.factor)),
          v.joined + w.joined);
    }
  }
  return result;
}

TermAlgebra::Fractions::Polynomial TermAlgebra::Fractions::Numerators::sum() {
  Polynomial result;
  for (const Fraction& f : fractions_) {
    Polynomial p;
    add(p, {f.bare, {}}, f.factor, owner_.made(f.bare));
    for (const auto& [sum, power] : f.over)
      for (std::int64_t k = 0; k < power; ++k) p = product(p, polynomials_.at(sum));
    for (const auto& [m, v] : p) add(result, m, v.factor, v.joined);
  }
  return result;
}

std::int64_t TermAlgebra::Fractions::Numerators::joined(const Polynomial& p) {
  std::int64_t most = 1;
  for (const auto& [m, v] : p) most = std::max(most, v.joined);
  return most;
}

// A monomial that is the only one of the highest power in some variable, so that to divide by it
// takes that variable out of what is left, power by power.
std::optional<TermAlgebra::Fractions::Numerators::Lead> TermAlgebra::Fractions::Numerators::lead(
    const Polynomial& p) {
  for (const auto& [m, v] : p) {
    if (m.bare != Store::kOneTerm || m.blocks.size() != 1 || m.blocks[0].second != 1) continue;
    return Lead{m, v.factor, true, m.blocks[0].first};  // sums are linear in blocks
  }
  for (const auto& [m, v] : p) {
    if (!m.blocks.empty() || s.special(m.bare) || m.bare == Store::kOneTerm) continue;
    std::vector<TermId> atoms;
    if (s.kind(m.bare) == TermKind::kProduct) {
      const Store::Parts parts = s.parts(m.bare);
      for (std::uint32_t i = 0; i < parts.size; ++i) atoms.push_back(parts.term(i));
    } else {
      atoms.push_back(m.bare);
    }
    for (const TermId atom : atoms) {
      const Lead found{m, v.factor, false, atom};
      const Code own = degree(m, found);
      if (s.rationals.sign(own) > 0 && std::all_of(p.begin(), p.end(), [&](const auto& other) {
            return other.first == found.monomial ||
                   s.rationals.less(degree(other.first, found), own);
          }))
        return found;
    }
  }
  return std::nullopt;
}

Code TermAlgebra::Fractions::Numerators::degree(const Monomial& m, const Lead& by) const {
  if (by.isBlock) {
    for (const auto& [block, power] : m.blocks)
      if (block == by.variable) return s.rationals.encode(power);
    return Store::kZero;
  }
  if (m.bare == by.variable) return Store::kOne;
  if (s.kind(m.bare) != TermKind::kProduct) return Store::kZero;
  const Store::Parts parts = s.parts(m.bare);
  for (std::uint32_t i = 0; i < parts.size; ++i)
    if (parts.term(i) == by.variable) return parts.code(i);
  return Store::kZero;
}

// Only powers of exponentials of numbers may become negative: the quotient divides by nothing else.
std::optional<TermAlgebra::Fractions::Monomial> TermAlgebra::Fractions::Numerators::divided(
    const Monomial& m, const Monomial& by) {
  std::map<std::uint32_t, std::int64_t> blocks(m.blocks.begin(), m.blocks.end());
  for (const auto& [block, power] : by.blocks) {
    const auto it = blocks.find(block);
    if (it == blocks.end() || it->second < power) return std::nullopt;
    it->second -= power;
    if (it->second == 0) blocks.erase(it);
  }
  Monomial result;
  result.blocks.assign(blocks.begin(), blocks.end());
  if (by.bare == Store::kOneTerm) {
    result.bare = m.bare;
    return result;
  }
  if (s.special(by.bare)) return std::nullopt;
  std::map<TermId, Code> factors;
  const auto each = [&](TermId product, auto&& f) {
    if (product == Store::kOneTerm) return;
    if (s.kind(product) != TermKind::kProduct) return f(Entry{product, Store::kOne});
    const Store::Parts parts = s.parts(product);
    for (std::uint32_t i = 0; i < parts.size; ++i) f(parts.entry(i));
  };
  each(m.bare, [&](Entry e) { factors[e.term] = e.code; });
  bool exact = true;
  each(by.bare, [&](Entry e) {
    const auto [it, fresh] = factors.emplace(e.term, Store::kZero);
    it->second = s.rationals.add(it->second, s.rationals.negate(e.code));
    exact = exact && (s.rationals.sign(it->second) >= 0 || owner_.isFinitePower(e.term));
  });
  if (!exact) return std::nullopt;
  std::vector<Entry> left;
  for (const auto& [term, code] : factors)
    if (code != Store::kZero) left.push_back({term, code});
  result.bare = s.internProduct(left);
  return result;
}

std::optional<TermAlgebra::Fractions::Polynomial> TermAlgebra::Fractions::Numerators::quotient(
    const Polynomial& numerator, TermId sum) {
  const Polynomial& by = polynomials_.at(sum);
  const auto top = lead(by);
  if (!top) return std::nullopt;
  auto& q = s.rationals;
  const auto lowest = [&](const Polynomial& p) {
    Code low = degree(p.begin()->first, *top);
    for (const auto& [m, v] : p) low = q.minimum(low, degree(m, *top));
    return low;
  };
  // No monomial of a quotient has a lower degree than this.
  const Code low = q.add(lowest(numerator), q.negate(lowest(by)));
  const Code own = degree(top->monomial, *top);
  Polynomial left = numerator, result;
  while (!left.empty()) {
    Code high = degree(left.begin()->first, *top);
    for (const auto& [m, v] : left)
      if (const Code d = degree(m, *top); q.less(high, d)) high = d;
    if (q.less(q.add(high, q.negate(own)), low)) return std::nullopt;
    Polynomial step;
    for (const auto& [m, v] : left) {
      if (degree(m, *top) != high) continue;
      const auto d = divided(m, top->monomial);
      if (!d) return std::nullopt;
      add(step, *d, q.multiply(v.factor, q.inverse(top->factor)), v.joined);
    }
    for (const auto& [m, v] : product(step, by)) add(left, m, q.negate(v.factor), v.joined);
    for (const auto& [m, v] : step) add(result, m, v.factor, v.joined);
  }
  return result;
}

TermId TermAlgebra::Fractions::Numerators::termOf(const Polynomial& p) {
  Store::SumBuilder b(s);
  for (const auto& [m, v] : p) {
    owner_.note(m.bare, v.joined);
    Store::ProductBuilder product(s);
    s.multiplyBy(product, m.bare, Store::kOne);
    for (const auto& [block, power] : m.blocks)
      s.multiplyBy(product, blocks_[block], s.rationals.encode(power));
    s.addTo(b, s.finish(product), v.factor);
  }
  return s.finish(b);
}

}  // namespace shardproof
