// SPDX-License-Identifier: Apache-2.0
#include "terms/domain.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardproof/error.h"

namespace shardproof {

// What is known of a term's sign for every value of its variables (where it is defined).
class Domain::Signs {
 public:
  explicit Signs(const TermAlgebra& algebra) : algebra_(algebra) {}

  Sign of(Term t) {
    if (const auto it = known_.find(t.id); it != known_.end()) return it->second;
    const Sign sign = compute(t);
    known_[t.id] = sign;
    return sign;
  }

  // Of -1 times the term.
  Sign turned(Term t) {
    switch (algebra_.kind(t)) {
      case TermKind::kConstant: {
        const int s = algebra_.constantValue(t).sign();
        return s < 0 ? Sign::kPositive : s == 0 ? Sign::kNonNegative : Sign::kUnknown;
      }
      case TermKind::kProduct:
        return ofProduct(t, -1);
      case TermKind::kSum:
        return ofSum(t, -1);
      default:
        return Sign::kUnknown;
    }
  }

 private:
  Sign compute(Term t) {
    switch (algebra_.kind(t)) {
      case TermKind::kConstant: {
        const int s = algebra_.constantValue(t).sign();
        return s > 0 ? Sign::kPositive : s == 0 ? Sign::kNonNegative : Sign::kUnknown;
      }
      case TermKind::kVariable:
        return algebra_.variableSign(algebra_.variableIndex(t));
      case TermKind::kExp:
        return algebra_.mayBeInfinite(algebra_.arguments(t)[0])
                   ? Sign::kNonNegative
                   : Sign::kPositive;  // exp(-inf) is 0
      case TermKind::kSqrt:
      case TermKind::kIndicator:
        return Sign::kNonNegative;
      case TermKind::kFunction:
        switch (algebra_.function(t)) {
          case ops::Function::kSigmoid:
          case ops::Function::kNormalCdf:
          case ops::Function::kNormalPdf:
          case ops::Function::kSqrtTwoOverPi:
            return Sign::kPositive;
          case ops::Function::kStep:
          case ops::Function::kDropoutMask:
            return Sign::kNonNegative;
          default:
            return Sign::kUnknown;
        }
      case TermKind::kProduct:
        return ofProduct(t, 1);
      case TermKind::kSum: {
        const Sign sign = ofSum(t, 1);
        return sign == Sign::kNonNegative && someChoiceIsTaken(t) ? Sign::kPositive : sign;
      }
      default:
        return Sign::kUnknown;
    }
  }

  // Of the sum, or of -1 times it (`turned`).
  Sign ofSum(Term sum, int turned) {
    const int constant = turned * algebra_.constantValue(sum).sign();
    if (constant < 0) return Sign::kUnknown;
    Sign sign = constant > 0 ? Sign::kPositive : Sign::kNonNegative;
    for (const auto& part : algebra_.parts(sum)) {
      const Sign term = turned * part.factor.sign() > 0 ? of(part.term) : this->turned(part.term);
      if (term == Sign::kUnknown) return Sign::kUnknown;
      if (term == Sign::kPositive) sign = Sign::kPositive;
    }
    return sign;
  }

  // Of the product, or of -1 times it (`turned`). step(k x) x has the sign of k where it is not 0:
  // x that step(k x) chooses counts as one factor with it. So |x| is known to be no less than 0.
  Sign ofProduct(Term product, int turned) {
    const auto parts = algebra_.parts(product);
    Sign sign = Sign::kPositive;
    for (const auto& part : parts) {
      const Sign base = of(part.term);
      const bool even = part.factor.fitsInt64() && part.factor.toInt64() % 2 == 0;
      Sign factor = base == Sign::kPositive              ? Sign::kPositive
                    : even || base == Sign::kNonNegative ? Sign::kNonNegative
                                                         : Sign::kUnknown;
      if (factor == Sign::kUnknown && part.factor.isInteger()) {
        if (const int chosen = signWhereChosen(part.term, parts)) {
          turned *= chosen;
          factor = Sign::kNonNegative;
        }
      }
      sign = std::min(sign, factor);
    }
    return turned > 0 ? sign : Sign::kUnknown;
  }

