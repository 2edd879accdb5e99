// SPDX-License-Identifier: Apache-2.0
// Programs that run the same are one.
#include "ir/join_programs.h"

#include <gtest/gtest.h>

#include <functional>

#include "plan/plan_index.h"
#include "shardproof/builder.h"
#include "shardproof/verify.h"

namespace shardproof {
namespace {

// y = c x on dp 2 x tp 3, where each rank has a row of its own and a program of its own.
struct Own {
  std::function<std::int64_t(std::int32_t dp, std::int32_t tp)> factor = [](auto, auto) {
    return 3;
  };
  std::function<std::int64_t(std::int32_t dp, std::int32_t tp)> constant = [](auto, auto) {
    return 5;
  };
  std::function<const char*(std::int32_t dp, std::int32_t tp)> reads = [](auto, auto) {
    return "x";
  };
};

std::unique_ptr<Problem> problemOf(const Own& own) {
  ProblemBuilder b;
  b.model().input("x", {6, 2});
  b.model().produced("scaled", {6, 2});
  b.model().node("mul", {"x"}, {"scaled"}, {.attributes = {{"scalar", Rational(3)}}});
  b.model().constant("c", {1, 2}, {{Rational(5)}});
  b.model().produced("y", {6, 2});
  b.model().node("add", {"scaled", "c"}, {"y"});
  b.output("y");
  b.axis("dp", 2);
  b.axis("tp", 3);
  for (std::int32_t tp = 0; tp < 3; ++tp) {
    for (std::int32_t dp = 0; dp < 2; ++dp) {
      ProgramBuilder& p = b.program({{"dp", dp}, {"tp", tp}});
      p.input("x", {1, 2});
      p.input("other", {1, 2});
      p.produced("scaled", {1, 2});
      p.node("mul", {own.reads(dp, tp)}, {"scaled"},
             {.attributes = {{"scalar", Rational(own.factor(dp, tp))}}});
      p.constant("c", {1, 2}, {{Rational(own.constant(dp, tp))}});
      p.produced("y", {1, 2});
      p.node("add", {"scaled", "c"}, {"y"});
    }
  }
  const auto rows = [&](const char* tensor, Role role) {
    b.lineage(tensor, role)
        .shard({{0, 1}, {0, 2}})
        .step("dp", {3, 0})
        .step("tp", {1, 0})
        .part(tensor);
  };
  rows("x", Role::kInput);
  rows("y", Role::kOutput);
  auto problem = std::move(b).build();
  ir::joinEqualPrograms(problem->plan);
  return problem;
}

Report reportOf(const Problem& problem) {
  VerifyOptions options;
  options.inProcess = true;
  return verify(problem, options);
}

TEST(JoinPrograms, OfAllRanks) {
  const auto problem = problemOf({});
  ASSERT_EQ(problem->plan.programs.size(), 1U);
  EXPECT_TRUE(problem->plan.programs[0].at.empty());
  EXPECT_EQ(problem->plan.nodePointer(ProgramId(0), NodeId(1)), "/programs/0/nodes/1");
  EXPECT_EQ(reportOf(*problem).verdict, Verdict::kEquivalent);
}

// Programs of the file are numbered dp first: 1 is that of dp 1, tp 0.
TEST(JoinPrograms, OneIsAnother) {
  const auto wrong = [](std::int32_t dp, std::int32_t tp) { return dp == 1 && tp == 1; };
  Own factor, constant, operand;
  factor.factor = [&](auto dp, auto tp) { return wrong(dp, tp) ? 4 : 3; };
  constant.constant = [&](auto dp, auto tp) { return wrong(dp, tp) ? 4 : 5; };
  operand.reads = [&](auto dp, auto tp) { return wrong(dp, tp) ? "other" : "x"; };
  for (const Own& own : {factor, constant, operand}) {
    const auto problem = problemOf(own);
    // dp is left free at tp 0 and tp 2; or tp at dp 0, and then two programs at dp 1.
    const auto& programs = problem->plan.programs;
    ASSERT_EQ(programs.size(), 4U);
    const PlanIndex index(*problem);
    const Rank rank(1 * 3 + 1);
    const ProgramId own4 = index.programOf(rank);
    EXPECT_EQ(problem->plan.nodePointer(own4, NodeId(0)), "/programs/3/nodes/0");
    for (std::int32_t r = 0; r < 6; ++r)
      EXPECT_EQ(index.programOf(Rank(r)) == own4, Rank(r) == rank) << r;
    const Report report = reportOf(*problem);
    EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
    ASSERT_FALSE(report.defects.empty());
  }
}

// Of an axis a part is no stretch that a program can be for.
TEST(JoinPrograms, PartOfAnAxis) {
  Own own;
  own.factor = [](auto, auto tp) { return tp == 0 ? 3 : 2; };
  const auto problem = problemOf(own);
  const auto& programs = problem->plan.programs;
  ASSERT_EQ(programs.size(), 3U);
  for (const Program& p : programs) {
    ASSERT_EQ(p.at.size(), 1U);
    EXPECT_EQ(problem->plan.mesh[p.at[0].first].name, "tp");
  }
  EXPECT_EQ(programs[2].inFile, ProgramId(4));
  EXPECT_EQ(reportOf(*problem).verdict, Verdict::kNotEquivalent);
}

}  // namespace
}  // namespace shardproof
