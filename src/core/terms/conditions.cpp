// SPDX-License-Identifier: Apache-2.0
#include "terms/conditions.h"

#include <algorithm>
#include <iterator>

#include "shardproof/error.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostWords = 40'000'000;  // of all sets: some 160 MB

}  // namespace

Conditions::Conditions() { intern({}); }

std::uint32_t Conditions::idOf(const Condition& condition) {
  const auto [it, inserted] = idOf_.emplace(condition, static_cast<std::uint32_t>(all_.size()));
  if (inserted) all_.push_back(condition);
  return it->second;
}

ConditionSet Conditions::intern(std::vector<std::uint32_t> sorted) {
  const auto [it, inserted] =
      setOf_.emplace(std::move(sorted), static_cast<ConditionSet>(sets_.size()));
  if (inserted) {
    words_ += it->first.size();
    if (words_ > kMostWords)
      throw Unsupported("too many conditions under which values are defined");
    sets_.push_back(&it->first);
  }
  return it->second;
}

ConditionSet Conditions::single(const Condition& condition) { return of({condition}); }

ConditionSet Conditions::unite(ConditionSet a, ConditionSet b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  if (a > b) std::swap(a, b);
  const std::uint64_t key = (std::uint64_t{a} << 32) | b;
  if (const auto it = united_.find(key); it != united_.end()) return it->second;
  std::vector<std::uint32_t> both;
  std::set_union(sets_[a]->begin(), sets_[a]->end(), sets_[b]->begin(), sets_[b]->end(),
                 std::back_inserter(both));
  const ConditionSet made = intern(std::move(both));
  united_.emplace(key, made);
  return made;
}

ConditionSet Conditions::of(const std::vector<Condition>& conditions) {
  std::vector<std::uint32_t> ids;
  for (const Condition& c : conditions) ids.push_back(idOf(c));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return intern(std::move(ids));
}

std::vector<Condition> Conditions::members(ConditionSet a) const {
  std::vector<Condition> result;
  for (const std::uint32_t id : *sets_[a]) result.push_back(all_[id]);
  return result;
}

std::span<const std::uint32_t> Conditions::ids(ConditionSet a) const { return *sets_[a]; }

}  // namespace shardproof
