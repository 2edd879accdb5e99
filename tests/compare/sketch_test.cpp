// SPDX-License-Identifier: Apache-2.0
// Sketches: they add up over parts and summands, and estimate distances.
#include "compare/sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "compare/compare.h"
#include "compare/measure.h"
#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

using Values = std::vector<float>;
using Json = nlohmann::json;

Values drawn(std::size_t n, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  Values values(n);
  for (float& value : values) value = normal(draw);
  return values;
}

// The sketch of rows [low, low + values.size() / columns) of a matrix, as a trace has it.
Local sketchOfRows(const std::string& name, std::int64_t rows, std::int64_t columns,
                   std::int64_t low, const Values& values, Json described = Json::object()) {
  Sketch sums(kBuckets, 0.0);
  const std::vector<double> wide(values.begin(), values.end());
  addToSketch(sums, static_cast<std::size_t>(low * columns), wide.data(), wide.size());
  std::string bytes(kBuckets * sizeof(double), '\0');
  std::memcpy(bytes.data(), sums.data(), bytes.size());
  const auto mine = static_cast<std::int64_t>(values.size()) / columns;
  described["name"] = name;
  described["sketch"] = "F32";
  described["shape"] = {rows, columns};
  described["parts"] = Json::array({Json::array({0, {low, 0}, {mine, columns}})});
  return {name, "F64", {static_cast<std::int64_t>(kBuckets)}, bytes, described};
}

Values part(const Values& values, std::size_t begin, std::size_t end) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(end)};
}

Values sum(Values a, const Values& b, float factor) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}

// A tensor of 128 x 100 numbers, as elements or as a sketch, and its perturbed ones.
class SketchOfTensor : public ::testing::Test {
 protected:
  void writeReference(bool asSketch) {
    for (unsigned d = 0; d < 3; ++d) {
      const Values moved = d == 0 ? values_ : sum(values_, drawn(kCount, 10 + d), 1e-4F);
      writeRank(folder_.path("r") + (d > 0 ? "/draw" + std::to_string(d) : ""), 0, {},
                {asSketch ? sketchOfRows("w", 128, 100, 0, moved, {{"kind", "parameter"}})
                          : floats("w", {128, 100}, moved, {{"kind", "parameter"}})});
    }
  }

  TensorReport compared(Agreement expected) const {
    const Comparison found = compareTraces(folder_.path("r"), folder_.path("c"), {});
    EXPECT_EQ(found.verdict, expected) << found.reason;
    return found.tensors.at(0);
  }

  static constexpr std::size_t kCount = 12800;
  const Values values_ = drawn(kCount, 1);
  const Folder folder_;
};

TEST_F(SketchOfTensor, EstimatesTheDistance) {
  for (const bool referenceAsSketch : {true, false}) {
    writeReference(referenceAsSketch);
    writeRank(folder_.path("c"), 0, {},
              {sketchOfRows("w", 128, 100, 0, sum(values_, drawn(kCount, 5), 1e-2F),
                            {{"kind", "parameter"}})});
    const TensorReport report = compared(Agreement::kDiffers);
    EXPECT_NEAR(report.error, 1e-2, 1e-3);
    EXPECT_NEAR(report.perturbed, 1e-4, 2e-5);
    EXPECT_EQ(report.dtype, Dtype::kF32);
    writeRank(folder_.path("c"), 0, {},
              {sketchOfRows("w", 128, 100, 0, sum(values_, drawn(kCount, 5), 1e-4F),
                            {{"kind", "parameter"}})});
    compared(Agreement::kAgrees);
  }
}

TEST_F(SketchOfTensor, OfASingleElement) {
  writeReference(true);
  Values other = values_;
  other[777] += 1;
  writeRank(folder_.path("c"), 0, {},
            {sketchOfRows("w", 128, 100, 0, other, {{"kind", "parameter"}})});
  EXPECT_NEAR(compared(Agreement::kDiffers).error, 1 / std::sqrt(12800.0), 1e-3);
}

