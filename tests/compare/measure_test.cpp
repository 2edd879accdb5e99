// SPDX-License-Identifier: Apache-2.0
// Merging: gaps, copies that differ, summands, boxes of every kind.
#include "compare/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "trace_files.h"

namespace shardproof::compare {
namespace {

using Shape = std::vector<std::int64_t>;

struct Sides {
  Folder folder;
  Trace reference, candidate;

  // The reference counts from 1 in row-major order.
  Sides(const Shape& shape, const Axes& mesh, const std::vector<std::vector<Local>>& ranks) {
    std::size_t count = 1;
    for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 1.0F);
    writeRank(folder.path("a"), 0, {}, {floats("w", shape, values)});
    for (std::size_t r = 0; r < ranks.size(); ++r)
      writeRank(folder.path("b"), static_cast<int>(r), mesh, ranks[r]);
    reference = readTrace(folder.path("a"));
    candidate = readTrace(folder.path("b"));
  }

  static std::vector<const Piece*> pieces(const Trace& trace) {
    std::vector<const Piece*> all;
    for (const Piece& piece : trace.tensors.at("w").pieces) all.push_back(&piece);
    return all;
  }

  Measured measured(const std::vector<Choice>& choices = {}, std::size_t calls = 1) const {
    return measure(layoutOf(reference, pieces(reference), 1, {}),
                   layoutOf(candidate, pieces(candidate), calls, choices), false);
  }
};

nlohmann::json at(const Shape& shape, const Shape& low, const Shape& size) {
  return {{"shape", shape}, {"parts", {{0, low, size}}}};
}

TEST(Measure, BoxesOfBothDimensions) {
  const Sides sides({2, 4}, {{"tp", 2}},
                    {{floats("w", {2, 2}, {1, 2, 5, 6}, at({2, 4}, {0, 0}, {2, 2}))},
                     {floats("w", {2, 2}, {3, 4, 7, 9}, at({2, 4}, {0, 2}, {2, 2}))}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.difference, 1);  // 9 for 8
  EXPECT_EQ(found.reference.squared, 204);
  EXPECT_EQ(found.other.missing, 0U);
  EXPECT_TRUE(found.other.replicas.empty());
}

TEST(Measure, Gaps) {
  const Sides sides({2, 4}, {{"tp", 2}},
                    {{floats("w", {2, 2}, {1, 2, 5, 6}, at({2, 4}, {0, 0}, {2, 2}))},
                     {floats("w", {2, 1}, {4, 8}, at({2, 4}, {0, 3}, {2, 1}))}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.other.missing, 2U);
  EXPECT_EQ(found.other.firstMissing, 2U);
}

TEST(Measure, CopiesThatDiffer) {
  const Sides sides({3}, {{"dp", 3}},
                    {{floats("w", {3}, {1, 2, 3})},
                     {floats("w", {3}, {1, 2, 3})},
                     {floats("w", {3}, {1, 2, 5})}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.difference, 0);  // the first copy
  ASSERT_EQ(found.other.replicas.size(), 1U);
  EXPECT_EQ(found.other.replicas[0].first, 0);
  EXPECT_EQ(found.other.replicas[0].rank, 2);
  EXPECT_EQ(found.other.replicas[0].squared, 4);
}

TEST(Measure, BoxesThatOverlapInPart) {
  const Sides sides({4}, {{"dp", 2}},
                    {{floats("w", {3}, {1, 2, 3}, at({4}, {0}, {3}))},
                     {floats("w", {2}, {7, 4}, at({4}, {2}, {2}))}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.difference, 0);
  ASSERT_EQ(found.other.replicas.size(), 1U);
  EXPECT_EQ(found.other.replicas[0].squared, 16);
}

TEST(Measure, SummandsAreAddedAndTheirCopiesAreNot) {
  const nlohmann::json sum = {{"sum", {"tp"}}};
  const Sides sides({2}, {{"dp", 2}, {"tp", 2}},
                    {{floats("w", {2}, {1, 0}, sum)},
                     {floats("w", {2}, {0, 2}, sum)},
                     {floats("w", {2}, {1, 0}, sum)},
                     {floats("w", {2}, {0, 3}, sum)}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.difference, 0);
  ASSERT_EQ(found.other.replicas.size(), 1U);
  EXPECT_EQ(found.other.replicas[0].first, 1);
  EXPECT_EQ(found.other.replicas[0].rank, 3);
}

TEST(Measure, AMissingSummandIsAGap) {
  const nlohmann::json sum = {{"sum", {"tp"}}};
  const Sides sides({2}, {{"tp", 2}}, {{floats("w", {2}, {1, 2}, sum)}, {}});
  EXPECT_EQ(sides.measured().other.missing, 2U);
}

TEST(Measure, Means) {
  const nlohmann::json mean = {{"mean", {"dp"}}};
  const Sides sides({1}, {{"dp", 2}},
                    {{floats("w", {1}, {0.5}, mean)}, {floats("w", {1}, {1.5}, mean)}});
  EXPECT_EQ(sides.measured().difference, 0);
}

TEST(Measure, AStretchOfRows) {
  // Elements 1 to 6 of [2, 4]: the rest of a row, and the beginning of the next.
  const nlohmann::json parts = {{"shape", {2, 4}},
                                {"parts", {{0, {0, 1}, {1, 3}}, {3, {1, 0}, {1, 3}}}}};
  const Sides sides({2, 4}, {{"dp", 3}},
                    {{floats("w", {1}, {1}, at({2, 4}, {0, 0}, {1, 1}))},
                     {floats("w", {6}, {2, 3, 4, 5, 6, 7}, parts)},
                     {floats("w", {1}, {8}, at({2, 4}, {1, 3}, {1, 1}))}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.difference, 0);
  EXPECT_EQ(found.other.missing, 0U);
}

TEST(Measure, MoreElementsThanAreTakenAtATime) {
  const std::int64_t rows = 700, columns = 300;
  std::vector<float> left, right;
  for (std::int64_t i = 0; i < rows * columns; ++i)
    (i % columns < 100 ? left : right).push_back(static_cast<float>(i + 1));
  right.back() += 2;
  const Sides sides(
      {rows, columns}, {{"tp", 2}},
      {{floats("w", {rows, 100}, left, at({rows, columns}, {0, 0}, {rows, 100}))},
       {floats("w", {rows, 200}, right, at({rows, columns}, {0, 100}, {rows, 200}))}});
  const Measured found = sides.measured();
  EXPECT_EQ(found.difference, 4);
  EXPECT_EQ(found.other.missing, 0U);
}

TEST(Measure, NotANumberIsADifferenceUnlessBothHaveIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Sides sides({2}, {{"dp", 1}}, {{floats("w", {2}, {1, nan})}});
  const Measured found = sides.measured();
  EXPECT_TRUE(std::isinf(found.difference));
  EXPECT_EQ(found.other.notFinite, 1U);
  EXPECT_EQ(measure(layoutOf(sides.candidate, Sides::pieces(sides.candidate), 1, {}),
                    layoutOf(sides.candidate, Sides::pieces(sides.candidate), 1, {}), false)
                .difference,
            0);
}

TEST(Measure, NumbersAndTensorsWithoutElements) {
  const Sides number({}, {{"dp", 1}}, {{floats("w", {}, {3})}});
  EXPECT_EQ(number.measured().difference, 4);
  const Sides empty({0, 3}, {{"dp", 1}}, {{floats("w", {0, 3}, {})}});
  EXPECT_EQ(empty.measured().difference, 0);
}

TEST(Layout, ChoicesForUnknownAxes) {
  const nlohmann::json unknown = {{"unknown", {"dp", "tp"}}};
  const Sides sides({4, 2}, {{"dp", 2}, {"tp", 2}},
                    {{floats("w", {2, 1}, {1, 3}, unknown)},
                     {floats("w", {2, 1}, {2, 4}, unknown)},
                     {floats("w", {2, 1}, {5, 7}, unknown)},
                     {floats("w", {2, 1}, {6, 8}, unknown)}});
  const auto pieces = Sides::pieces(sides.candidate);
  const auto choices = choicesFor(sides.candidate, pieces, 1, {4, 2}, true);
  ASSERT_EQ(choices.size(), 2U);  // which axis cuts which dimension
  EXPECT_EQ(describe(sides.candidate, choices[0]),
            "cut over dp in dimension 0, cut over tp in dimension 1");
  EXPECT_EQ(sides.measured(choices[0]).difference, 0);
  EXPECT_GT(sides.measured(choices[1]).difference, 0);
  EXPECT_TRUE(choicesFor(sides.candidate, pieces, 1, {4, 3}, true).empty());
  EXPECT_TRUE(choicesFor(sides.candidate, pieces, 1, {8}, true).empty());
  // As a whole: copies, or summands where they are allowed.
  EXPECT_EQ(choicesFor(sides.candidate, pieces, 1, {2, 1}, false).size(), 1U);
  EXPECT_EQ(choicesFor(sides.candidate, pieces, 1, {2, 1}, true).size(), 9U);
}

TEST(Layout, CallsCutTheBatchWithinARank) {
  const auto call = [](int n) { return nlohmann::json{{"unknown", {"dp"}}, {"call", n}}; };
  const Sides sides({4}, {{"dp", 2}},
                    {{floats("w", {1}, {1}, call(0)), floats("w", {1}, {2}, call(1))},
                     {floats("w", {1}, {3}, call(0)), floats("w", {1}, {4}, call(1))}});
  const auto choices = choicesFor(sides.candidate, Sides::pieces(sides.candidate), 2, {4}, false);
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(sides.measured(choices[0], 2).difference, 0);
}

}  // namespace
}  // namespace shardproof::compare
