// SPDX-License-Identifier: Apache-2.0
#include "util/similar.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(Similar, TheNearestFirst) {
  const std::vector<std::string> known{"linear", "line", "silu", "sum"};
  EXPECT_EQ(similarTo("lienar", known), (std::vector<std::string>{"linear", "line"}));
  EXPECT_TRUE(similarTo("embedding", known).empty());
  EXPECT_EQ(similarTo("sum", known).front(), "sum");
}

TEST(Similar, ShortWordsAreNotLikeEverything) {
  EXPECT_TRUE(similarTo("x", {"y", "ab"}).empty());
  EXPECT_TRUE(similarTo("", {"a"}).empty());
}

TEST(Similar, HugeNamesCostNothing) {
  const std::string huge(10'000'000, 'a');
  EXPECT_TRUE(similarTo(huge, {huge, "a"}).empty());
  EXPECT_TRUE(similarTo("a", {huge}).empty());
}

TEST(Similar, AsAQuestion) {
  EXPECT_EQ(didYouMean("modle", {"model", "plan"}), ", did you mean \"model\"?");
  EXPECT_EQ(didYouMean("zzzzz", {"model"}), "");
}

}  // namespace
}  // namespace shardproof