TEST_F(SketchOfTensor, OfPartsAndSummands) {
  writeReference(false);
  // Rows over tp; each of them a sum over dp.
  const Values share = drawn(kCount, 7);
  for (const bool gap : {false, true})
    for (const float second : {-1.0F, -0.9F}) {
      for (int rank = 0; rank < 4; ++rank) {
        const bool first = rank < 2;
        const Values summand = first ? sum(values_, share, 1) : sum(Values(kCount), share, second);
        const std::size_t row = rank % 2 == 0 || gap ? 0 : 64;
        writeRank(folder_.path("c"), rank, {{"dp", 2}, {"tp", 2}},
                  {sketchOfRows("w", 128, 100, static_cast<std::int64_t>(row),
                                part(summand, row * 100, (row + 64) * 100),
                                {{"kind", "parameter"}, {"sum", {"dp"}}})});
      }
      const bool right = !gap && second == -1.0F;
      const TensorReport report = compared(right ? Agreement::kAgrees : Agreement::kDiffers);
      if (gap) {
        EXPECT_EQ(report.message, "has a gap: no rank has the element at [64, 0] (12800 elements)");
      }
    }
}

TEST_F(SketchOfTensor, OfCopiesThatDiffer) {
  writeReference(true);
  for (int rank = 0; rank < 2; ++rank)
    writeRank(
        folder_.path("c"), rank, {{"dp", 2}},
        {sketchOfRows("w", 128, 100, 0, rank == 0 ? values_ : sum(values_, drawn(kCount, 9), 1e-2F),
                      {{"kind", "parameter"}})});
  const TensorReport report = compared(Agreement::kDiffers);
  ASSERT_EQ(report.replicas.size(), 1U);
  EXPECT_NEAR(report.replicas[0].error, 1e-2, 1e-3);
}

TEST_F(SketchOfTensor, WhatCannotBeMergedIsNotCompared) {
  writeReference(true);
  // Where the rows of a rank are is not known.
  for (int rank = 0; rank < 2; ++rank) {
    const auto begin = static_cast<std::size_t>(rank) * 6400;
    writeRank(folder_.path("c"), rank, {{"tp", 2}},
              {sketchOfRows("w", 64, 100, 0, part(values_, begin, begin + 6400),
                            {{"kind", "parameter"}, {"unknown", {"tp"}}})});
  }
  TensorReport report = compared(Agreement::kUndecided);
  EXPECT_EQ(report.status, Status::kNotCompared);
  EXPECT_EQ(report.message, "was recorded as a sketch, and where its parts are was not declared");
  // Boxes that overlap, and are not the same.
  for (int rank = 0; rank < 2; ++rank) {
    const std::int64_t row = rank * 60;
    writeRank(folder_.path("c"), rank, {{"tp", 2}},
              {sketchOfRows("w", 128, 100, row,
                            part(values_, static_cast<std::size_t>(row) * 100,
                                 (static_cast<std::size_t>(row) + 68) * 100),
                            {{"kind", "parameter"}})});
  }
  report = compared(Agreement::kUndecided);
  EXPECT_EQ(report.message, "was recorded as sketches of parts that overlap or are too many");
  Values infinite = values_;
  infinite[3] = INFINITY;
  for (int rank = 0; rank < 2; ++rank)
    writeRank(folder_.path("c"), rank, {{"tp", 2}},
              {sketchOfRows("w", 128, 100, 0, infinite, {{"kind", "parameter"}})});
  report = compared(Agreement::kUndecided);
  EXPECT_EQ(report.message, "has elements that are not finite, and was recorded as a sketch");
}

TEST_F(SketchOfTensor, ABrokenOneIsAnError) {
  Local local = sketchOfRows("w", 128, 100, 0, values_);
  local.shape = {static_cast<std::int64_t>(kBuckets) / 2};
  local.bytes.resize(local.bytes.size() / 2);
  writeRank(folder_.path("t"), 0, {}, {local});
  EXPECT_THROW(readTrace(folder_.path("t")), InputError);
  local = sketchOfRows("w", 128, 100, 0, values_, {{"sketch", "F32"}});
  local.described["sketch"] = "float";
  writeRank(folder_.path("t"), 0, {}, {local});
  EXPECT_THROW(readTrace(folder_.path("t")), InputError);
  local = sketchOfRows("w", 128, 100, 0, values_);
  local.described.erase("shape");
  writeRank(folder_.path("t"), 0, {}, {local});
  EXPECT_THROW(readTrace(folder_.path("t")), InputError);
}

TEST(Sketch, HashesAreThoseOfSplitmix64) {
  // The first outputs of the published generator from the seed 0.
  EXPECT_EQ(hashOfPlace(0), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(hashOfPlace(0x9E3779B97F4A7C15U), 0x6E789E6AA1B965F4U);
}

}  // namespace
}  // namespace shardproof::compare
