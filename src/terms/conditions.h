// Where a value is defined, as a set of conditions beside the term. Rewriting may make a division, a root or a logarithm disappear from a term (x x^-1 = 1), but
// not the condition under which the value that was computed exists. So each term that an algebra hands out carries the set of what it was computed
// under: of its own partial operations and of everything it was computed from. Equal terms may carry different sets.
//
// Sets are interned: a set is a number, 0 the empty one, and union is remembered, so that tensors whose elements share their conditions cost little.
// Nearly all sets are empty, as what always holds (a sum of exponentials is positive) is never made a condition (domain.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace shardproof {

using ConditionSet = std::uint32_t;   // 0: none

struct Condition {
  enum class Kind : std::uint8_t {
    kNonZero,       // term `subject` is not zero
    kNonNegative,   // term `subject` is not negative
    kDefined,       // value number `subject`, which the caller numbers, is defined: an intermediate tensor's element
  };
  Kind kind = Kind::kNonZero;
  std::uint32_t subject = 0;
  // Of a value that was multiplied by an indicator [i = v]: a lookup needs it only where the indicator is 1, a product with a one-hot matrix always. A plan
  // needs it therefore, and a model's value says nothing about it.
  bool maybe = false;
  friend auto operator<=>(const Condition&, const Condition&) = default;
};

class Conditions {
 public:
  Conditions();
  ConditionSet single(const Condition& condition);
  // Throws Unsupported beyond a limit on the size of all sets together.
  ConditionSet unite(ConditionSet a, ConditionSet b);
  // The same conditions, each only perhaps needed.
  ConditionSet maybe(ConditionSet a);
  std::vector<Condition> members(ConditionSet a) const;
  std::span<const std::uint32_t> ids(ConditionSet a) const;   // ascending; of equal conditions equal
  const Condition& at(std::uint32_t id) const { return all_[id]; }

 private:
  ConditionSet intern(std::vector<std::uint32_t> sorted);
  std::uint32_t idOf(const Condition& condition);

  std::vector<Condition> all_;
  std::map<Condition, std::uint32_t> idOf_;
  std::map<std::vector<std::uint32_t>, ConditionSet> setOf_;
  std::vector<const std::vector<std::uint32_t>*> sets_;           // keys of setOf_, which do not move
  std::unordered_map<std::uint64_t, ConditionSet> united_;
  std::unordered_map<ConditionSet, ConditionSet> maybe_;
  std::size_t words_ = 0;
};

}  // namespace shardproof
