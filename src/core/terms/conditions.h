// SPDX-License-Identifier: Apache-2.0
// Where a value is defined, as a set of conditions beside the term. Rewriting may make a division,
// a root or a logarithm disappear from a term (x x^-1 = 1), but not the condition under which the
// value that was computed exists. So each term that an algebra hands out carries the set of what it
// was computed under: of its own partial operations and of everything it was computed from. Equal
// terms may carry different sets.
//
// Sets are interned: a set is a number, 0 the empty one, and union is remembered, so that tensors
// whose elements share their conditions cost little. Nearly all sets are empty, as what always
// holds (a sum of exponentials is positive) is never made a condition (domain.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace shardproof {

using ConditionSet = std::uint32_t;  // 0: none

struct Condition {
  enum class Kind : std::uint8_t {
    kNonZero,      // term `subject` is not zero
    kNonNegative,  // term `subject` is not negative
    kDefined,      // value number `subject`, which the caller numbers, is defined: an intermediate
                   // tensor's element
  };
  Kind kind = Kind::kNonZero;
  std::uint32_t subject = 0;
  // A term, 0 or 1, or 0 for none: the condition counts only where it is 1. A lookup needs the row
  // that it takes, and no other.
  std::uint32_t guard = 0;
  friend auto operator<=>(const Condition&, const Condition&) = default;
};

class Conditions {
 public:
  Conditions();
  ConditionSet single(const Condition& condition);
  // Throws Unsupported beyond a limit on the size of all sets together.
  ConditionSet unite(ConditionSet a, ConditionSet b);
  // The same conditions where the indicator, a term, is 1. `both` gives the guard of what has one
  // already: none where that is never 1 together with the indicator, and nothing is needed then.
  template <class Both>
  ConditionSet guarded(ConditionSet a, std::uint32_t indicator, Both&& both) {
    if (a == 0) return 0;
    const std::uint64_t key = (std::uint64_t{a} << 32) | indicator;
    if (const auto it = guarded_.find(key); it != guarded_.end()) return it->second;
    std::vector<Condition> all;
    for (Condition c : members(a)) {
      const std::optional<std::uint32_t> guard = both(c.guard);
      if (!guard) continue;
      c.guard = *guard;
      all.push_back(c);
    }
    return guarded_.emplace(key, of(all)).first->second;
  }
  std::vector<Condition> members(ConditionSet a) const;
  std::span<const std::uint32_t> ids(ConditionSet a) const;  // ascending; of equal conditions equal
  const Condition& at(std::uint32_t id) const { return all_[id]; }

 private:
  ConditionSet of(const std::vector<Condition>& conditions);
  ConditionSet intern(std::vector<std::uint32_t> sorted);
  std::uint32_t idOf(const Condition& condition);

  std::vector<Condition> all_;
  std::map<Condition, std::uint32_t> idOf_;
  std::map<std::vector<std::uint32_t>, ConditionSet> setOf_;
  std::vector<const std::vector<std::uint32_t>*> sets_;  // keys of setOf_, which do not move
  std::unordered_map<std::uint64_t, ConditionSet> united_, guarded_;
  std::size_t words_ = 0;
};

}  // namespace shardproof
