// SPDX-License-Identifier: Apache-2.0
// The normal form of functions: powers, exponentials, logarithms, extrema, opaque functions and
// indicators (term_normal.cpp says what a normal form is).
#include <algorithm>
#include <limits>
#include "terms/term_store.h"

namespace shardproof {

// x^(2n) as an integer power. x^(2n+1 halves) = x^n sqrt(x): the left side is defined where x >= 0
// (x > 0 for a negative power), and so is the right. x^0 = 1 everywhere.
TermId TermAlgebra::Store::power(TermId base, int halves) {
  if (kind(base) == TermKind::kNegativeInfinity) infinite("raised to a power");
  if (halves == 0) return kOneTerm;
  if (halves == 2) return base;
  const std::int64_t odd = halves & 1;
  const std::int64_t whole = (static_cast<std::int64_t>(halves) - odd) / 2;
  ProductBuilder b(*this);
  if (whole != 0) multiplyBy(b, base, rationals.encode(whole));
  if (odd != 0) multiplyByRoot(b, base);
  return finish(b);
}

TermId TermAlgebra::Store::exp(TermId a) {
  ProductBuilder b(*this);
  multiplyByExp(b, a, kOne);
  return finish(b);
}

// log(c e r) for a rational c and a product e = prod exp(t_i)^c_i of exp atoms with finite
// arguments: log|c| + sum c_i t_i + log(sign(c) r), as |c| > 0 and e > 0; both sides are defined
// where sign(c) r > 0. This is what makes logarithms of sums of exponentials agree that subtract
// different maxima first. log(x y) is left alone for other factors: both may be negative.
TermId TermAlgebra::Store::logarithm(TermId a) {
  if (kind(a) == TermKind::kNegativeInfinity) infinite("as the argument of log");
  ProductBuilder f(*this);
  multiplyBy(f, a, kOne);
  settle(f);
  if (f.zero) throw Unsupported("the logarithm of zero");
  SumBuilder result(*this);
  const bool negative = rationals.sign(f.coefficient) < 0;
  Scratch rest(*this);
  for (const Entry& e : *f.entries) {
    if (kind(e.term) == TermKind::kExp && !mayBeInfinite(nodes[e.term].data)) {
      addTo(result, nodes[e.term].data, e.code);
    } else {
      rest->push_back(e);
    }
  }
  if (rest->empty() && negative) throw Unsupported("the logarithm of a negative number");
  const mpq_class q = abs(rationals.decode(f.coefficient).toMpq());
  const auto addConstant = [&](const mpz_class& n, Code sign) {
    if (n == 1) return;
    const TermId argument = internConstant(rationals.encode(Rational(mpq_class(n))));
    addTo(result, internFunction(ops::Function::kLog, {}, {&argument, 1}), sign);
  };
  addConstant(q.get_num(), kOne);  // log(p/q) = log p - log q for positive integers
  addConstant(q.get_den(), RationalPool::kMinusOne);
  if (!rest->empty()) {
    TermId r = internProduct(*rest);
    if (negative) r = scale(RationalPool::kMinusOne, r);
    addTo(result, internFunction(ops::Function::kLog, {}, {&r, 1}), kOne);
  }
  return finish(result);
}

// ---------------------------------------------------------------- opaque functions, indicators

// Values known exactly, nothing rounded.
TermId TermAlgebra::Store::foldConstants(ops::Function f, std::span<const TermId> arguments) {
  using ops::Function;
  if (arguments.size() != 1 || kind(arguments[0]) != TermKind::kConstant) return kFree;
  const Code c = nodes[arguments[0]].data;
  switch (f) {
    case Function::kStep:
      return rationals.sign(c) > 0 ? kOneTerm : kZeroTerm;
    case Function::kTanh:
      return c == kZero ? kZeroTerm : kFree;
    case Function::kSigmoid:
    case Function::kNormalCdf:
      return c == kZero ? internConstant(rationals.encode(Rational(1, 2))) : kFree;
    case Function::kLog:
      if (rationals.sign(c) <= 0)
        throw Unsupported("the logarithm of a number that is not positive");
      return c == kOne ? kZeroTerm : kFree;
    default:
      return kFree;
  }
}

// max(max(a, b), c) = max(a, b, c), order and repetition do not matter, and minus infinity is the
// neutral element of max.
TermId TermAlgebra::Store::extremum(ops::Function f, std::span<const TermId> arguments) {
  const bool maximum = f == ops::Function::kMaximum;
  std::vector<TermId> flat;
  Code constant = kZero;
  bool anyConstant = false;
  bool anyInfinite = false;
  const auto take = [&](TermId t) {
    if (kind(t) == TermKind::kNegativeInfinity) {
      if (!maximum) infinite("in a minimum");
      anyInfinite = true;
    } else if (kind(t) == TermKind::kConstant) {
      const Code c = nodes[t].data;
      if (!anyConstant || (maximum ? rationals.less(constant, c) : rationals.less(c, constant)))
        constant = c;
      anyConstant = true;
    } else {
      flat.push_back(t);
    }
  };
  for (const TermId t : arguments) {
    if (kind(t) == TermKind::kFunction && functionOf(t) == f) {
      for (const TermId inner : functionParts(t).arguments) take(inner);
    } else {
      take(t);
    }
  }
  if (anyConstant) flat.push_back(internConstant(constant));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) {
    if (anyInfinite) return kInfinityTerm;
    throw Unsupported(std::string(ops::name(f)) + " of no arguments");
  }
  return flat.size() == 1 ? flat[0] : internFunction(f, {}, flat);
}

