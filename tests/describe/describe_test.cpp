// SPDX-License-Identifier: Apache-2.0
// A failed stage as a message that leads to the place in the plan.
#include "describe/describe.h"
#include "check/checker.h"

#include <limits>

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof {
namespace {

TEST(Describe, Numbers) {
  EXPECT_EQ(numberText(0.375), "0.375");
  EXPECT_EQ(numberText(-778.0706612), "-778.07066");
  EXPECT_EQ(numberText(1e300), "1e+300");
  EXPECT_EQ(numberText(0), "0");
  EXPECT_EQ(numberText(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Describe, NamesClaimRanksMicrobatchAndNodes) {
  test::Draft d = test::pipeline();
  d.node(0, 0)["loc"] = "plan.py:3";
  d.node(0, 0)["op"] = "matmul";  // of x and w transposed by hand
  d.node(0, 0)["in"] = {"x", "wt"};
  d.tensor(0, "wt") = test::Json::parse(R"({"shape": [4, 3]})");
  auto& nodes = d.program(0)["nodes"];
  nodes.insert(
      nodes.begin(),
      test::Json::parse(
          R"({"op": "view", "in": ["w"], "out": ["wt"], "attrs": {"size": [4, 3]}})"));  // wrong
  const auto c = test::cut(d, 2);
  const StageOutcome outcome = checkStage(c.stage, {});
  ASSERT_EQ(outcome.verdict(), StageVerdict::kRefuted);
  StageOutcome third = outcome;
  third.claim = 3;  // tp 1, microbatch 1
  const Defect defect = describeFailure(*c.planIndex, c.stage, third);
  EXPECT_EQ(defect.kind, DefectKind::kLineage);
  EXPECT_EQ(defect.tensor, "y");
  EXPECT_EQ(defect.lineage, "y[4:8, 3:6] == y on rank 1 (pp=0 tp=1 microbatch 1)");
  EXPECT_EQ(defect.ranks, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(defect.microbatch, 1);
  EXPECT_EQ(
      defect.message,
      "tensor 'y' of the plan is not what the model computes (lineage entry /lineage/2/shards/0)");
  ASSERT_EQ(defect.nodes.size(), 3u);  // nearest to the claim first, then the model's
  EXPECT_EQ(defect.nodes[0].pointer, "/programs/0/nodes/1");
  EXPECT_EQ(defect.nodes[0].location, "plan.py:3");
  EXPECT_EQ(defect.nodes[1].op, "view");
  EXPECT_FALSE(defect.nodes[2].inPlan);
  EXPECT_EQ(defect.nodes[2].pointer, "/nodes/0");
  ASSERT_TRUE(defect.counterexample);
  EXPECT_EQ(defect.counterexample->logical, outcome.counterexample->logical);
}

TEST(Describe, CounterexamplesOfAnotherStageGetItsNames) {
  Stage from, to;
  from.tensors.resize(2);
  from.tensors[0].logical = true;
  from.tensors[1].rank = Rank(3);
  to = from;
  Names a, b;
  from.names = &a;
  to.names = &b;
  from.tensors[0].name = a.intern("y");
  from.tensors[1].name = a.intern("y.part");
  to.tensors[0].name = b.intern("z");
  to.tensors[1].name = b.intern("z.part");
  to.tensors[1].rank = Rank(5);
  Counterexample example;
  example.element = "y[0, 1]";
  example.assignment = {{"local y.part@rank 3[2, 0]", 1}, {"something else[0]", 2}};
  const Counterexample made = renamed(example, from, to);
  EXPECT_EQ(made.element, "z[0, 1]");
  EXPECT_EQ(made.assignment[0].element, "local z.part@rank 5[2, 0]");
  EXPECT_EQ(made.assignment[1].element, "something else[0]");
}

TEST(Describe, SumsAndOutputs) {
  const auto c = test::cut(test::pipeline(), 4);
  StageOutcome outcome;
  outcome.reason = "no reason";
  const Defect sum = describeFailure(*c.planIndex, c.stage, outcome);
  EXPECT_EQ(sum.lineage, "s[] == sum over tp, mb of t on pp=1");
  EXPECT_EQ(sum.ranks, (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(sum.microbatch);
  EXPECT_NE(sum.message.find("this stage itself is undecided: no reason"), std::string::npos);
  outcome.reason.clear();
  EXPECT_TRUE(describeFailure(*c.planIndex, c.stage, outcome)
                  .message.ends_with("; this stage itself is undecided"));
  const auto output = test::cut(test::pipeline(), 5);
  EXPECT_EQ(describeFailure(*output.planIndex, output.stage, outcome)
                .message.rfind("output 's' of the plan", 0),
            0u);
}

}  // namespace
}  // namespace shardproof
