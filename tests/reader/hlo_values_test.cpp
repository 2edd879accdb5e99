// SPDX-License-Identifier: Apache-2.0
// What is computed while an HLO program is read: numbers, tables, functions of an index.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "reader/hlo/approximate.h"
#include "reader/hlo/index.h"
#include "reader/hlo/scalars.h"
#include "reader/hlo/table.h"
#include "reader/hlo/window.h"
#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(HloRounding, IsTheSimplestRationalThatRoundsToTheNumber) {
  const auto simplest = [](const char* text, int bits) {
    return simplestRounding(Rational::parse(text), bits).toString();
  };
  EXPECT_EQ(simplest("-0.0416666679", 24), "-1/24");
  EXPECT_EQ(simplest("0.1", 24), "1/10");
  EXPECT_EQ(simplest("0.333333343", 24), "1/3");
  EXPECT_EQ(simplest("1e-05", 24), "1/100000");
  EXPECT_EQ(simplest("0.999", 24), "999/1000");
  EXPECT_EQ(simplest("0.33333333333333331", 53), "1/3");
  EXPECT_EQ(simplest("0.001953125", 24), "1/512");
  EXPECT_EQ(simplest("0.334", 8), "1/3");
  EXPECT_EQ(simplest("16777216", 24), "16777216");
  EXPECT_EQ(simplest("-1e+09", 24), "-1000000000");
  EXPECT_EQ(simplest("0", 24), "0");
}

// A text of few digits is what a person wrote; one of many is what rounding left.
TEST(HloRounding, ShortDecimalsStayWhatTheyAre) {
  Scalars s;
  const auto read = [&](const char* text, const char* type, bool exact) {
    return s.value(s.parse(text, type, exact)).toString();
  };
  EXPECT_EQ(read("0.044715", "f32", false), "8943/200000");
  EXPECT_EQ(read("0.134145", "f32", false), "26829/200000");
  EXPECT_EQ(read("0.134145007", "f32", false),
            simplestRounding(Rational::parse("0.134145007"), 24).toString());
  EXPECT_EQ(read("-0.0416666679", "f32", false), "-1/24");
  EXPECT_EQ(read("-0.0416666679", "f32", true), "-416666679/10000000000");
  EXPECT_EQ(read("1e-05", "f32", false), "1/100000");
  EXPECT_EQ(read("0.6667", "bf16", false), "2/3");
}

TEST(HloRounding, RoundsToTheSameFloat) {
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    const std::uint32_t bits = 0x30000000u + random() % 0x20000000u;
    float value;
    static_assert(sizeof bits == sizeof value);
    std::memcpy(&value, &bits, sizeof value);
    const Rational simple = simplestRounding(Rational::fromDouble(value), 24);
    EXPECT_EQ(static_cast<float>(simple.toDouble()), value);
  }
}

TEST(HloScalars, ComputeAsTheTypesDo) {
  Scalars s;
  const auto apply = [&](const char* op, const char* type, std::int64_t a, std::int64_t b) {
    const ScalarId x[] = {s.rational(a), s.rational(b)};
    return s.value(s.apply(op, "", type, x)).toString();
  };
  EXPECT_EQ(apply("add", "s32", 2147483647, 1), "-2147483648");
  EXPECT_EQ(apply("subtract", "u32", 1, 2), "4294967295");
  EXPECT_EQ(apply("multiply", "u8", 16, 17), "16");
  EXPECT_EQ(apply("divide", "s32", -7, 2), "-3");
  EXPECT_EQ(apply("remainder", "s32", -7, 2), "-1");
  EXPECT_EQ(apply("divide", "f32", -7, 2), "-7/2");
  EXPECT_EQ(apply("xor", "u32", 12, 10), "6");
  EXPECT_EQ(apply("shift-left", "u8", 255, 4), "240");
  EXPECT_EQ(apply("shift-left", "u32", 1, 32), "0");
  EXPECT_EQ(apply("shift-right-logical", "s32", -1, 28), "15");
  EXPECT_EQ(apply("and", "s32", -2, 7), "6");
  EXPECT_EQ(apply("power", "f32", 2, -3), "1/8");
  EXPECT_EQ(apply("add", "pred", 1, 1), "1");
  EXPECT_THROW(apply("divide", "s32", 1, 0), std::invalid_argument);
  const ScalarId nine[] = {s.rational(9)}, two[] = {s.rational(2)};
  EXPECT_EQ(s.value(s.apply("sqrt", "", "f32", nine)).toString(), "3");
  EXPECT_EQ(s.kind(s.apply("sqrt", "", "f32", two)), ScalarKind::kExpression);
  EXPECT_EQ(s.apply("cosine", "", "f32", two), s.apply("cosine", "", "f32", two));
  EXPECT_NE(s.apply("cosine", "", "f32", two), s.apply("sine", "", "f32", two));
}

