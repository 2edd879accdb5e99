// SPDX-License-Identifier: Apache-2.0
// Stored proofs are made again from what is stored of their stages.
#include "certificate/reprove.h"

#include <gtest/gtest.h>

#include "small_stage.h"

namespace shardproof {
namespace {

class ReproveTest : public ::testing::Test {
 protected:
  ReproveTest() : file_(directory_.write("cache.db", "")), cache_(file_, sqlite::Access::kCreate) {}
  void keep(const test::Draft& d, std::int32_t entry, Checker checker = Checker::kAuto,
            Method method = Method::kNormalForm) {
    cache_.write({{test::formOf(test::cut(d, entry)), checker, {method, {}}}}, {});
  }
  ReproveResult run(std::size_t sample = 100, std::uint64_t seed = 0) {
    ReproveOptions options;
    options.sample = sample;
    options.seed = seed;
    return reprove(cache_, options);
  }
  // The one failure, which is said to be wrong.
  void expectWrong(const std::string& why) {
    const ReproveResult r = run();
    ASSERT_EQ(r.failures.size(), 1u);
    EXPECT_TRUE(r.anyWrong());
    EXPECT_NE(r.failures[0].reason.find(why), std::string::npos) << r.failures[0].reason;
  }

  test::TemporaryDirectory directory_;
  std::string file_;
  CacheFile cache_;
};

TEST_F(ReproveTest, TrueProofsHold) {
  keep(test::smallDraft(), 2);
  keep(test::smallDraft(), 3);
  keep(test::smallDraft(), 3, Checker::kZ3, Method::kSolver);
  const ReproveResult r = run();
  EXPECT_EQ(r.rows, 3u);
  EXPECT_EQ(r.drawn, 3u);
  EXPECT_EQ(r.held, 3u);
  EXPECT_TRUE(r.failures.empty());
  EXPECT_FALSE(r.anyWrong());
}

TEST_F(ReproveTest, AProofOfAWrongStageDoesNotHold) {
  keep(test::smallDraft(), 2);
  keep(test::wrongDraft(), 3);
  expectWrong("refuted");
}

TEST_F(ReproveTest, AProofByAnotherMethodOrWithOtherShapesIsWrong) {
  keep(test::smallDraft(), 2, Checker::kAuto, Method::kPolynomial);
  expectWrong("not by polynomial");
  sqlite::Database(file_, sqlite::Access::kWrite, 1000).execute("DELETE FROM proofs");
  cache_.write({{test::formOf(test::cut(test::smallDraft(), 2)),
                 Checker::kAuto,
                 {Method::kNormalForm, {{0, {99, 99}}}}}},
               {});
  expectWrong("shapes");
}

TEST_F(ReproveTest, DamagedRowsAndFormsAreWrong) {
  cache_.write({{"no form", Checker::kAuto, {Method::kNormalForm, {}}}}, {});
  expectWrong("cannot be read");
  sqlite::Database(file_, sqlite::Access::kWrite, 1000).execute("UPDATE proofs SET check_sum = 0");
  expectWrong("not what was written");
}

TEST_F(ReproveTest, RowsOfOtherVersionsAreNotDrawn) {
  keep(test::wrongDraft(), 3);
  sqlite::Database(file_, sqlite::Access::kWrite, 1000)
      .execute("UPDATE proofs SET version = 'other'");
  const ReproveResult r = run();
  EXPECT_EQ(r.rows, 0u);
  EXPECT_TRUE(r.failures.empty());
}

// Between drawing and reading, another process may prune the cache, and a third one write to it:
// the numbers of removed rows are used again.
TEST_F(ReproveTest, RowsThatAreRemovedMeanwhileAreNotWrong) {
  keep(test::smallDraft(), 2);
  keep(test::smallDraft(), 3);
  const auto drawn = cache_.ids(proofVersion());
  ASSERT_EQ(drawn.size(), 2u);
  sqlite::Database other(file_, sqlite::Access::kWrite, 1000);
  other.execute("DELETE FROM proofs WHERE id = " + std::to_string(drawn[0]));
  ReproveResult r = reprove(cache_, drawn, PoolOptions{});
  EXPECT_EQ(r.removed, 1u);
  EXPECT_EQ(r.drawn, 1u);
  EXPECT_EQ(r.held, 1u);
  EXPECT_TRUE(r.failures.empty());
  other.execute(
      "UPDATE proofs SET version = 'another', check_sum = 0");  // unsound, too: it cannot be told
                                                                // which of the two it is
  r = reprove(cache_, drawn, PoolOptions{});
  EXPECT_EQ(r.removed, 1u);
  EXPECT_TRUE(r.anyWrong());
}

TEST_F(ReproveTest, TheSeedDrawsTheSample) {
  for (const std::int64_t width : {2, 4, 6, 8, 10, 12, 14, 16, 18, 20})
    keep(test::smallDraft(width), 2, Checker::kAuto, Method::kPolynomial);
  const auto rows = [&](std::uint64_t seed) {
    std::vector<std::int64_t> list;
    for (const auto& f : run(3, seed).failures) list.push_back(f.row);
    EXPECT_EQ(list.size(), 3u);
    return list;
  };
  EXPECT_EQ(rows(1), rows(1));
  EXPECT_TRUE(rows(1) != rows(2) || rows(2) != rows(3));
  EXPECT_EQ(run(1000).drawn, 10u);
}

}  // namespace
}  // namespace shardproof