  // Of x among factors of which one is step(k x); 0: none is. An odd power of x has its sign.
  int signWhereChosen(Term x, const std::vector<TermAlgebra::Part>& factors) const {
    for (const auto& f : factors) {
      if (algebra_.kind(f.term) != TermKind::kFunction ||
          algebra_.function(f.term) != ops::Function::kStep || f.factor.sign() <= 0)
        continue;
      if (const auto k = multiple(algebra_.arguments(f.term)[0], x)) return k->sign();
    }
    return 0;
  }

  // k with y = k x, if there is one by the two terms' forms; never 0.
  std::optional<Rational> multiple(Term y, Term x) const {
    if (y.id == x.id) return Rational(1);
    if (algebra_.kind(y) != TermKind::kSum) return std::nullopt;
    const auto summands = algebra_.parts(y);
    if (summands.empty()) return std::nullopt;
    if (algebra_.kind(x) != TermKind::kSum) {
      const bool alone = summands.size() == 1 && algebra_.constantValue(y).isZero();
      return alone && summands[0].term.id == x.id ? std::optional(summands[0].factor)
                                                  : std::nullopt;
    }
    const auto others = algebra_.parts(x);
    if (summands.size() != others.size()) return std::nullopt;
    const Rational k = summands[0].factor / others[0].factor;
    for (std::size_t i = 0; i < summands.size(); ++i)
      if (summands[i].term.id != others[i].term.id || summands[i].factor != k * others[i].factor)
        return std::nullopt;
    if (algebra_.constantValue(y) != k * algebra_.constantValue(x)) return std::nullopt;
    return k;
  }

  // sum over i of [c = i] x_i with all x_i positive, where c is the choice of one of so many and
  // all are there: one of the summands is positive. Other parts of the sum are not negative.
  bool someChoiceIsTaken(Term sum) {
    std::map<std::uint32_t, std::set<std::int64_t>> taken;  // by the choice
    for (const auto& part : algebra_.parts(sum)) {
      std::optional<Term> indicator;
      bool positive = true;
      const auto factor = [&](Term t) {
        if (algebra_.kind(t) == TermKind::kIndicator && !indicator) indicator = t;
        else positive = positive && of(t) == Sign::kPositive;
      };
      if (algebra_.kind(part.term) == TermKind::kProduct) {
        for (const auto& p : algebra_.parts(part.term)) {
          positive =
              positive && (algebra_.kind(p.term) != TermKind::kIndicator || p.factor.isOne());
          factor(p.term);
        }
      } else {
        factor(part.term);
      }
      if (!indicator || !positive) continue;
      const Term choice = algebra_.arguments(*indicator)[0];
      if (algebra_.kind(choice) == TermKind::kFunction &&
          algebra_.function(choice) == ops::Function::kGateChoice) {
        taken[choice.id].insert(algebra_.parameters(*indicator)[0]);
      }
    }
    return std::any_of(taken.begin(), taken.end(), [&](const auto& t) {
      const auto experts = static_cast<std::int64_t>(algebra_.arguments(Term{t.first}).size());
      return static_cast<std::int64_t>(t.second.size()) == experts && *t.second.begin() == 0 &&
             *t.second.rbegin() == experts - 1;
    });
  }

