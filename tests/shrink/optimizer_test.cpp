// SPDX-License-Identifier: Apache-2.0
#include "shrink/optimizer.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

LinearSum sum(std::vector<std::pair<std::int32_t, std::int64_t>> terms, std::int64_t constant = 0) {
  LinearSum s;
  for (const auto& [v, c] : terms) s.add(v, c);
  s.constant = constant;
  return s;
}

TEST(LinearSum, KeepsItsTermsSortedAndNoneTwice) {
  LinearSum s = sum({{3, 2}, {1, 5}, {3, -2}, {0, 1}});
  EXPECT_EQ(s.terms, (std::vector<std::pair<std::int32_t, std::int64_t>>{{0, 1}, {1, 5}}));
  s.add(sum({{1, 5}, {2, 1}}, 4), -1);
  EXPECT_EQ(s, sum({{0, 1}, {2, -1}}, -4));
  EXPECT_EQ(s.value({7, 0, 2}), 1);
}

TEST(Minimize, TakesTheLeastValuesThatMeetAllConstraints) {
  IntegerProgram p;
  p.variables = {{1, 100}, {2, 100}, {1, 100}, {5, 9}};
  p.zero = {sum({{0, 1}, {1, -3}})};             // x = 3 y
  p.notNegative = {sum({{0, 1}, {2, -1}}, -2)};  // x >= z + 2
  p.among = {{sum({{2, 1}}), {4, 8}}};           // z is 4 or 8
  p.objective = sum({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  const IntegerSolution s = minimize(p, 10);
  ASSERT_TRUE(s.solved) << s.reason;
  EXPECT_EQ(s.values, (std::vector<std::int64_t>{6, 2, 4, 5}));
}

TEST(Minimize, SaysWhatCannotBe) {
  IntegerProgram p;
  p.variables = {{1, 10}};
  p.zero = {sum({{0, 2}}, -7)};
  EXPECT_FALSE(minimize(p, 10).solved);
  EXPECT_EQ(minimize(p, 10).reason, "unsatisfiable");
  p.zero.clear();
  p.variables = {{3, 2}};
  EXPECT_FALSE(minimize(p, 10).solved);
}

TEST(Minimize, MakesSumsDistinctWhereItCan) {
  IntegerProgram p;
  p.variables = {{2, 9}, {2, 9}, {2, 2}, {2, 9}};
  p.zero = {sum({{3, 1}, {0, -1}})};
  p.objective = sum({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  p.distinct = {
      {sum({{0, 1}}), {}}, {sum({{1, 1}}), {0}}, {sum({{2, 1}}), {0}}, {sum({{3, 1}}), {1}}};
  const IntegerSolution s = minimize(p, 10);
  ASSERT_TRUE(s.solved);
  EXPECT_EQ(s.values[0], 2);
  EXPECT_EQ(s.values[1], 3);
  EXPECT_EQ(s.values[2], 2);  // it cannot be larger
  EXPECT_EQ(s.values[3], 2);  // differs from what it is listed with
}

// The shards of many weights of one shape: equal equations, each with a variable of its own.
TEST(Minimize, AlikeEquationsGetEqualValues) {
  IntegerProgram p;
  p.variables.emplace_back(3, 1000);
  for (std::int32_t i = 1; i <= 200; ++i) {
    p.variables.emplace_back(2, 1000);
    p.zero.push_back(sum({{0, 1}, {i, -4}}));
    p.objective.add(i, 1);
  }
  p.distinct = {{sum({{0, 1}}), {}}, {sum({{7, 4}}), {0}}};  // never to be had
  const IntegerSolution s = minimize(p, 10);
  ASSERT_TRUE(s.solved) << s.reason;
  EXPECT_EQ(s.values[0], 8);
  for (std::size_t i = 1; i <= 200; ++i) EXPECT_EQ(s.values[i], 2);
}

}  // namespace
}  // namespace shardproof
