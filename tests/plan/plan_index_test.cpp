// SPDX-License-Identifier: Apache-2.0
// Look-ups of the indexed plan, input lineage that would restrict inputs, and the order in which
// lineage may be assumed.
#include "plan/plan_index.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof {
namespace {

using test::communicationOf;
using test::Json;
using test::localTensor;

TEST(PlanIndex, FindsProgramsTensorsAndProducers) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  ASSERT_TRUE(planIndex.defects().empty());
  EXPECT_EQ(planIndex.programOf(Rank(1)), 0);
  EXPECT_EQ(planIndex.programOf(Rank(2)), 1);
  const TensorId t = localTensor(*problem, 1, "t");
  EXPECT_EQ(
      planIndex.findTensor(
          ProgramId(1), problem->plan.programs[1].graph.tensors[static_cast<std::size_t>(t)].name),
      t);
  EXPECT_EQ(
      planIndex.findTensor(
          ProgramId(0), problem->plan.programs[1].graph.tensors[static_cast<std::size_t>(t)].name),
      -1);
  ASSERT_EQ(planIndex.producers(ProgramId(1), t).size(), 1u);
  EXPECT_EQ(planIndex.producers(ProgramId(1), t)[0].node, 1);
  EXPECT_EQ(planIndex.producerOf({ProgramId(1), t, Rank(3), Microbatch::of(1)}).node, 1);
  EXPECT_EQ(
      planIndex
          .producerOf({ProgramId(0), localTensor(*problem, 0, "x"), Rank(0), Microbatch::of(0)})
          .node,
      -1);
  EXPECT_EQ(planIndex.operatorInstances(), 2 * 2 * 2 + 2 * (2 + 2 + 1 + 1));
  EXPECT_EQ(planIndex.place(ProgramId(1), NodeId(1)).pointer, "/programs/1/nodes/1");
  EXPECT_EQ(planIndex.place(ProgramId(1), NodeId(1)).op, "sum");
  EXPECT_EQ(planIndex.place(ProgramId(1), NodeId(1)).location, "plan.py:7");
  EXPECT_EQ(planIndex.place(ProgramId(1), NodeId(3)).op, "all_reduce");
}

TEST(PlanIndex, AnInstanceHasTheProducerOfItsMicrobatch) {
  test::Draft d = test::pipeline();
  d.node(1, 1)["mb"] = 0;
  Json second = d.node(1, 1);
  second["mb"] = 1;
  d.program(1)["nodes"].push_back(second);
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  const TensorId t = localTensor(*problem, 1, "t");
  EXPECT_EQ(planIndex.producerOf({ProgramId(1), t, Rank(2), Microbatch::of(0)}).node, 1);
  EXPECT_EQ(planIndex.producerOf({ProgramId(1), t, Rank(2), Microbatch::of(1)}).node, 4);
}

TEST(PlanIndex, KnowsWhichAxesNothingNames) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  EXPECT_EQ(planIndex.symmetry().classes(0).size(), 2u);
  EXPECT_EQ(planIndex.symmetry().classes(1).size(), 1u);
  EXPECT_TRUE(planIndex.names(ProgramId(0), 0));
  EXPECT_FALSE(planIndex.names(ProgramId(0), 1));
  EXPECT_EQ(planIndex.representativeRanks(), (test::ids<Rank>({0, 2})));
  std::vector<Rank> visited;
  planIndex.forEachRank(ProgramId(1), [&](Rank r) { visited.push_back(r); });
  EXPECT_EQ(visited, (test::ids<Rank>({2, 3})));

  test::Draft named =
      test::pipeline();  // a lineage part that names a coordinate tells the coordinates apart
  named.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "s", "role": "cut_point", "shards": [{"box": [],
          "parts": [{"local": "s", "at": {"pp": 1, "tp": 0}}]}]})"));
  const auto problem2 = test::read(named);
  EXPECT_EQ(PlanIndex(*problem2).symmetry().classes(1).size(), 2u);
}

