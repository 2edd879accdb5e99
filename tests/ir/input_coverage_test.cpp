// SPDX-License-Identifier: Apache-2.0
#include "ir/input_coverage.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "reader/reader.h"

namespace shardproof {
namespace {

constexpr const char* kModel = R"({"format": "shardproof-model", "version": 1,
  "tensors": {"x": {"shape": [16, 2], "kind": "input"}, "y": {"shape": [16, 2]}}, "outputs": ["y"],
  "nodes": [{"op": "neg", "in": ["x"], "out": ["y"]}]})";

// A plan on dp 2 with 2 microbatches; `step` is that of both entries.
std::string plan(const std::string& inputStep) {
  return R"({"format": "shardproof-plan", "version": 1, "mesh": [["dp", 2], ["tp", 2]],
             "microbatches": 2,
  "programs": [{"tensors": {"x": {"shape": [4, 2], "kind": "input", "per_mb": true},
   "y": {"shape": [4, 2], "per_mb": true}},
                "nodes": [{"op": "neg", "in": ["x"], "out": ["y"], "mb": "*"}]}],
  "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 2]], "step": )" +
         inputStep + R"(, "parts": [{"local": "x"}]}]},
              {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4], [0, 2]],
               "step": {"dp": [8, 0], "mb": [4, 0]}, "parts": [{"local": "y"}]}]}]})";
}

std::vector<ir::InputGap> gaps(const std::string& step) {
  return ir::inputGaps(*readProblemText(kModel, plan(step)));
}

TEST(InputCoverage, NothingIsSaidOfAnInputThatIsWhole) {
  EXPECT_TRUE(gaps(R"({"dp": [8, 0], "mb": [4, 0]})").empty());
  EXPECT_TRUE(gaps(R"({"dp": [4, 0], "mb": [8, 0]})").empty());
}

TEST(InputCoverage, TheAxesAlongWhichNothingMovesAreNamed) {
  const auto found = gaps(R"({"dp": [8, 0]})");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].entry, 0U);
  EXPECT_EQ(
      found[0].text,
      "input `x`: no rank holds the element at [4, 0] of shape [16, 2]; a `step` along tp (size "
      "2) or mb (size 2) may be missing");
}

TEST(InputCoverage, StepsMayBeTooSmall) {
  const auto found = gaps(R"({"dp": [4, 0], "mb": [4, 0], "tp": [4, 0]})");
  ASSERT_EQ(found.size(), 0U);
  const auto small = gaps(R"({"dp": [1, 0], "mb": [4, 0], "tp": [2, 0]})");
  ASSERT_EQ(small.size(), 1U);
  EXPECT_NE(small[0].text.find("its steps may be too small"), std::string::npos);
}

}  // namespace
}  // namespace shardproof
