// SPDX-License-Identifier: Apache-2.0
// Attributes that move with the coordinates of a rank.
#include "ir/attribute_steps.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "plan/plan_index.h"
#include "reader/reader.h"
#include "shardproof/builder.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

using List = std::vector<std::int64_t>;

NodeOptions slice(std::int64_t start, std::int64_t stop, std::int64_t perTp, std::int64_t perDp) {
  return {
      .attributes = {{"dim", Rational(0)}, {"start", Rational(start)}, {"stop", Rational(stop)}},
      .step = {{"tp", {{"start", Rational(perTp)}, {"stop", Rational(perTp)}}},
               {"dp", {{"start", Rational(perDp)}, {"stop", Rational(perDp)}}}}};
}

// Each rank of dp 3 x tp 4 has the whole of x and takes one of its twelve rows.
ProblemBuilder rows(const NodeOptions& node, const AxisCoordinates& at = {}) {
  ProblemBuilder b;
  b.model().input("x", {12, 2});
  b.model().produced("y", {12, 2});
  b.model().node("mul", {"x", "x"}, {"y"});
  b.output("y");
  b.axis("dp", 3);
  b.axis("tp", 4);
  const auto fill = [](ProgramBuilder& p, const NodeOptions& options) {
    p.input("x", {12, 2});
    p.produced("row", {1, 2});
    p.node("slice", {"x"}, {"row"}, options);
    p.produced("y", {1, 2});
    p.node("mul", {"row", "row"}, {"y"});
  };
  fill(b.program(at), node);
  if (!at.empty()) {
    for (std::int32_t dp = 1; dp < 3; ++dp) fill(b.program({{"dp", dp}}), node);
  }
  b.lineage("x", Role::kInput).shard({{0, 12}, {0, 2}}).part("x");
  b.lineage("y", Role::kOutput)
      .shard({{0, 1}, {0, 2}})
      .step("tp", {1, 0})
      .step("dp", {4, 0})
      .part("y");
  return b;
}

Verdict verdictOf(const Problem& problem) {
  VerifyOptions options;
  options.inProcess = true;
  return verify(problem, options).verdict;
}

std::int64_t startOn(const PlanIndex& index, std::int32_t rank) {
  const ProgramId program = index.programOf(Rank(rank));
  const Node& node = index.problem().plan.programs[program].graph.nodes[0];
  const Attributes& at =
      index.problem().attributes.at(index.attributesOf(program, node, Rank(rank)));
  return std::get<Rational>(at.at("start")).toInt64();
}

TEST(AttributeSteps, EachRankHasItsOwn) {
  const auto problem = rows(slice(0, 1, 1, 4)).build();
  ASSERT_EQ(problem->plan.programs.size(), 1U);
  ASSERT_EQ(problem->plan.programs[0].steps.size(), 1U);
  EXPECT_EQ(problem->plan.programs[0].steps[0].sets.size(), 12U);
  const PlanIndex index(*problem);
  for (std::int32_t rank = 0; rank < 12; ++rank) EXPECT_EQ(startOn(index, rank), rank);
  EXPECT_EQ(verdictOf(*problem), Verdict::kEquivalent);
  EXPECT_EQ(verdictOf(*rows(slice(0, 1, 1, 3)).build()), Verdict::kNotEquivalent);
  EXPECT_EQ(verdictOf(*rows(slice(0, 1, 1, 0)).build()), Verdict::kNotEquivalent);
  EXPECT_EQ(verdictOf(*rows(slice(3, 4, -1, 4)).build()), Verdict::kNotEquivalent);
}

TEST(AttributeSteps, AnAxisThatTheProgramFixesMovesNothing) {
  const auto problem = rows(slice(0, 1, 1, 4), {{"dp", 0}}).build();
  ASSERT_EQ(problem->plan.programs.size(), 3U);
  const PlanIndex index(*problem);
  for (std::int32_t rank = 0; rank < 12; ++rank) EXPECT_EQ(startOn(index, rank), rank);
  ASSERT_EQ(problem->plan.programs[2].steps.size(), 1U);
  ASSERT_EQ(problem->plan.programs[2].steps[0].step.size(), 1U);  // tp
  EXPECT_EQ(problem->plan.programs[2].steps[0].sets.size(), 4U);
  EXPECT_EQ(verdictOf(*problem), Verdict::kEquivalent);
}

// A program for each of so many ranks is more than there is room and time for.
TEST(AttributeSteps, TooManyProgramsAreNotMade) {
  constexpr std::int32_t kRanks = ir::kMostFixedPrograms + 1;
  ProblemBuilder b;
  b.model().input("x", {kRanks});
  b.model().produced("y", {kRanks});
  b.model().node("neg", {"x"}, {"y"});
  b.output("y");
  b.axis("dp", kRanks);
  ProgramBuilder& p = b.program({});
  p.input("x", {kRanks});
  p.produced("row", {1});
  p.node("slice", {"x"}, {"row"},
         {.attributes = {{"dim", Rational(0)}, {"start", Rational(0)}, {"stop", Rational(1)}},
          .step = {{"dp", {{"start", Rational(1)}, {"stop", Rational(1)}}}}});
  p.produced("y", {1});
  p.node("neg", {"row"}, {"y"});
  b.lineage("x", Role::kInput).shard({{0, kRanks}}).part("x");
  b.lineage("y", Role::kOutput).shard({{0, 1}}).step("dp", {1}).part("y");
  const auto problem = std::move(b).build();
  EXPECT_THROW(ir::withFixedAttributes(*problem), Unsupported);
}