TEST(PlanIndex, GroupsAreInRankOrderHoweverTheAxesAreListed) {
  test::Draft d = test::twoRanks();
  d.plan["mesh"] = Json::parse(R"([["a", 2], ["tp", 2], ["c", 3]])");
  for (std::size_t p = 0; p < 2; ++p) {
    d.tensor(p, "y") = Json::parse(R"({"shape": [4]})");
    d.program(p)["nodes"] = Json::parse(
        R"([{"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "r", "group": ["c", "a"]}])");
  }
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  EXPECT_TRUE(planIndex.defects().empty());
  EXPECT_EQ(planIndex.groupOf(communicationOf(*problem, 1, 0), Rank(10)),
            (test::ids<Rank>({3, 4, 5, 9, 10, 11})));  // a = 1, tp = 1, c = 1
}

TEST(PlanIndex, ListedGroupsKeepTheirOrderAndTheRestOfTheRank) {
  test::Draft d = test::twoRanks();
  d.plan["mesh"] = Json::parse(R"([["dp", 2], ["tp", 2]])");
  for (std::size_t p = 0; p < 2; ++p) {
    d.tensor(p, "y") = Json::parse(R"({"shape": [8]})");
    d.program(p)["nodes"] = Json::parse(
        R"([{"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "g",
            "group_at": [{"tp": 1}, {"tp": 0}], "attrs": {"dim": 0}}])");
  }
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  EXPECT_TRUE(planIndex.defects().empty());
  EXPECT_EQ(planIndex.groupOf(communicationOf(*problem, 0, 0), Rank(2)), (test::ids<Rank>({3, 2})));
}

TEST(PlanIndex, PartnersOfSendAndReceive) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  const CommunicationSpec& send = communicationOf(*problem, 0, 1);
  EXPECT_EQ(planIndex.groupOf(send, Rank(1)), (test::ids<Rank>({1, 3})));
  EXPECT_EQ(planIndex.groupOf(communicationOf(*problem, 1, 0), Rank(3)), (test::ids<Rank>({1, 3})));
  EXPECT_EQ(planIndex.partners(Rank(3), send, Microbatch::of(1), Rank(1)),
            (test::ids<NodeId>({0})));
  EXPECT_EQ(planIndex.partners(Rank(3), send, Microbatch::none(), Rank(1)),
            (test::ids<NodeId>({})));  // once is another rendezvous than once per microbatch
  EXPECT_EQ(planIndex.partners(Rank(2), send, Microbatch::of(1), Rank(1)),
            (test::ids<NodeId>({})));  // rank 2 receives from rank 0
}

TEST(PlanIndex, ATagTakesTheMicrobatchsPlace) {
  test::Draft d = test::pipeline();
  // Each side names its microbatches; what is sent as microbatch 0 is received as microbatch 1 and
  // the other way round.
  Json send = d.node(0, 1), receive = d.node(1, 0);
  d.program(0)["nodes"].erase(1);
  d.program(1)["nodes"].erase(0);
  Json receives = Json::array();
  for (int m = 0; m < 2; ++m) {
    send["mb"] = m;
    send["tag"] = 10 + m;
    receive["mb"] = 1 - m;
    receive["tag"] = 10 + m;
    d.program(0)["nodes"].push_back(send);
    receives.push_back(receive);
  }
  d.program(1)["nodes"].insert(d.program(1)["nodes"].begin(), receives.begin(), receives.end());
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  ASSERT_TRUE(planIndex.defects().empty()) << planIndex.defects()[0].message;
  EXPECT_EQ(
      planIndex.partners(Rank(2), communicationOf(*problem, 0, 1), Microbatch::of(0), Rank(0)),
      (test::ids<NodeId>({0})));  // tag 10
  EXPECT_EQ(
      planIndex.partners(Rank(2), communicationOf(*problem, 0, 2), Microbatch::of(1), Rank(0)),
      (test::ids<NodeId>({1})));  // tag 11
}

TEST(PlanIndex, MentionsAreFoundOnThePartsPrograms) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  const auto mentions0 = planIndex.mentions(ProgramId(0), localTensor(*problem, 0, "y"));
  const auto mentions1 = planIndex.mentions(ProgramId(1), localTensor(*problem, 1, "y"));
  ASSERT_EQ(mentions0.size(), 1u);
  ASSERT_EQ(mentions1.size(), 1u);
  EXPECT_EQ(mentions0[0].entry, 2);
  EXPECT_EQ(mentions1[0].entry, 3);
}

// ---- lemma order ----