TEST(HloScalars, KnowInfinities) {
  Scalars s;
  const ScalarId one = s.rational(1), up = s.infinity(), down = s.negativeInfinity();
  const auto apply = [&](const char* op, ScalarId a, ScalarId b, const char* direction = "") {
    const ScalarId x[] = {a, b};
    return s.apply(op, direction, "f32", x);
  };
  EXPECT_EQ(apply("maximum", one, down), one);
  EXPECT_EQ(apply("add", one, down), down);
  EXPECT_EQ(apply("subtract", one, down), up);
  EXPECT_EQ(apply("subtract", down, down), s.nan());
  EXPECT_EQ(apply("multiply", s.rational(0), up), s.nan());
  EXPECT_EQ(apply("multiply", s.rational(-2), up), down);
  EXPECT_EQ(apply("divide", one, up), s.rational(0));
  EXPECT_EQ(apply("compare", s.nan(), one, "NE"), s.rational(1));
  EXPECT_EQ(apply("compare", s.nan(), one, "LT"), s.rational(0));
  EXPECT_EQ(apply("compare", down, one, "LT"), s.rational(1));
  const ScalarId x[] = {down};
  EXPECT_EQ(s.apply("exponential", "", "f32", x), s.rational(0));
  EXPECT_THROW(s.parse("x", "f32", false), std::invalid_argument);
  EXPECT_THROW(s.parse("1.5", "s32", false), std::invalid_argument);
  EXPECT_EQ(s.value(s.parse("0.333333343", "f32", true)).toString(), "333333343/1000000000");
}

// Every opcode on pieces agrees with the opcode on numbers, at every integer.
TEST(HloIndex, PiecesAreWhatNumbersAre) {
  std::mt19937 random(11);
  Scalars s;
  const auto value = [](const Pieces& pieces, std::int64_t i) {
    for (const Piece& p : pieces)
      if (p.low <= i && i < p.high) return Rational(p.a) * Rational(i) + p.b;
    throw std::logic_error("a gap");
  };
  const std::array<const char*, 6> binary{"add",     "subtract", "maximum",
                                          "minimum", "multiply", "compare"};
  const std::array<const char*, 6> directions{"EQ", "NE", "LT", "LE", "GT", "GE"};
  std::size_t combined = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<Pieces> known{identityPieces(-20, 20)};
    known.reserve(16);  // operands are pointers into it
    for (int step = 0; step < 8; ++step) {
      const std::size_t a = random() % known.size(), b = random() % known.size();
      const std::string op = binary[random() % binary.size()];
      const char* direction = directions[random() % directions.size()];
      const Pieces number =
          constantPieces(known[0], Rational(static_cast<std::int64_t>(random() % 9) - 4));
      const Pieces* operands[] = {&known[a], random() % 2 == 0 ? &number : &known[b]};
      const auto result = combinePieces(op, direction, operands);
      if (!result) continue;
      for (std::int64_t i = -20; i < 20; ++i) {
        const ScalarId x[] = {s.rational(value(*operands[0], i)),
                              s.rational(value(*operands[1], i))};
        EXPECT_EQ(value(*result, i), s.value(s.apply(op, direction, "f32", x))) << op << " " << i;
      }
      known.push_back(*result);
      ++combined;
      if (op != "compare") continue;
      const Pieces* choice[] = {&*result, operands[0], operands[1]};
      const auto chosen = combinePieces("select", "", choice);
      ASSERT_TRUE(chosen);
      for (std::int64_t i = -20; i < 20; ++i)
        EXPECT_EQ(value(*chosen, i),
                  value(value(*result, i).isZero() ? *operands[1] : *operands[0], i));
    }
  }
  EXPECT_GT(combined, 1000u);
}

TEST(HloIndex, BoundsThatDoNotMatterLeaveOnePiece) {
  const Pieces index = identityPieces(0, 10), low = constantPieces(index, Rational(0)),
               high = constantPieces(index, Rational(9));
  const Pieces* operands[] = {&low, &index, &high};
  const auto clamped = combinePieces("clamp", "", operands);
  ASSERT_TRUE(clamped);
  EXPECT_TRUE(isIdentity(*clamped));
}

