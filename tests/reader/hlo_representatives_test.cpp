// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/representatives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>

namespace shardproof::hlo {
namespace {

Rational valueAt(const Pieces& pieces, std::int64_t i) {
  for (const Piece& p : pieces)
    if (p.low <= i && i < p.high) return Rational(p.a) * Rational(i) + p.b;
  throw std::logic_error("a gap");
}

Pieces combined(const char* opcode, const Pieces& x, const Pieces& y, const char* direction = "") {
  const Pieces* operands[] = {&x, &y};
  return *combinePieces(opcode, direction, operands);
}

Pieces selected(const Pieces& condition, const Pieces& yes, const Pieces& no) {
  const Pieces* operands[] = {&condition, &yes, &no};
  return *combinePieces("select", "", operands);
}

constexpr IntegerType kByte{8, true};

Pieces allBytes() { return identityPieces(typeRange(kByte).first, typeRange(kByte).second); }

// What jax makes of an index into n rows: a negative one counts from the end.
Pieces wrapped(const Pieces& index, std::int64_t n) {
  const Pieces zero = constantPieces(index, Rational(0)), rows = constantPieces(index, Rational(n));
  return selected(combined("compare", index, zero, "LT"),
                  *wrapPieces(combined("add", index, rows), kByte), index);
}

// Every value of the type has one among the representatives at which all functions are the same.
TEST(HloRepresentatives, StandForEveryValue) {
  std::mt19937 random(5);
  const Pieces index = allBytes();
  const std::array<const char*, 4> opcodes{"add", "subtract", "maximum", "minimum"};
  std::size_t fewer = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Pieces> functions;
    for (int f = 0; f < 3; ++f) {
      Pieces made = random() % 2 == 0 ? index : wrapped(index, 1 + random() % 9);
      for (int step = 0; step < 3; ++step) {
        const Pieces number =
            constantPieces(index, Rational(static_cast<std::int64_t>(random() % 20) - 10));
        made = *wrapPieces(combined(opcodes[random() % 4], made, number), kByte);
      }
      functions.push_back(*rowPieces(made, 1 + static_cast<std::int64_t>(random() % 12)));
    }
    const std::int64_t mostOfEach = 1 + static_cast<std::int64_t>(random() % 3);
    const Stretches kept = representatives(typeRange(kByte), functions, {}, mostOfEach);
    std::int64_t count = 0;
    for (const auto& [low, high] : kept) count += high - low;
    fewer += count < 60 ? 1 : 0;
    for (std::int64_t i = -128; i < 128; ++i) {
      const bool found = std::any_of(kept.begin(), kept.end(), [&](const Stretch& s) {
        for (std::int64_t r = s.first; r < s.second; ++r)
          if (std::all_of(functions.begin(), functions.end(),
                          [&](const Pieces& f) { return valueAt(f, i) == valueAt(f, r); }))
            return true;
        return false;
      });
      EXPECT_TRUE(found) << round << ": " << i;
    }
  }
  EXPECT_EQ(fewer, 300u);
}

TEST(HloRepresentatives, AreTheRowsWhereIndicesAreMovedIntoBounds) {
  const Pieces index = allBytes();
  const std::vector<Pieces> clamped{*clampPieces(wrapped(index, 8), 8)};
  EXPECT_EQ(representatives(typeRange(kByte), clamped, {}, 1), (Stretches{{0, 8}}));
  // A device that leaves the update out instead: 8 is another case than 7, -9 another one than 0.
  const std::vector<Pieces> both{*clampPieces(wrapped(index, 8), 8),
                                 *rowPieces(wrapped(index, 8), 8)};
  EXPECT_EQ(representatives(typeRange(kByte), both, {}, 1), (Stretches{{-9, -8}, {0, 9}}));
  // One that does not wrap negative ones.
  const std::vector<Pieces> notWrapped{*clampPieces(wrapped(index, 8), 8), *clampPieces(index, 8)};
  EXPECT_EQ(representatives(typeRange(kByte), notWrapped, {}, 1), (Stretches{{-7, 8}}));
}

TEST(HloRepresentatives, LeaveOutWhatIsOutOfBounds) {
  const Pieces index = allBytes();
  const std::vector<Pieces> rows{*clampPieces(index, 8)};
  std::vector<Pieces> outside{insidePieces(index, 8)};
  for (Piece& p : outside[0]) p.b = Rational(1) - p.b;
  EXPECT_EQ(representatives(typeRange(kByte), rows, outside, 1), (Stretches{{0, 8}}));
}

TEST(HloIndex, WrapsAroundAsItsTypeDoes) {
  std::mt19937 random(7);
  Scalars s;
  for (const char* type : {"s8", "u8", "s16"}) {
    const IntegerType integers = *integerType(type);
    for (int round = 0; round < 200; ++round) {
      const std::int64_t a = static_cast<std::int64_t>(random() % 9) - 4,
                         b = static_cast<std::int64_t>(random() % 2000) - 1000;
      const Pieces pieces{{-128, 20, a, Rational(b)}, {20, 128, -a, Rational(a - b)}};
      const auto wrapped = wrapPieces(pieces, integers);
      ASSERT_TRUE(wrapped);
      for (std::int64_t i = -128; i < 128; ++i)
        EXPECT_EQ(valueAt(*wrapped, i),
                  s.value(s.convert(s.rational(valueAt(pieces, i)), "s64", type)))
            << type << " " << a << " " << b << " " << i;
    }
  }
}

TEST(HloIndex, WrapsAroundOrSaysThatItMay) {
  const IntegerType s32 = *integerType("s32"), s64 = *integerType("s64");
  const auto [low, high] = typeRange(s32);
  const auto more = wrapPieces({{low, high, 1, Rational(1)}}, s32);
  ASSERT_TRUE(more);
  EXPECT_EQ(more->size(), 2u);
  EXPECT_EQ(valueAt(*more, high - 1), Rational(low));
  EXPECT_EQ(wrapPieces({{low, high, 1 << 20, Rational()}}, s32), std::nullopt);
  EXPECT_TRUE(wrapPieces({{kNoLow, kNoHigh, 1, Rational(8)}}, s64));
  EXPECT_EQ(wrapPieces({{kNoLow, kNoHigh, 4, Rational()}}, s64), std::nullopt);
}

TEST(HloIndex, RowsAndBounds) {
  const Pieces index = allBytes();
  for (std::int64_t i = -128; i < 128; ++i) {
    const bool inside = 0 <= i && i < 5;
    EXPECT_EQ(valueAt(*rowPieces(index, 5), i), Rational(inside ? i : -1));
    EXPECT_EQ(valueAt(*clampPieces(index, 5), i), Rational(std::clamp<std::int64_t>(i, 0, 4)));
    EXPECT_EQ(valueAt(insidePieces(index, 5), i), Rational(inside ? 1 : 0));
  }
  for (const std::int64_t a : {2, 3, -2}) {
    const Pieces multiple{{-128, 128, a, Rational(1)}};
    for (std::int64_t i = -128; i < 128; ++i) {
      const std::int64_t value = a * i + 1;
      EXPECT_EQ(valueAt(*rowPieces(multiple, 8), i),
                Rational(0 <= value && value < 8 ? value : -1));
    }
  }
  EXPECT_EQ(rowPieces({{0, 1 << 20, 2, Rational()}}, 1 << 20), std::nullopt);
}

}  // namespace
}  // namespace shardproof::hlo
