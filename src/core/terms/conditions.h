// SPDX-License-Identifier: Apache-2.0
// Where a value is defined, as a set of conditions beside the term. Rewriting may make a division,
// a root or a logarithm disappear from a term (x x^-1 = 1), but not the condition under which the
// value that was computed exists. So each term that an algebra hands out carries the set of what it
// was computed under: of its own partial operations and of everything it was computed from. Equal
// terms may carry different sets.
//
// Sets are interned: a set is a number, 0 the empty one, and equal sets have one number. A set is a
// tree over the numbers of its conditions (a Patricia tree: Okasaki and Gill, "Fast Mergeable
// Integer Maps", ML Workshop 1998), of which equal subtrees are one, and union is remembered. So
// the n sums of a chain, each of the conditions of all before it, cost n log n and not n^2. Nearly
// all sets are empty, as what always holds (a sum of exponentials is positive) is never made a
// condition (domain.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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
  bool includes(ConditionSet all, ConditionSet some) { return unite(all, some) == all; }
  // The same conditions where the indicator, a term, is 1. `both` gives the guard of what has one
  // already: none where that is never 1 together with the indicator, and nothing is needed then.
  template <class Both>
  ConditionSet guarded(ConditionSet a, std::uint32_t indicator, Both&& both) {
    if (a == 0) return 0;
    const std::uint64_t key = (std::uint64_t{a} << 32) | indicator;
    if (const auto it = guarded_.find(key); it != guarded_.end()) return it->second;
    ConditionSet made = 0;
    if (const Node node = nodes_[a]; node.isLeaf()) {
      for (const std::uint32_t id : idsOf(node)) {
        Condition c = all_[id];
        const std::optional<std::uint32_t> guard = both(c.guard);
        if (!guard) continue;
        c.guard = *guard;
        made = unite(made, single(c));
      }
    } else {
      const ConditionSet low = guarded(node.low(), indicator, both);
      made = unite(low, guarded(node.high(), indicator, both));
    }
    return guarded_.emplace(key, made).first->second;
  }
  std::vector<Condition> members(ConditionSet a) const;

 private:
  // A leaf has the conditions of one block of 64 numbers, as bits. A branch has those whose block
  // agrees with `block` above bit `bit`: first those that have 0 there.
  struct Node {
    std::uint64_t content = 0;  // the bits, or the two subtrees
    std::uint32_t block = 0;
    std::uint32_t bit = kLeaf;
    static constexpr std::uint32_t kLeaf = 32;
    bool isLeaf() const { return bit == kLeaf; }
    ConditionSet low() const { return static_cast<ConditionSet>(content); }
    ConditionSet high() const { return static_cast<ConditionSet>(content >> 32); }
    friend bool operator==(const Node&, const Node&) = default;
  };
  std::size_t slotOf(const Node& node) const;  // of the node, or of its free slot
  ConditionSet interned(const Node& node);
  ConditionSet branch(std::uint32_t bit, ConditionSet low, ConditionSet high);
  ConditionSet joined(ConditionSet a, ConditionSet b);
  ConditionSet into(ConditionSet whole, ConditionSet part);
  static bool covers(const Node& node, std::uint32_t block);
  static std::vector<std::uint32_t> idsOf(const Node& leaf);

  std::vector<Condition> all_;
  std::map<Condition, std::uint32_t> idOf_;
  std::vector<Node> nodes_;          // by set; the first stands for the empty one
  std::vector<ConditionSet> table_;  // the same, by hash; 0: free
  std::unordered_map<std::uint64_t, ConditionSet> united_, guarded_;
};

}  // namespace shardproof
