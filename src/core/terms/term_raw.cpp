// SPDX-License-Identifier: Apache-2.0
// Raw mode: what the solver is given when nothing may be assumed of the normal form. Sums and
// products keep their structure; only what the solver cannot express is simplified (minus
// infinity), and constants are folded.
#include <cstdlib>

#include "terms/term_store.h"

namespace shardproof {
TermId TermAlgebra::Store::rawSum(std::span<const Term> terms,
                                  std::span<const std::int64_t> weights) {
  Scratch entries(*this);
  Code constant = kZero;
  bool anyInfinite = false;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const TermId t = terms[i].id;
    const Code weight = weights.empty() ? kOne : rationals.encode(weights[i]);
    if (kind(t) == TermKind::kNegativeInfinity) {
      if (rationals.sign(weight) <= 0) infinite("scaled by a number that is not positive");
      anyInfinite = true;
    } else if (kind(t) == TermKind::kConstant) {
      constant = rationals.add(constant, rationals.multiply(weight, nodes[t].data));
    } else if (weight != kZero) {
      entries->push_back({t, weight});
    }
  }
  return anyInfinite ? kInfinityTerm : internSum(constant, *entries);
}

TermId TermAlgebra::Store::rawScale(Code c, TermId t) {
  if (c == kOne) return t;
  if (kind(t) == TermKind::kConstant || kind(t) == TermKind::kNegativeInfinity) return scale(c, t);
  if (c == kZero) return kZeroTerm;
  const Entry e{t, c};
  return internSum(kZero, {&e, 1});
}

TermId TermAlgebra::Store::rawMultiply(TermId a, TermId b) {
  if (kind(a) == TermKind::kConstant) return rawScale(nodes[a].data, b);
  if (kind(b) == TermKind::kConstant) return rawScale(nodes[b].data, a);
  if (kind(a) == TermKind::kNegativeInfinity || kind(b) == TermKind::kNegativeInfinity)
    infinite("times a term that is not a positive constant");
  const Entry entries[2] = {{a, kOne}, {b, kOne}};
  return internProduct(entries);
}

TermId TermAlgebra::Store::rawPower(TermId base, int halves) {
  if (kind(base) == TermKind::kNegativeInfinity) infinite("raised to a power");
  if (halves == 0) return kOneTerm;
  if (halves == 2) return base;
  Entry e{base, rationals.encode(halves % 2 == 0 ? halves / 2 : halves)};
  if (halves % 2 != 0) {
    if (kind(base) == TermKind::kConstant) {
      const mpq_class q = rationals.decode(nodes[base].data).toMpq();
      if (sgn(q) < 0) throw Unsupported("the square root of a negative number");
      if (mpz_perfect_square_p(q.get_num().get_mpz_t()) &&
          mpz_perfect_square_p(q.get_den().get_mpz_t())) {
        e.term = internConstant(
            rationals.encode(Rational(mpq_class(sqrt(q.get_num()), sqrt(q.get_den())))));
      }
    }
    if (e.term == base && base != kOneTerm && base != kZeroTerm)
      e.term = internUnary(TermKind::kSqrt, base);
  }
  if (kind(e.term) == TermKind::kConstant) {
    if (e.term == kZeroTerm) {
      if (halves < 0) throw Unsupported("division by a term that is zero");
      return kZeroTerm;
    }
    return internConstant(rationals.power(nodes[e.term].data, e.code));
  }
  return internProduct({&e, 1});
}

TermId TermAlgebra::Store::rawExp(TermId a) {
  if (a == kZeroTerm) return kOneTerm;
  if (kind(a) == TermKind::kNegativeInfinity) return kZeroTerm;
  return internUnary(TermKind::kExp, a);
}

TermId TermAlgebra::Store::rawApply(ops::Function f, std::span<const std::int64_t> params,
                                    std::span<const TermId> arguments) {
  if (!ops::isSymmetric(f)) {
    for (const TermId t : arguments) {
      if (kind(t) == TermKind::kNegativeInfinity)
        infinite((std::string("as an argument of ") + ops::name(f)).c_str());
    }
    const TermId folded = foldConstants(f, arguments);
    return folded != kFree ? folded : internFunction(f, params, arguments);
  }
  std::vector<TermId> kept;
  bool constants = true;
  for (const TermId t : arguments) {
    if (kind(t) == TermKind::kNegativeInfinity) {
      if (f == ops::Function::kMinimum) infinite("in a minimum");
      continue;
    }
    constants = constants && kind(t) == TermKind::kConstant;
    kept.push_back(t);
  }
  if (kept.size() == 1) return kept[0];
  // With nothing but constants (or nothing at all) the normal form folds exactly.
  return constants ? extremum(f, arguments) : internFunction(f, {}, kept);
}

TermId TermAlgebra::Store::rawIndicator(TermId index, std::int64_t value) {
  if (kind(index) == TermKind::kNegativeInfinity) infinite("as an index");
  if (kind(index) == TermKind::kConstant)
    return nodes[index].data == rationals.encode(value) ? kOneTerm : kZeroTerm;
  return internIndicator(index, value);
}

}  // namespace shardproof