  const TermAlgebra& algebra_;
  std::unordered_map<std::uint32_t, Sign> known_;
};

Domain::Domain(TermAlgebra& algebra)
    : algebra_(algebra), signs_(std::make_unique<Signs>(algebra)) {}
Domain::~Domain() = default;

ConditionSet Domain::of(Term base, int halves) {
  ConditionSet set = 0;
  if (halves % 2 != 0 || halves == 0) nonNegative(base, set);
  if (halves <= 0) nonZero(base, set);
  return set;
}

Sign Domain::sign(Term t) const { return signs_->of(t); }
bool Domain::neverPositive(Term t) const { return signs_->turned(t) != Sign::kUnknown; }

// A product is zero when a factor is; a sum up to a constant factor.
void Domain::nonZero(Term t, ConditionSet& set) {
  if (algebra_.kind(t) == TermKind::kConstant && !algebra_.constantValue(t).isZero()) return;
  if (algebra_.kind(t) == TermKind::kProduct) {
    for (const auto& part : algebra_.parts(t)) nonZero(part.term, set);
    return;
  }
  if (algebra_.kind(t) == TermKind::kSum) {
    const auto parts = algebra_.parts(t);
    if (parts.size() == 1 && algebra_.constantValue(t).isZero()) {
      nonZero(parts[0].term, set);
      return;
    }
    t = algebra_.scale(parts[0].factor.inverse(), t);
  }
  if (signs_->of(t) == Sign::kPositive) return;
  if (algebra_.kind(t) == TermKind::kSum &&
      signs_->of(algebra_.scale(Rational(-1), t)) == Sign::kPositive)
    return;
  set = algebra_.conditions().unite(
      set, algebra_.conditions().single({Condition::Kind::kNonZero, t.id, 0}));
}

void Domain::nonNegative(Term t, ConditionSet& set) {
  if (signs_->of(t) != Sign::kUnknown) return;
  if (algebra_.kind(t) == TermKind::kSum) {
    const Rational lead = algebra_.parts(t)[0].factor;
    t = algebra_.scale((lead.sign() < 0 ? -lead : lead).inverse(), t);
  }
  set = algebra_.conditions().unite(
      set, algebra_.conditions().single({Condition::Kind::kNonNegative, t.id, 0}));
}

std::optional<Condition> uncovered(TermAlgebra& algebra, ConditionSet model, ConditionSet plan,
                                   std::size_t budget,
                                   std::vector<std::pair<Term, Term>>& multiplied) {
  if (algebra.conditions().includes(model, plan)) return std::nullopt;
  const Conditions& conditions = algebra.conditions();
  std::set<Condition> given;
  std::map<Condition, std::uint32_t> expanded;  // to what it was
  for (const Condition& c : conditions.members(model)) given.insert(c);
  const auto among = [](const auto& known, const Condition& c) {
    const auto it = known.find(c);
    return it != known.end() ? it : known.find({c.kind, c.subject, 0});
  };
  const auto expand = [&](std::uint32_t subject) {
    return algebra.expand(Term{subject}, budget).id;
  };
  for (const Condition& c : conditions.members(plan)) {
    if (among(given, c) != given.end()) continue;
    if (c.kind == Condition::Kind::kDefined) return c;
    try {
      if (expanded.empty()) {
        for (const Condition& g : given) {
          if (g.kind != Condition::Kind::kDefined)
            expanded.insert({{g.kind, expand(g.subject), g.guard}, g.subject});
        }
      }
      const auto same = among(expanded, {c.kind, expand(c.subject), c.guard});
      if (same != expanded.end()) {
        multiplied.emplace_back(Term{c.subject}, Term{same->second});
        continue;
      }
    } catch (const Unsupported&) {  // too large to expand: not shown to be covered
    }
    return c;
  }
  return std::nullopt;
}

std::optional<Condition> impossible(TermAlgebra& algebra, ConditionSet set, std::size_t budget,
                                    std::set<Condition>& known) {
  for (const Condition& c : algebra.conditions().members(set)) {
    if (!known.insert(c).second) continue;
    if (c.kind == Condition::Kind::kDefined || c.guard != 0) continue;
    try {
      const Term t = algebra.expand(Term{c.subject}, budget);
      if (algebra.kind(t) != TermKind::kConstant) continue;
      const int sign = algebra.constantValue(t).sign();
      if (c.kind == Condition::Kind::kNonZero ? sign == 0 : sign < 0) return c;
    } catch (const Unsupported&) {  // not known
    }
  }
  return std::nullopt;
}

}  // namespace shardproof