// A table and all of its elements, however it is stored.
TEST(HloTable, MovesElementsAsTheOpcodesSay) {
  Scalars s;
  const auto number = [&](const Table& t, const Sizes& i) { return s.value(t.value(i)).toInt64(); };
  const Table rows = iotaTable({3, 4}, 0, s), columns = iotaTable({3, 4}, 1, s);
  const Table* both[] = {&rows, &columns};
  const Table t = mapTables(both, [&](std::span<const ScalarId> x) {
    return s.rational(s.value(x[0]) * Rational(10) + s.value(x[1]));
  });
  EXPECT_EQ(rows.values.size(), 3u);
  EXPECT_EQ(number(t, {2, 3}), 23);
  const Table b = broadcastTable(t, {2, 3, 4}, Sizes{1, 2});
  EXPECT_EQ(b.values.size(), 12u);
  EXPECT_EQ(number(b, {1, 2, 3}), 23);
  EXPECT_EQ(number(transposeTable(t, Sizes{1, 0}), {3, 2}), 23);
  EXPECT_EQ(number(reshapeTable(t, {2, 6}), {1, 0}), 12);
  EXPECT_EQ(number(reshapeTable(rows, {3, 1, 4}), {2, 0, 3}), 2);
  EXPECT_EQ(reshapeTable(rows, {3, 1, 4}).values.size(), 3u);
  EXPECT_EQ(number(sliceTable(t, Sizes{1, 0}, Sizes{3, 4}, Sizes{1, 3}), {1, 1}), 23);
  EXPECT_EQ(number(reverseTable(t, Sizes{1}), {2, 0}), 23);
  const Table* parts[] = {&t, &rows};
  EXPECT_EQ(number(concatenateTables(parts, 1), {2, 7}), 2);
  EXPECT_EQ(number(concatenateTables(parts, 1), {2, 3}), 23);
  const Table p = padTable(t, s.rational(-1), {{1, 0, 0}, {-1, 2, 1}});
  EXPECT_EQ(p.sizes, (Sizes{4, 8}));
  EXPECT_EQ(number(p, {0, 3}), -1);
  EXPECT_EQ(number(p, {3, 0}), -1);
  EXPECT_EQ(number(p, {3, 1}), 21);
  EXPECT_EQ(number(p, {3, 5}), 23);
  EXPECT_EQ(number(p, {3, 7}), -1);
  // As long as before, but not as before.
  const Table spread = padTable(uniformTable({3}, s.rational(1)), s.rational(0), {{0, -2, 1}});
  EXPECT_EQ(spread.sizes, (Sizes{3}));
  EXPECT_EQ(number(spread, {0}), 1);
  EXPECT_EQ(number(spread, {1}), 0);
  EXPECT_EQ(number(spread, {2}), 1);
  const auto plus = [&](ScalarId x, ScalarId y) {
    const ScalarId args[] = {x, y};
    return s.apply("add", "", "s32", args);
  };
  EXPECT_EQ(number(reduceTable(rows, Sizes{1}, s.rational(5), plus), {2}), 13);
  EXPECT_THROW(wholeTable(uniformTable({1 << 20, 1 << 20}, s.rational(0))), std::length_error);
}

// The true number lies within the error that is told.
TEST(HloApproximations, AreWithinTheirErrors) {
  Scalars s;
  const auto of = [&](const char* op, std::initializer_list<ScalarId> x) {
    return s.apply(op, {}, "f32", std::vector<ScalarId>(x));
  };
  const auto number = [&](const char* text) { return s.parse(text, "f64", true); };
  Approximations approximations(s);
  const auto expect = [&](ScalarId id, double value, double most) {
    const auto found = approximations.of(id);
    ASSERT_TRUE(found);
    EXPECT_LE(std::abs(found->value - value), found->error + std::abs(value) * 1e-15);
    EXPECT_LE(found->error, most);
  };
  expect(of("sine", {number("1")}), std::sin(1.0), 1e-15);
  expect(of("cosine", {number("100000")}), -0.99936080743821213, 1e-13);
  expect(of("power", {number("10000"), of("divide", {number("-1"), number("3")})}),
         std::pow(10000, -1 / 3.0), 1e-15);
  expect(of("divide", {of("tanh", {number("2")}), of("exponential", {number("-3")})}),
         std::tanh(2.0) * std::exp(3.0), 1e-13);
  expect(of("floor", {of("multiply", {of("log", {number("5")}), number("10")})}), 16, 1e-15);
  // Which side of a jump, or whether it is 0, cannot be told.
  const ScalarId root = of("sqrt", {number("2")}),
                 nothing = of("subtract", {of("multiply", {root, root}), number("2")});
  EXPECT_FALSE(approximations.of(of("divide", {number("1"), nothing})));
  EXPECT_FALSE(approximations.of(of("floor", {nothing})));
  EXPECT_FALSE(approximations.of(s.infinity()));
  // So numbers are compared where they are apart.
  const ScalarId both[] = {root, number("1.5")},
                 same[] = {of("multiply", {root, root}), number("2")};
  EXPECT_TRUE(s.is(s.apply("compare", "LT", "f32", both), 1));
  EXPECT_THROW(s.apply("compare", "LT", "f32", same), std::invalid_argument);
}

