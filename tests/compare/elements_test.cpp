// SPDX-License-Identifier: Apache-2.0
#include "compare/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace shardproof::compare {
namespace {

std::vector<double> widened(Dtype dtype, const std::string& bytes) {
  std::vector<double> values(bytes.size() / bytesOfElement(dtype));
  widen(dtype, reinterpret_cast<const std::byte*>(bytes.data()), values.size(), values.data());
  return values;
}

template <class T>
std::string bytes(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(Elements, NamesAreThoseOfSafetensors) {
  EXPECT_EQ(dtypeNamed("BF16"), Dtype::kBF16);
  EXPECT_EQ(dtypeNamed("F8_E4M3"), Dtype::kF8E4M3);
  EXPECT_EQ(dtypeNamed("bfloat16"), std::nullopt);
  for (const char* name : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16",
                           "I32", "U32", "F32", "F64", "I64", "U64"})
    EXPECT_STREQ(toString(dtypeNamed(name).value()), name);
}

TEST(Elements, IntegersAndDoubles) {
  EXPECT_EQ(widened(Dtype::kI8, bytes<std::int8_t>({-3, 127})), (std::vector<double>{-3, 127}));
  EXPECT_EQ(widened(Dtype::kU16, bytes<std::uint16_t>({65535})), (std::vector<double>{65535}));
  EXPECT_EQ(widened(Dtype::kI64, bytes<std::int64_t>({-5})), (std::vector<double>{-5}));
  EXPECT_EQ(widened(Dtype::kF64, bytes<double>({0.1, -2})), (std::vector<double>{0.1, -2}));
}

TEST(Elements, HalfPrecision) {
  // 1, the smallest subnormal number, the largest number, minus infinity
  EXPECT_EQ(widened(Dtype::kF16, bytes<std::uint16_t>({0x3c00, 1, 0x7bff, 0xfc00})),
            (std::vector<double>{1, 0x1p-24, 65504, -std::numeric_limits<double>::infinity()}));
  EXPECT_TRUE(std::isnan(widened(Dtype::kF16, bytes<std::uint16_t>({0x7e00}))[0]));
  EXPECT_EQ(widened(Dtype::kBF16, bytes<std::uint16_t>({0x3f80, 0xc040})),
            (std::vector<double>{1, -3}));
}

TEST(Elements, EightBits) {
  // E4M3 has no infinities: 448 is its largest number, and 0x7f is not a number.
  EXPECT_EQ(widened(Dtype::kF8E4M3, bytes<std::uint8_t>({0x38, 0x7e, 0x01, 0x80})),
            (std::vector<double>{1, 448, 0x1p-9, 0}));
  EXPECT_TRUE(std::isnan(widened(Dtype::kF8E4M3, bytes<std::uint8_t>({0x7f}))[0]));
  EXPECT_EQ(widened(Dtype::kF8E5M2, bytes<std::uint8_t>({0x3c, 0x7b, 0x7c})),
            (std::vector<double>{1, 57344, std::numeric_limits<double>::infinity()}));
}

TEST(Elements, EpsilonIsTheDistanceToTheNextNumber) {
  EXPECT_EQ(epsilon(Dtype::kF32), std::numeric_limits<float>::epsilon());
  EXPECT_EQ(widened(Dtype::kBF16, bytes<std::uint16_t>({0x3f81}))[0] - 1, epsilon(Dtype::kBF16));
  EXPECT_EQ(widened(Dtype::kF8E4M3, bytes<std::uint8_t>({0x39}))[0] - 1, epsilon(Dtype::kF8E4M3));
  EXPECT_FALSE(isFloat(Dtype::kBool));
}

}  // namespace
}  // namespace shardproof::compare
