// SPDX-License-Identifier: Apache-2.0
// What is known and not listed: the same as if it were listed, element by element.
#include "reader/hlo/formula.h"

#include <gtest/gtest.h>

#include <random>
#include "support/problems.h"

namespace shardproof::hlo {
namespace {

Value counted(Scalars& s, const Sizes& sizes, std::size_t dim, std::int64_t start) {
  Table t = iotaTable(sizes, dim, s);
  for (ScalarId& id : t.values) id = s.rational(s.value(id) + Rational(start));
  return tableValue({"s32", sizes, {}, false}, std::move(t));
}
Value alike(Scalars& s, const Sizes& sizes, const char* type, const Rational& value) {
  return tableValue({type, sizes, {}, false}, uniformTable(sizes, s.rational(value)));
}
Value compared(Scalars& s, const Sizes& sizes, const char* direction, const Value& a,
               const Value& b) {
  return applyKnown(s, {"pred", sizes, {}, false}, "compare", direction, "s32", {a, b});
}

// Both ways of storing it: few numbers are a table, many a formula.
const Sizes kShapes[] = {{5, 7}, {7, 5}, {6, 6}, {130, 150}, {150, 130}};

TEST(HloFormula, HalfPlanesAreWhatComparisonsSay) {
  Scalars s;
  int formulas = 0, found = 0;
  for (const Sizes& sizes : kShapes)
    for (const std::size_t dim : {std::size_t{0}, std::size_t{1}})
      for (const char* direction : {"GE", "GT", "LE", "LT", "EQ", "NE"})
        for (const std::int64_t shift : {-9, -2, -1, 0, 1, 3, 9}) {
          const Value where = compared(s, sizes, direction, counted(s, sizes, dim, shift),
                                       counted(s, sizes, 1 - dim, 0));
          const bool formula = where.kind == Value::Kind::kFormula;
          formulas += formula;
          const auto two = twoNumbers(s, where);
          const std::string_view d = direction;
          if (!two) {
            EXPECT_TRUE(d == "EQ" || d == "NE" || !formula);
            continue;
          }
          ++found;
          const Table t = listed(s, where);
          for (std::int64_t r = 0; r < sizes[0]; ++r)
            for (std::int64_t c = 0; c < sizes[1]; ++c) {
              const bool inside = two->where && c <= r + two->where->shift;
              if (two->where) {
                EXPECT_EQ(two->where->row, 0u);
                EXPECT_EQ(two->where->column, 1u);
              }
              ASSERT_EQ(t.value(Sizes{r, c}), inside ? two->inside : two->outside)
                  << direction << " " << shift << " " << sizes[0] << "x" << sizes[1];
            }
        }
  EXPECT_GT(formulas, 100);
  EXPECT_GT(found, 150);
}

TEST(HloFormula, TablesThatAreNoHalfPlanesAreNone) {
  Scalars s;
  const auto table = [&](std::vector<int> entries, const Sizes& sizes) {
    Table t{sizes, sizes, {}};
    for (const int e : entries) t.values.push_back(s.rational(e));
    return tableValue({"f32", sizes, {}, false}, std::move(t));
  };
  EXPECT_TRUE(twoNumbers(s, table({1, 0, 0, 1, 1, 0, 1, 1, 1}, {3, 3})));
  EXPECT_FALSE(twoNumbers(s, table({1, 0, 0, 1, 1, 1, 1, 1, 1}, {3, 3})));  // jumps by two
  EXPECT_FALSE(twoNumbers(s, table({1, 0, 0, 1, 0, 0, 1, 1, 0}, {3, 3})));  // stays behind
  EXPECT_FALSE(twoNumbers(s, table({1, 0, 0, 1, 1, 0, 2, 1, 1}, {3, 3})));  // three numbers
  EXPECT_FALSE(twoNumbers(s, table({0, 1, 0, 1, 0, 1, 0, 1, 0}, {3, 3})));  // none
  EXPECT_FALSE(twoNumbers(s, table({1, 1, 1, 0, 0, 0, 1, 1, 1}, {3, 3})));  // rows
  EXPECT_FALSE(twoNumbers(s, table({1, 1, 1, 1, 1, 1, 0, 0, 0}, {3, 3})));  // a step down
}

TEST(HloFormula, WhatIsComputedOfMasksIsTheirNumbers) {
  Scalars s;
  const Sizes sizes{140, 130};
  const Value where = compared(s, sizes, "GE", counted(s, sizes, 0, 2), counted(s, sizes, 1, 0));
  ASSERT_EQ(where.kind, Value::Kind::kFormula);
  const Shape f32{"f32", sizes, {}, false};
  const Value chosen = applyKnown(s, f32, "select", {}, "f32",
                                  {where, alike(s, sizes, "f32", Rational(3)),
                                   tableValue(f32, uniformTable(sizes, s.negativeInfinity()))});
  const Value doubled =
      applyKnown(s, f32, "multiply", {}, "f32", {chosen, alike(s, sizes, "f32", Rational(2))});
  const auto two = twoNumbers(s, doubled);
  ASSERT_TRUE(two);
  EXPECT_EQ(*two->where, (HalfPlane{0, 1, 2}));
  EXPECT_TRUE(s.is(two->inside, 6));
  EXPECT_EQ(two->outside, s.negativeInfinity());
  EXPECT_FALSE(isFinite(s, chosen));
  // Two different half planes are none.
  const Value other = compared(s, sizes, "GE", counted(s, sizes, 0, 5), counted(s, sizes, 1, 0));
  EXPECT_FALSE(
      twoNumbers(s, applyKnown(s, {"pred", sizes, {}, false}, "and", {}, "pred", {where, other})));
}

TEST(HloFormula, PiecesAreFoundWhereTheyAre) {
  Scalars s;
  std::mt19937 random(3);
  const Sizes sizes{200, 120};
  const auto angles = [&](std::int64_t rows, std::int64_t columns) {
    const Sizes own{rows, columns};
    const Shape shape{"f32", own, {}, false};
    const Value product =
        applyKnown(s, shape, "multiply", {}, "f32", {counted(s, own, 0, 0), counted(s, own, 1, 7)});
    return applyKnown(s, shape, "cosine", {}, "f32", {product});
  };
  const Value whole = angles(sizes[0], sizes[1]);
  ASSERT_EQ(whole.kind, Value::Kind::kFormula);
  EXPECT_TRUE(isFinite(s, whole));
  for (int trial = 0; trial < test::randomCases(20); ++trial) {
    Sizes low, high;
    for (const std::int64_t n : sizes) {
      low.push_back(static_cast<std::int64_t>(random()) % (n / 3));
      high.push_back(low.back() + n / 2 + static_cast<std::int64_t>(random()) % (n / 6));
    }
    const Sizes own{high[0] - low[0], high[1] - low[1]};
    const Value part = mapTablesOf(whole, own, [&](const Table& t) {
      return sliceTable(t, low, high, Sizes{1, 1});
    });
    const auto at = boxOf(part, whole);
    ASSERT_TRUE(at);
    EXPECT_EQ(*at, low);
    const Table a = listed(s, part), b = listed(s, whole);
    for (const std::int64_t r : {std::int64_t{0}, own[0] - 1})
      for (const std::int64_t c : {std::int64_t{0}, own[1] - 1})
        EXPECT_EQ(a.value(Sizes{r, c}), b.value(Sizes{r + low[0], c + low[1]}));
    // With steps it is no box.
    const Sizes half{(own[0] + 1) / 2, own[1]};
    EXPECT_FALSE(boxOf(mapTablesOf(whole, half,
                                   [&](const Table& t) {
                                     return sliceTable(t, low, high, Sizes{2, 1});
                                   }),
                       whole));
  }
  EXPECT_FALSE(boxOf(whole, angles(sizes[0] - 1, sizes[1])));
  EXPECT_TRUE(sameKnown(whole, angles(sizes[0], sizes[1])));
  EXPECT_FALSE(sameKnown(whole, angles(sizes[0], sizes[1] + 1)));
}

TEST(HloFormula, WhatMayHaveNoValueIsNotFinite) {
  Scalars s;
  const Sizes sizes{150, 150};
  const Shape shape{"f32", sizes, {}, false};
  const Value a = counted(s, sizes, 0, 0), b = counted(s, sizes, 1, 0);
  for (const char* opcode : {"divide", "power"})
    EXPECT_FALSE(isFinite(s, formulaValue(shape, {opcode, {}, "f32", {a, b}, 3})));
  const Value sum = applyKnown(s, shape, "add", {}, "f32", {a, b});
  EXPECT_TRUE(isFinite(s, sum));
  EXPECT_FALSE(isFinite(s, formulaValue(shape, {"log", {}, "f32", {sum}, 4})));
}

}  // namespace
}  // namespace shardproof::hlo