TEST(AttributeSteps, ThePlanWithoutThemIsTheSame) {
  const auto problem = rows(slice(0, 1, 1, 4)).build();
  EXPECT_TRUE(problem->plan.attributesMove());
  const auto fixed = ir::withFixedAttributes(*problem);
  ASSERT_TRUE(fixed);
  EXPECT_FALSE(fixed->plan.attributesMove());
  EXPECT_EQ(fixed->plan.programs.size(), 12U);
  EXPECT_EQ(fixed->plan.programs[7].at, (Coordinates{{0, 1}, {1, 3}}));
  // It names the programs of the file.
  EXPECT_EQ(fixed->plan.nodePointer(ProgramId(7), NodeId(1)), "/programs/0/nodes/1");
  const PlanIndex index(*fixed);
  for (std::int32_t rank = 0; rank < 12; ++rank) EXPECT_EQ(startOn(index, rank), rank);
  EXPECT_EQ(verdictOf(*fixed), Verdict::kEquivalent);
  EXPECT_FALSE(ir::withFixedAttributes(*fixed));
}

TEST(AttributeSteps, AreWrittenAndReadAgain) {
  const auto problem = rows(slice(0, 1, 1, 4)).build();
  const std::string model = modelText(*problem), plan = planText(*problem, "m.json");
  const auto again = readProblemText(model, plan);
  ASSERT_EQ(again->plan.programs[0].steps.size(), 1U);
  EXPECT_EQ(planText(*again, "m.json"), plan);
  EXPECT_EQ(verdictOf(*again), Verdict::kEquivalent);
}

TEST(AttributeSteps, WhatStepsAdd) {
  Attributes attributes{
      {"pad", List{0, 3}}, {"scalar", Rational(1, 2)}, {"equation", std::string("ij")}};
  ir::addSteps(attributes, {{"pad", List{2, -1}}, {"scalar", Rational(1, 4)}}, 3);
  EXPECT_EQ(attributes,
            (Attributes{
                {"pad", List{6, 0}}, {"scalar", Rational(5, 4)}, {"equation", std::string("ij")}}));
  const auto refused = [&](const Attributes& step, std::int64_t coordinate = 1) {
    EXPECT_THROW(ir::addSteps(attributes, step, coordinate), std::invalid_argument);
  };
  refused({{"dim", Rational(1)}});
  refused({{"pad", Rational(1)}});
  refused({{"pad", List{1}}});
  refused({{"scalar", List{1}}});
  refused({{"equation", std::string("ji")}});
  refused({{"pad", List{std::int64_t{1} << 62, 0}}}, 4);
}

TEST(AttributeSteps, WrongOnesAreRefusedWithTheirPlace) {
  const auto with = [](NodeOptions options) -> std::string {
    try {
      static_cast<void>(rows(options).build());
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  NodeOptions options = slice(0, 1, 1, 4);
  options.step.emplace_back("ep", Attributes{});
  EXPECT_EQ(with(options),
            "the plan: /programs/0/nodes/0/step/ep: found \"ep\", expected an axis of the mesh "
            "(\"dp\", \"tp\")");
  options = slice(0, 1, 1, 4);
  options.step.emplace_back("tp", Attributes{});
  EXPECT_EQ(with(options),
            "the plan: /programs/0/nodes/0/step/tp: found the axis twice, expected it once");
  options = slice(0, 1, 1, 4);
  options.step[0].second.emplace("stride", Rational(1));
  EXPECT_EQ(with(options),
            "the plan: /programs/0/nodes/0/step/tp: found a step of \"stride\", expected one of an "
            "attribute that \"attrs\" has");
  // Of some rank only.
  EXPECT_NE(
      with({.attributes = {{"dim", Rational(0)}, {"start", Rational(0)}, {"stop", Rational(1)}},
            .step = {{"tp", {{"dim", Rational(1, 2)}}}}})
          .find("\"step\" leads there on some ranks"),
      std::string::npos);
  ProblemBuilder b;
  EXPECT_THROW(b.model().node("mul", {"x", "x"}, {"y"}, slice(0, 1, 1, 4)), std::invalid_argument);
}

TEST(AttributeSteps, ShapesHaveToBeTheSameOnAllRanks) {
  NodeOptions options = slice(0, 1, 1, 4);
  options.step[0].second.at("stop") = Rational(2);
  const auto problem = rows(options).build();
  const Report report = verify(*problem, {});
  EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
  ASSERT_FALSE(report.defects.empty());
  EXPECT_EQ(report.defects[0].kind, DefectKind::kShape);
}

}  // namespace
}  // namespace shardproof