TermId TermAlgebra::Store::apply(ops::Function f, std::span<const std::int64_t> params,
                                 std::span<const TermId> arguments) {
  if (ops::isSymmetric(f)) return extremum(f, arguments);
  for (const TermId t : arguments) {
    if (kind(t) == TermKind::kNegativeInfinity)
      infinite((std::string("as an argument of ") + ops::name(f)).c_str());
  }
  if (const TermId folded = foldConstants(f, arguments); folded != kFree) return folded;
  if (f == ops::Function::kLog && arguments.size() == 1) return logarithm(arguments[0]);
  return internFunction(f, params, arguments);
}

bool TermAlgebra::Store::isIntegral(TermId t) const {
  switch (kind(t)) {
    case TermKind::kVariable:
      return integerVariable[nodes[t].data];
    case TermKind::kIndicator:
      return true;
    case TermKind::kFunction:
      return functionOf(t) == ops::Function::kGateChoice || functionOf(t) == ops::Function::kStep;
    default:
      return false;
  }
}

// [c t + k = v] = [t = (v - k)/c] for a rational c != 0; if that is no integer and t always is one,
// it is 0.
TermId TermAlgebra::Store::indicator(TermId index, std::int64_t value) {
  if (kind(index) == TermKind::kNegativeInfinity) infinite("as an index");
  if (kind(index) == TermKind::kConstant)
    return nodes[index].data == rationals.encode(value) ? kOneTerm : kZeroTerm;
  if (kind(index) != TermKind::kSum) return internIndicator(index, value);
  const Parts p = parts(index);
  Rational target = Rational(value) - rationals.decode(p.constant);
  TermId inner = index;
  bool integral = true;
  if (p.size == 1) {
    const Entry e = p.entry(0);
    target = target / rationals.decode(e.code);
    inner = e.term;
    integral = isIntegral(inner);
  } else {
    for (std::uint32_t i = 0; i < p.size; ++i) {
      integral = integral && RationalPool::isSmall(p.code(i)) && isIntegral(p.term(i));
    }
    if (p.constant != kZero) {
      Scratch entries(*this);
      for (std::uint32_t i = 0; i < p.size; ++i) entries->push_back(p.entry(i));
      inner = internSum(kZero, *entries);
    }
  }
  if (!target.isInteger()) {
    if (integral) return kZeroTerm;
    throw Unsupported("an index that need not be an integer");
  }
  if (!target.fitsInt64()) throw Unsupported("an index beyond 64 bits");
  return internIndicator(inner, target.toInt64());
}

}  // namespace shardproof
