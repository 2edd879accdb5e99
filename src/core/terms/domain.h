// SPDX-License-Identifier: Apache-2.0
// Where terms are defined. A proof compares two sides as expressions, and rewriting may remove a
// division or a root from one of them; so it must be known besides that the plan's value is defined
// wherever the model's is.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "terms/conditions.h"
#include "terms/term_algebra.h"

namespace shardproof {

// Makes conditions of partial operations. Of one algebra.
class Domain {
 public:
  explicit Domain(TermAlgebra& algebra);
  ~Domain();
  // What base^(halves/2), or for halves = 0 the logarithm, needs of `base` and does not always
  // have, for any value of its variables at which it is defined.
  ConditionSet of(Term base, int halves);
  // Known for every value of the variables.
  Sign sign(Term t) const;
  bool neverPositive(Term t) const;

 private:
  class Signs;
  void nonZero(Term t, ConditionSet& set);
  void nonNegative(Term t, ConditionSet& set);

  TermAlgebra& algebra_;
  std::unique_ptr<Signs> signs_;
};

// Bounds the expansion of conditions where a stage is proved, in monomials.
constexpr std::size_t kDomainBudget = 20'000;

// The first condition of `plan` that is not met wherever all of `model` are: neither among them,
// without a guard or with the same, nor after expanding both. `budget` bounds the expansion; what
// cannot be expanded is not covered. Works on a normalised algebra. What was the same only after
// expanding is put to `expanded`, plan's and model's: on representatives that is an identity if
// enough positions are kept apart, as for all that is expanded.
std::optional<Condition> uncovered(TermAlgebra& algebra, ConditionSet model, ConditionSet plan,
                                   std::size_t budget,
                                   std::vector<std::pair<Term, Term>>& expanded);

// A condition of the set that no value of the variables meets: a divisor that is zero when it is
// multiplied out, the root of a negative number. Nothing where none is found, which does not say
// that they can be met, let alone all together. Conditions in `known` are passed over, the others
// are added to it.
std::optional<Condition> impossible(TermAlgebra& algebra, ConditionSet set, std::size_t budget,
                                    std::set<Condition>& known);

}  // namespace shardproof
