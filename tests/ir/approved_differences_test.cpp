// SPDX-License-Identifier: Apache-2.0
// An approved difference must excuse neither an output nor an input, and not say two things.
#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

void expectError(const Draft& d, const std::string& pointer, const std::string& message) {
  try {
    test::read(d);
    FAIL() << "expected: " << message;
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), pointer) << error.what();
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(ApprovedDifferences, AreRead) {
  const auto problem = test::read(test::approvedPipeline());
  const LineageEntry& entry = problem->plan.lineage[4];
  EXPECT_EQ(entry.role, Role::kAssumed);
  EXPECT_EQ(entry.approved, "means");
  EXPECT_TRUE(problem->plan.hasApprovedDifferences());
  EXPECT_FALSE(test::read(test::pipeline())->plan.hasApprovedDifferences());
}

TEST(ApprovedDifferences, AnOutputIsNone) {
  Draft d = test::pipeline();
  d.plan["lineage"].push_back(d.entry(5));
  d.entry(6)["role"] = "assumed";
  expectError(d, "/lineage/6/shards/0/parts/0/local",
              "found \"s\", which output lineage names, in a lineage of role \"assumed\"");
  // On other ranks the tensor of that name is another one.
  d.entry(6)["shards"][0]["parts"][0]["at"] = {{"pp", 1}, {"tp", 0}};
  expectError(d, "/lineage/6/shards/0/parts/0/local", "which output lineage names");
  d.entry(5)["shards"][0]["parts"][0]["at"] = {{"pp", 1}, {"tp", 1}};
  EXPECT_NO_THROW(test::read(d));
  // A part of the output's tensor is the output all the same.
  d = test::approvedPipeline();
  d.plan["version"] = 2;
  d.entry(5)["shards"][0]["parts"][0]["local"] = "s0";
  d.entry(5)["shards"][0]["parts"][0]["scale"] = 2;
  d.plan["lineage"].push_back(d.entry(4));
  d.entry(6)["shards"] =
      Json::parse(R"([{"box": [], "parts": [{"local": "s0", "at": {"pp": 1}}], "sum": ["tp"]}])");
  expectError(d, "/lineage/6/shards/0/parts/0/local", "which output lineage names");
}

TEST(ApprovedDifferences, AreOfWholeTensorsThatNodesProduce) {
  Draft d = test::pipeline();
  d.plan["lineage"].push_back(d.entry(0));
  d.entry(6)["role"] = "assumed";
  expectError(d, "/lineage/6/shards/0/parts/0/local",
              "expected a tensor that a node of /programs/0 produces");
  d = test::pipeline();
  d.plan["version"] = 2;
  d.entry(2)["role"] = "assumed";
  d.entry(2)["shards"][0]["parts"][0]["scale"] = 2;
  expectError(d, "/lineage/2/shards/0/parts/0", "expected a whole local tensor");
}

TEST(ApprovedDifferences, SayOneThing) {
  Draft d = test::pipeline();
  d.entry(2)["role"] = d.entry(3)["role"] = "assumed";
  EXPECT_NO_THROW(test::read(d));
  d.plan["lineage"].push_back(d.entry(2));
  EXPECT_NO_THROW(test::read(d));  // the same thing twice
  d.entry(6)["shards"][0]["step"]["mb"] = {0, 0};
  expectError(d, "/lineage/6/shards/0",
              "local tensor 'y' already is the assumed piece stated at /lineage/2/shards/0");
}

TEST(ApprovedDifferences, TheNameIsOfSuchAnEntryOnly) {
  Draft d = test::pipeline();
  d.entry(2)["approved"] = "y";
  expectError(d, "/lineage/2", "expected \"role\": \"assumed\" with it");
}

TEST(ApprovedDifferences, AGuessIsOfACutPointOnly) {
  Draft d = test::pipeline();
  d.entry(0)["guess"] = "x";
  expectError(d, "/lineage/0", "expected \"role\": \"cut_point\" with it");
}

}  // namespace
}  // namespace shardproof