TEST(LemmaOrder, FollowsTheComputation) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  EXPECT_EQ(planIndex.entryKey(EntryId(0)), -1);
  EXPECT_EQ(planIndex.entryKey(EntryId(1)), -1);
  EXPECT_LT(planIndex.entryKey(EntryId(2)), planIndex.entryKey(EntryId(3)));
  EXPECT_LT(planIndex.entryKey(EntryId(3)), planIndex.entryKey(EntryId(4)));
  EXPECT_LT(planIndex.entryKey(EntryId(4)), planIndex.entryKey(EntryId(5)));
}

TEST(LemmaOrder, DoesNotDependOnThePositionInTheFile) {
  test::Draft d = test::pipeline();
  std::swap(d.entry(2), d.entry(4));
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  EXPECT_LT(planIndex.entryKey(EntryId(4)), planIndex.entryKey(EntryId(3)));
  EXPECT_LT(planIndex.entryKey(EntryId(3)), planIndex.entryKey(EntryId(2)));
}

// Every rank has a program of its own, in any order in the file. Communication is looked at on one
// of the ranks that are symmetric, the order is that of all.
TEST(LemmaOrder, DoesNotDependOnTheOrderOfPrograms) {
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    test::Draft d = test::pipeline();
    d.plan["mesh"].insert(d.plan["mesh"].begin(), Json::array({"dp", 5}));
    std::vector<Json> programs;
    for (std::size_t p = 0; p < 2; ++p) {
      for (int dp = 0; dp < 5; ++dp) {
        programs.push_back(d.program(p));
        programs.back()["at"]["dp"] = dp;
      }
    }
    std::shuffle(programs.begin(), programs.end(), random);
    d.plan["programs"] = programs;
    const auto problem = test::read(d);
    const PlanIndex planIndex(*problem);
    EXPECT_TRUE(planIndex.defects().empty());
    for (std::int32_t e = 2; e < 5; ++e)
      EXPECT_LT(planIndex.entryKey(EntryId(e)), planIndex.entryKey(EntryId(e + 1))) << round;
  }
}

// Nodes that run in a cycle though their instances do not: no entry of the cycle may be
// assumed by another on the strength of its key.
TEST(LemmaOrder, NodesInACycleShareAKey) {
  test::Draft d = test::twoRanks();
  d.plan["microbatches"] = 2;
  d.tensor(0, "a") = d.tensor(0, "b") = Json::parse(R"({"shape": [4], "per_mb": true})");
  d.program(0)["nodes"] = Json::parse(
      R"([{"op": "identity", "in": ["x"], "out": ["a"], "mb": 0},
          {"op": "neg", "in": ["a#0"], "out": ["b"], "mb": "*"},
          {"op": "neg", "in": ["b#0"], "out": ["a"], "mb": 1}])");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "cut_point", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "a", "at": {"tp": 0}, "mb": 1}]}]})"));
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "cut_point", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "b", "at": {"tp": 0}, "mb": 1}]}]})"));
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  ASSERT_TRUE(planIndex.defects().empty()) << planIndex.defects()[0].message;
  EXPECT_EQ(planIndex.entryKey(EntryId(2)), planIndex.entryKey(EntryId(3)));
}

// On every plan: what a stage assumes comes strictly earlier in one linear order, so no chain of
// proofs can run in a cycle.
TEST(LemmaOrder, NoStageOfARealPlanAssumesALaterEntry) {
  bool any = false;
  for (const std::string& name : test::planNames()) {
    const auto problem = test::readShared(name);
    if (!problem) continue;
    any = true;
    const PlanIndex planIndex(*problem);
    ASSERT_TRUE(planIndex.defects().empty());
    for (const EntryId entry : firstIds<EntryId>(problem->plan.lineage.size())) {
      if (problem->plan.lineage[entry].role == Role::kInput) continue;
      for (const EntryId f : cutStage(planIndex, entry, {}).usedEntries) {
        EXPECT_LT(std::make_pair(planIndex.entryKey(f), f),
                  std::make_pair(planIndex.entryKey(entry), entry))
            << name;
      }
    }
  }
  if (!any) GTEST_SKIP() << "no plans in " << test::sharedPlans();
}

}  // namespace
}  // namespace shardproof
