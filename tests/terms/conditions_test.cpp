// SPDX-License-Identifier: Apache-2.0
#include "terms/conditions.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace shardproof {
namespace {

using Kind = Condition::Kind;

std::set<Condition> membersOf(const Conditions& conditions, ConditionSet set) {
  const std::vector<Condition> all = conditions.members(set);
  const std::set<Condition> result(all.begin(), all.end());
  EXPECT_EQ(all.size(), result.size()) << "a member is listed twice";
  return result;
}

TEST(Conditions, UnionsAreThoseOfSets) {
  std::mt19937 random(1);
  for (const std::uint32_t range : {3U, 70U, 5000U, 3'000'000U}) {
    Conditions conditions;
    // numbers that the sets below then have; the order of creation gives them
    std::vector<Condition> some;
    for (int i = 0; i < 300; ++i)
      some.push_back({Kind::kNonZero, static_cast<std::uint32_t>(random() % range), 0});
    std::vector<ConditionSet> sets{0};
    std::vector<std::set<Condition>> expected{{}};
    std::map<std::set<Condition>, ConditionSet> numbers{{{}, 0}};
    for (int i = 0; i < 2000; ++i) {
      ConditionSet made = 0;
      std::set<Condition> members;
      if (random() % 3 == 0) {
        const Condition& c = some[random() % some.size()];
        made = conditions.single(c);
        members = {c};
      } else {
        const std::size_t a = random() % sets.size(), b = random() % sets.size();
        made = conditions.unite(sets[a], sets[b]);
        members = expected[a];
        members.insert(expected[b].begin(), expected[b].end());
        EXPECT_EQ(conditions.includes(sets[a], sets[b]), members == expected[a]);
      }
      ASSERT_EQ(membersOf(conditions, made), members);
      // equal sets have one number, others another
      ASSERT_EQ(numbers.emplace(members, made).first->second, made);
      sets.push_back(made);
      expected.push_back(members);
    }
  }
}

TEST(Conditions, EachSumOfALongChainHasThoseOfAllBeforeIt) {
  Conditions conditions;
  ConditionSet all = 0;
  constexpr std::uint32_t kMany = 100'000;
  for (std::uint32_t i = 0; i < kMany; ++i)
    all = conditions.unite(all, conditions.single({Kind::kNonZero, i, 0}));
  EXPECT_EQ(conditions.members(all).size(), kMany);
}

TEST(Conditions, Guards) {
  Conditions conditions;
  ConditionSet all = 0;
  for (std::uint32_t i = 0; i < 200; ++i)
    all = conditions.unite(all, conditions.single({Kind::kNonZero, i, i % 3}));
  // what has guard 1 is never needed together with 7, what has guard 2 gets 9
  const auto both = [](std::uint32_t guard) -> std::optional<std::uint32_t> {
    if (guard == 1) return std::nullopt;
    return guard == 0 ? 7U : 9U;
  };
  const ConditionSet guarded = conditions.guarded(all, 7, both);
  std::set<Condition> expected;
  for (std::uint32_t i = 0; i < 200; ++i)
    if (i % 3 != 1) expected.insert({Kind::kNonZero, i, i % 3 == 0 ? 7U : 9U});
  EXPECT_EQ(membersOf(conditions, guarded), expected);
  EXPECT_EQ(conditions.guarded(all, 7, both), guarded);
  EXPECT_EQ(conditions.guarded(0, 7, both), 0U);
}

}  // namespace
}  // namespace shardproof