TEST(HloScalars, SymbolsAreFollowedAndSampled) {
  Scalars s;
  const ScalarId a = s.symbol(2, 0), b = s.symbol(2, 1);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, s.symbol(2, 0));
  EXPECT_NE(a, s.symbol(1, 0));
  const ScalarId ab[] = {a, b}, ba[] = {b, a};
  const ScalarId x = s.apply("xor", {}, "u32", ab);
  EXPECT_TRUE(s.isSymbolic(x));
  EXPECT_EQ(x, s.apply("xor", {}, "u32", ab));
  EXPECT_NE(x, s.apply("xor", {}, "u64", ab));
  EXPECT_NE(s.apply("subtract", {}, "u32", ab), s.apply("subtract", {}, "u32", ba));
  const ScalarId sampled[] = {s.sample(a), s.sample(b)};
  EXPECT_TRUE(s.isRational(sampled[0]));
  EXPECT_NE(sampled[0], sampled[1]);
  EXPECT_EQ(s.sample(x), s.apply("xor", {}, "u32", sampled));
  const ScalarId less = s.apply("compare", "LT", "u32", ab);
  EXPECT_TRUE(s.isSymbolic(less));
  EXPECT_EQ(s.sample(less), s.apply("compare", "LT", "u32", sampled));
  // A condition that is known chooses; what is chosen by bits is neither.
  const ScalarId known[] = {s.rational(1), a, b}, unknown[] = {less, a, b};
  EXPECT_EQ(s.apply("select", {}, "u32", known), a);
  EXPECT_TRUE(s.isSymbolic(s.apply("select", {}, "u32", unknown)));
  const ScalarId one[] = {s.bitcast(s.rational(0x3f800000), "u32", "f32")};
  EXPECT_TRUE(s.is(one[0], 1));
  EXPECT_TRUE(s.is(s.bitcast(s.rational(-1), "s32", "u32"), 4294967295));
  EXPECT_EQ(s.bitcast(s.rational(0x7f800000), "u32", "f32"), s.infinity());
  EXPECT_TRUE(s.is(s.bitcast(s.rational(1), "f32", "u32"), 0x3f800000));
  EXPECT_TRUE(s.is(s.bitcast(s.rational(-2), "f32", "s32"), -1073741824));
  EXPECT_TRUE(s.is(s.bitcast(s.infinity(), "f32", "u32"), 0x7f800000));
  EXPECT_THROW(s.bitcast(s.rational(Rational(1, 3)), "f32", "u32"), std::invalid_argument);
  EXPECT_THROW(s.bitcast(s.rational(1), "u32", "f64"), std::invalid_argument);
}

TEST(HloWindow, IsReadAndHasPlaces) {
  const auto window = [](const char* text) { return parseWindow({"window", text, {}}, "f"); };
  const auto w =
      window("{size=3x2 stride=2x1 pad=0_1x-1_0 lhs_dilate=1x2 rhs_dilate=1x3 rhs_reversal=0x1}");
  ASSERT_EQ(w.size(), 2U);
  EXPECT_EQ(w[0].places(6), 3);
  EXPECT_EQ(w[1].low, -1);
  EXPECT_EQ(w[1].places(5), 5);  // 9 - 1 positions, a reach of 4
  EXPECT_TRUE(w[1].reversed && !w[0].reversed);
  EXPECT_EQ(w[0].places(1), 0);
  EXPECT_TRUE(window("{}").empty());
  for (const char* wrong : {"{size=3 stride=1x1}", "{size=3x3 stride=1}", "{stride=1}", "{size=0}",
                            "{size=3 stride=99999999999}", "{size=3 what=1}", "size=3", "{size=3"})
    EXPECT_THROW(window(wrong), InputError) << wrong;
  const auto labels = [](const char* text) {
    return parseConvolutionDims({"dim_labels", text, {}}, "f");
  };
  const ConvolutionDims d = labels("b0f1_1io0->bf01");
  EXPECT_EQ(d.left, (Sizes{1, 3}));
  EXPECT_EQ(d.right, (Sizes{3, 0}));
  EXPECT_EQ(d.to, (Sizes{2, 3}));
  EXPECT_EQ(d.output, 2);
  for (const char* wrong : {"b01f_01io", "b01f_01io->b0f", "b00f_01io->b01f", "b01_01io->b01f",
                            "b01f->b01f_01io", "bb1f_01io->b01f", ""})
    EXPECT_THROW(labels(wrong), InputError) << wrong;
}

}  // namespace
}  // namespace shardproof::hlo
