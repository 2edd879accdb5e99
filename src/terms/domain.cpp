#include "terms/domain.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardproof/error.h"

namespace shardproof {

namespace {

enum class Sign : std::uint8_t { kUnknown, kNonNegative, kPositive };
enum class Condition : std::uint8_t { kNonZero, kNonNegative };

// What is known of a term's sign for every value of its variables (where it is defined).
class Signs {
 public:
  explicit Signs(const TermAlgebra& algebra) : algebra_(algebra) {}

  Sign of(Term t) {
    if (const auto it = known_.find(t.id); it != known_.end()) return it->second;
    const Sign sign = compute(t);
    known_[t.id] = sign;
    return sign;
  }

 private:
  Sign compute(Term t) {
    switch (algebra_.kind(t)) {
      case TermKind::kConstant: {
        const int s = algebra_.constantValue(t).sign();
        return s > 0 ? Sign::kPositive : s == 0 ? Sign::kNonNegative : Sign::kUnknown;
      }
      case TermKind::kExp: return algebra_.mayBeInfinite(algebra_.arguments(t)[0]) ? Sign::kNonNegative : Sign::kPositive;   // exp(-inf) is 0
      case TermKind::kSqrt:
      case TermKind::kIndicator: return Sign::kNonNegative;
      case TermKind::kFunction:
        switch (algebra_.function(t)) {
          case ops::Function::kSigmoid:
          case ops::Function::kNormalCdf:
          case ops::Function::kNormalPdf:
          case ops::Function::kSqrtTwoOverPi: return Sign::kPositive;
          case ops::Function::kStep:
          case ops::Function::kDropoutMask: return Sign::kNonNegative;
          default: return Sign::kUnknown;
        }
      case TermKind::kProduct: {
        Sign sign = Sign::kPositive;
        for (const auto& part : algebra_.parts(t)) {
          const Sign base = of(part.term);
          const bool even = part.factor.fitsInt64() && part.factor.toInt64() % 2 == 0;
          const Sign factor = base == Sign::kPositive ? Sign::kPositive : even || base == Sign::kNonNegative ? Sign::kNonNegative : Sign::kUnknown;
          sign = std::min(sign, factor);
        }
        return sign;
      }
      case TermKind::kSum: {
        const Rational constant = algebra_.constantValue(t);
        if (constant.sign() < 0) return Sign::kUnknown;
        Sign sign = constant.sign() > 0 ? Sign::kPositive : Sign::kNonNegative;
        for (const auto& part : algebra_.parts(t)) {
          const Sign term = of(part.term);
          if (part.factor.sign() < 0 || term == Sign::kUnknown) return Sign::kUnknown;
          if (term == Sign::kPositive) sign = Sign::kPositive;
        }
        return sign;
      }
      default: return Sign::kUnknown;
    }
  }

  const TermAlgebra& algebra_;
  std::unordered_map<std::uint32_t, Sign> known_;
};

class Domain {
 public:
  explicit Domain(TermAlgebra& algebra) : algebra_(algebra), signs_(algebra) {}

  using Key = std::pair<Condition, std::uint32_t>;

  // The conditions of one use that do not always hold.
  std::vector<Key> conditions(const TermAlgebra::PartialUse& use) {
    std::vector<Key> keys;
    if (use.halves % 2 != 0 || use.halves == 0) nonNegative(use.base, keys);
    if (use.halves <= 0) nonZero(use.base, keys);
    return keys;
  }

 private:
  // A product is zero when a factor is; a sum up to a constant factor.
  void nonZero(Term t, std::vector<Key>& keys) {
    if (algebra_.kind(t) == TermKind::kProduct) {
      for (const auto& part : algebra_.parts(t)) nonZero(part.term, keys);
      return;
    }
    if (algebra_.kind(t) == TermKind::kSum) {
      const auto parts = algebra_.parts(t);
      if (parts.size() == 1 && algebra_.constantValue(t).isZero()) {
        nonZero(parts[0].term, keys);
        return;
      }
      t = algebra_.scale(parts[0].factor.inverse(), t);
    }
    if (signs_.of(t) == Sign::kPositive) return;
    if (algebra_.kind(t) == TermKind::kSum && signs_.of(algebra_.scale(Rational(-1), t)) == Sign::kPositive) return;
    keys.emplace_back(Condition::kNonZero, t.id);
  }

  void nonNegative(Term t, std::vector<Key>& keys) {
    if (signs_.of(t) != Sign::kUnknown) return;
    if (algebra_.kind(t) == TermKind::kSum) {
      const Rational lead = algebra_.parts(t)[0].factor;
      t = algebra_.scale((lead.sign() < 0 ? -lead : lead).inverse(), t);
    }
    keys.emplace_back(Condition::kNonNegative, t.id);
  }

  TermAlgebra& algebra_;
  Signs signs_;
};

}  // namespace

std::optional<TermAlgebra::PartialUse> uncoveredUse(TermAlgebra& algebra, std::size_t modelUses, std::size_t budget) {
  const std::vector<TermAlgebra::PartialUse> uses = algebra.partialUses();
  if (uses.size() == modelUses) return std::nullopt;   // no other operation than the model's own, term by term
  Domain domain(algebra);
  std::set<Domain::Key> model;
  for (std::size_t i = 0; i < modelUses; ++i) {
    for (const auto& key : domain.conditions(uses[i])) model.insert(key);
  }
  std::set<Domain::Key> expanded;   // filled when first needed
  for (std::size_t i = modelUses; i < uses.size(); ++i) {
    for (const auto& key : domain.conditions(uses[i])) {
      if (model.contains(key)) continue;
      try {
        if (expanded.empty()) {
          for (const auto& [condition, id] : model) expanded.emplace(condition, algebra.expand(Term{id}, budget).id);
        }
        if (expanded.contains({key.first, algebra.expand(Term{key.second}, budget).id})) continue;
      } catch (const Unsupported&) {   // too large to expand: not shown to be covered
      }
      return uses[i];
    }
  }
  return std::nullopt;
}

}  // namespace shardproof
