// SPDX-License-Identifier: Apache-2.0
#include "terms/conditions.h"

#include <algorithm>
#include <bit>

#include "shardproof/error.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostNodes = 8'000'000;  // of all sets: some 200 MB with their table
constexpr std::size_t kSmallestTable = 64;     // a power of two
constexpr std::uint32_t kBlock = 64;           // conditions of a leaf

// The highest bit in which two blocks differ.
std::uint32_t differing(std::uint32_t a, std::uint32_t b) { return std::bit_width(a ^ b) - 1U; }

}  // namespace

std::size_t Conditions::slotOf(const Node& node) const {
  std::uint64_t h = node.content ^ (std::uint64_t{node.block} << 32 | node.bit);
  // The finalizer of MurmurHash3 (A. Appleby), which mixes 64 bits.
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  std::size_t at = (h ^ (h >> 33)) & (table_.size() - 1);
  while (table_[at] != 0 && nodes_[table_[at]] != node) at = (at + 1) & (table_.size() - 1);
  return at;
}

Conditions::Conditions() : nodes_(1), table_(kSmallestTable) {}

ConditionSet Conditions::interned(const Node& node) {
  std::size_t at = slotOf(node);
  if (table_[at] != 0) return table_[at];
  if (nodes_.size() > kMostNodes)
    throw Unsupported("too many conditions under which values are defined");
  const auto made = static_cast<ConditionSet>(nodes_.size());
  nodes_.push_back(node);
  if (2 * nodes_.size() > table_.size()) {
    table_.assign(2 * table_.size(), 0);
    for (ConditionSet set = 1; set < made; ++set) table_[slotOf(nodes_[set])] = set;
    at = slotOf(node);
  }
  table_[at] = made;
  return made;
}

ConditionSet Conditions::single(const Condition& condition) {
  const auto [it, inserted] = idOf_.emplace(condition, static_cast<std::uint32_t>(all_.size()));
  if (inserted) all_.push_back(condition);
  return interned({std::uint64_t{1} << it->second % kBlock, it->second / kBlock, Node::kLeaf});
}

ConditionSet Conditions::branch(std::uint32_t bit, ConditionSet low, ConditionSet high) {
  const std::uint32_t block = nodes_[low].block >> bit << bit;
  return interned({(std::uint64_t{high} << 32) | low, block, bit});
}

bool Conditions::covers(const Node& node, std::uint32_t block) {
  return std::uint64_t{node.block} >> (node.bit + 1) == std::uint64_t{block} >> (node.bit + 1);
}

// Of two trees whose blocks have no branch in common.
ConditionSet Conditions::joined(ConditionSet a, ConditionSet b) {
  const std::uint32_t bit = differing(nodes_[a].block, nodes_[b].block);
  return nodes_[a].block >> bit & 1 ? branch(bit, b, a) : branch(bit, a, b);
}

// A branch, and a tree that lies in one of its two subtrees.
ConditionSet Conditions::into(ConditionSet whole, ConditionSet part) {
  const Node node = nodes_[whole];
  const bool high = nodes_[part].block >> node.bit & 1;
  const ConditionSet before = high ? node.high() : node.low(), made = unite(before, part);
  if (made == before) return whole;
  return high ? branch(node.bit, node.low(), made) : branch(node.bit, made, node.high());
}

ConditionSet Conditions::unite(ConditionSet a, ConditionSet b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  if (a > b) std::swap(a, b);
  const Node one = nodes_[a], two = nodes_[b];
  if (one.isLeaf() && two.isLeaf()) {
    if (one.block != two.block) return joined(a, b);
    const std::uint64_t both = one.content | two.content;
    if (both == one.content) return a;
    return both == two.content ? b : interned({both, one.block, Node::kLeaf});
  }
  const std::uint64_t key = (std::uint64_t{a} << 32) | b;
  if (const auto it = united_.find(key); it != united_.end()) return it->second;
  ConditionSet made = 0;
  if (!one.isLeaf() && !two.isLeaf() && one.bit == two.bit && one.block == two.block) {
    const ConditionSet low = unite(one.low(), two.low());
    made = branch(one.bit, low, unite(one.high(), two.high()));
  } else if (!one.isLeaf() && (two.isLeaf() || two.bit < one.bit) && covers(one, two.block)) {
    made = into(a, b);
  } else if (!two.isLeaf() && (one.isLeaf() || one.bit < two.bit) && covers(two, one.block)) {
    made = into(b, a);
  } else {
    made = joined(a, b);
  }
  united_.emplace(key, made);
  return made;
}

std::vector<std::uint32_t> Conditions::idsOf(const Node& leaf) {
  std::vector<std::uint32_t> ids;
  for (std::uint64_t rest = leaf.content; rest != 0; rest &= rest - 1)
    ids.push_back(leaf.block * kBlock + static_cast<std::uint32_t>(std::countr_zero(rest)));
  return ids;
}

std::vector<Condition> Conditions::members(ConditionSet a) const {
  std::vector<Condition> result;
  std::vector<ConditionSet> todo;
  if (a != 0) todo.push_back(a);
  while (!todo.empty()) {
    const Node& node = nodes_[todo.back()];
    todo.pop_back();
    if (node.isLeaf()) {
      for (const std::uint32_t id : idsOf(node)) result.push_back(all_[id]);
    } else {
      todo.push_back(node.high());
      todo.push_back(node.low());
    }
  }
  return result;
}

}  // namespace shardproof
