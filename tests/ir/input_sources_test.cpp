// SPDX-License-Identifier: Apache-2.0
// Input lineage must not restrict the model's inputs.
#include "ir/input_sources.h"

#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Json;

Json inputOfX(const char* box) {
  return Json::parse(std::string(R"({"tensor": "x", "role": "input", "shards": [{"box": )") + box +
                     R"(, "parts": [{"local": "x", "at": {"tp": 0}}]}]})");
}

TEST(InputLineage, TwoSourcesOfOneLocalTensorAreAnInputError) {
  test::Draft d = test::twoRanks();
  d.entry(0)["shards"] = Json::parse(
      R"([{"box": [[0, 4]], "parts": [{"local": "x", "at": {"tp": 0}}]},
          {"box": [[4, 8]], "parts": [{"local": "x", "at": {"tp": 1}}]}])");
  d.plan["lineage"].push_back(inputOfX("[[4, 8]]"));
  try {
    static_cast<void>(test::read(d));
    FAIL() << "the proof would hold only for inputs whose halves agree";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), "/lineage/2/shards/0");
    EXPECT_NE(
        std::string(error.what()).find("already is the input piece stated at /lineage/0/shards/0"),
        std::string::npos)
        << error.what();
  }
}

TEST(InputLineage, TheSameSourceTwiceIsNone) {
  test::Draft d = test::twoRanks();
  d.entry(0)["shards"] = Json::parse(
      R"([{"box": [[0, 4]], "parts": [{"local": "x", "at": {"tp": 0}}]},
          {"box": [[4, 8]], "parts": [{"local": "x", "at": {"tp": 1}}]}])");
  d.plan["lineage"].push_back(inputOfX("[[0, 4]]"));
  EXPECT_NO_THROW(test::read(d));
}

TEST(InputLineage, APartOfTwoSumsIsAnInputError) {
  test::Draft d = test::twoRanks();
  d.model["tensors"]["y"] = d.model["tensors"]["x"] =
      Json::parse(R"({"shape": [4], "kind": "input"})");
  d.entry(0) = Json::parse(
      R"({"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]], "parts": [{"local": "x"}],
          "sum": ["tp"]}]})");
  d.entry(1) = Json::parse(
      R"({"tensor": "y", "role": "input", "shards": [{"box": [[0, 4]], "parts": [{"local": "x"}],
          "sum": ["tp"]}]})");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "output", "shards": [{"box": [[0, 4]], "parts": [{"local": "x"}],
          "sum": ["tp"]}]})"));
  EXPECT_THROW(test::read(d), InputError);  // x = y would follow
}

// Two shards of one local tensor that are the same piece at coordinate 0 only.
TEST(InputLineage, DifferentStepsAreDifferentSources) {
  test::Draft d = test::twoRanks();
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "x"}]}]})"));
  EXPECT_THROW(test::read(d), InputError);
}

}  // namespace
}  // namespace shardproof
