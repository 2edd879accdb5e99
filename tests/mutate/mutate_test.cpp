// SPDX-License-Identifier: Apache-2.0
// Bugs change what they say and nothing else, and what they leave is a plan that can be read. That
// each is refuted: tests/plans/mutation_matrix.py.
#include "mutate/mutate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "plans.h"
#include "reader/reader.h"
#include "shardproof/error.h"

namespace shardproof::mutate {
namespace {

struct Case {
  const char* name;
  generate::Options options;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list{
      {"mlp", with(small("mlp"),
                   [](auto& o) { o.dp = o.tp = o.pp = o.microbatches = 2, o.clip = "1.0"; })},
      {"llama3", with(small("llama3"),
                      [](auto& o) {
                        o.dp = o.tp = o.pp = o.microbatches = 2, o.zero = 1;
                        o.vocabularyParallel = o.sequenceParallel = o.recompute = true;
                        o.schedule = "1f1b";
                      })},
      {"gpt", with(small("gpt"),
                   [](auto& o) {
                     o.dp = o.tp = o.pp = o.microbatches = 2, o.zero = 1,
                     o.vocabularyParallel = true;
                   })},
      {"deepseek-v3", with(small("deepseek-v3"),
                           [](auto& o) {
                             o.tp = o.microbatches = 2, o.dp = o.ep = 4;
                             o.balanceLoss = "0.01";
                           })},
      {"interleaved", with(small("mlp"),
                           [](auto& o) {
                             o.layers = 4, o.dp = o.pp = o.virtualStages = 2, o.microbatches = 4,
                             o.schedule = "interleaved";
                           })},
  };
  return list;
}

std::vector<NodeRef> sitesOf(const std::string& bug, const Json& plan) {
  return findBug(bug).sites(PlanGraph(plan, "plan"));
}

const Json& nodeAt(const Json& plan, NodeRef ref) {
  return plan.at("programs")
      .at(static_cast<std::size_t>(ref.program))
      .at("nodes")
      .at(static_cast<std::size_t>(ref.node));
}

TEST(Mutate, EveryBugAppliesSomewhere) {
  std::set<std::string_view> seen;
  for (const Case& c : cases()) {
    const Written g(c.options);
    const Json plan = g.document();
    const PlanGraph graph(plan, g.plan);
    for (const Bug& bug : bugs())
      if (!bug.sites(graph).empty()) seen.insert(bug.name);
  }
  for (const Bug& bug : bugs()) EXPECT_TRUE(seen.contains(bug.name)) << bug.name;
}

TEST(Mutate, NamesAreUnique) {
  std::set<std::string_view> seen;
  for (const Bug& bug : bugs()) {
    EXPECT_TRUE(seen.insert(bug.name).second) << bug.name;
    EXPECT_FALSE(bug.does.empty());
    EXPECT_FALSE(bug.source.empty());
  }
}

// A few places of each bug, spread over all of them.
TEST(Mutate, LeavesAPlanThatCanBeReadAndTouchesWhatItSays) {
  for (const Case& c : cases()) {
    const Written g(c.options);
    const Json before = g.document();
    const PlanGraph graph(before, g.plan);
    for (const Bug& bug : bugs()) {
      const auto sites = bug.sites(graph);
      const std::size_t stride = std::max<std::size_t>(1, sites.size() / 4);
      for (std::size_t i = 0; i < sites.size(); i += stride) {
        SCOPED_TRACE(std::string(c.name) + " " + std::string(bug.name) + " " + pointerTo(sites[i]));
        Json plan = before;
        const Mutation made = mutate(plan, g.plan, bug, {.at = pointerTo(sites[i])});
        EXPECT_EQ(made.site, sites[i]);
        EXPECT_NE(plan, before);
        ASSERT_FALSE(made.touched.empty());
        // Every node that is not named is there as it was.
        std::map<std::string, int> old;
        for (const Json& program : before.at("programs"))
          for (const Json& node : program.at("nodes"))
            old[node.dump(-1, ' ', false, Json::error_handler_t::replace)] = 1;
        const std::set<NodeRef> touched(made.touched.begin(), made.touched.end());
        for (int p = 0; p < static_cast<int>(plan.at("programs").size()); ++p)
          for (int n = 0;
               n < static_cast<int>(
                       plan.at("programs")[static_cast<std::size_t>(p)].at("nodes").size());
               ++n)
            if (!touched.contains({p, n})) {
              EXPECT_TRUE(old.contains(
                  nodeAt(plan, {p, n}).dump(-1, ' ', false, Json::error_handler_t::replace)))
                  << pointerTo({p, n});
            }
        EXPECT_TRUE(std::any_of(made.touched.begin(), made.touched.end(), [&](NodeRef r) {
          return !old.contains(
              nodeAt(plan, r).dump(-1, ' ', false, Json::error_handler_t::replace));
        }));
        try {
          readProblem(g.model, g.directory.write("mutated.plan.json", documentText(plan)));
        } catch (const InputError& error) {
          ADD_FAILURE() << error.what();
        }
      }
    }
  }
}

TEST(Mutate, ChoosesByPlaceOrSeed) {
  const Written g(cases()[0].options);
  const Json before = g.document();
  const Bug& bug = findBug("missing_all_reduce_backward");
  const auto sites = bug.sites(PlanGraph(before, g.plan));
  ASSERT_GT(sites.size(), 2u);
  const auto chosen = [&](const Choice& choice) {
    Json plan = before;
    return mutate(plan, g.plan, bug, choice).site;
  };
  EXPECT_EQ(chosen({}), sites.front());
  std::set<NodeRef> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(chosen({.seed = seed}), chosen({.seed = seed}));
    seen.insert(chosen({.seed = seed}));
  }
  EXPECT_GT(seen.size(), 1u);
  for (const NodeRef site : sites) EXPECT_EQ(chosen({.at = pointerTo(site)}), site);
  EXPECT_THROW(chosen({.at = "/programs/0/nodes/0"}), MutationError);
  EXPECT_THROW(chosen({.at = "elsewhere"}), MutationError);
  EXPECT_THROW(findBug("no_such_bug"), MutationError);
}

// On one device nothing is communicated, and nothing is divided.
TEST(Mutate, NothingIsListedThatWouldChangeNothing) {
  const Written g(small("llama3"));
  const Json plan = g.document();
  for (const char* bug :
       {"missing_all_reduce", "missing_all_reduce_backward", "dangling_all_reduce", "wrong_group",
        "wrong_pipeline_peer", "shuffled_microbatches", "constant_on_one_rank",
        "constant_on_several_ranks", "accumulation_without_average", "divided_by_world_size_twice",
        "never_divided", "reduced_before_last_microbatch", "clip_counts_replicas",
        "clip_leaves_out_shards", "stale_recompute_input"})
    EXPECT_TRUE(sitesOf(bug, plan).empty()) << bug;
  EXPECT_FALSE(sitesOf("wrong_operand", plan).empty());
  Json copy = plan;
  EXPECT_THROW(mutate(copy, "plan", findBug("missing_all_reduce"), {}), MutationError);
}

// A reduction over an axis of one rank, and one whose result nobody needs.
TEST(Mutate, ReductionsWithoutEffectAreNotListed) {
  const char* text =
      R"({"format": "shardproof-plan", "version": 1, "mesh": [["tp", 2], ["ep", 1]],
          "programs": [{"tensors":
    {"x": {"shape": [2, 2], "kind": "input"}, "y": {"shape": [2, 2]}, "z": {"shape": [2, 2]},
     "dead": {"shape": [2, 2]}, "sum": {"shape": [2, 2]}},
    "nodes": [{"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "a", "group": ["ep"]},
              {"op": "all_reduce", "in": ["x"], "out": ["dead"], "comm": "b", "group": ["tp"]},
              {"op": "all_reduce", "in": ["x"], "out": ["sum"], "comm": "c", "group": ["tp"]},
               {"op": "add", "in": ["y", "sum"], "out": ["z"]}]}],
    "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 2]],
     "step": {"tp": [2, 0]}, "parts": [{"local": "x"}]}]},
                {"tensor": "z", "role": "output", "shards": [{"box": [[0, 2], [0, 2]],
                 "parts": [{"local": "z"}]}]}]})";
  EXPECT_EQ(sitesOf("missing_all_reduce", Json::parse(text)), (std::vector<NodeRef>{{0, 2}}));
}

TEST(Mutate, OneRankIsSplitOff) {
  const Written g(with(small("mlp"), [](auto& o) { o.dp = 3, o.tp = 2; }));
  Json plan = g.document();
  const Mutation made = mutate(plan, g.plan, findBug("constant_on_one_rank"), {});
  ASSERT_EQ(made.touched.size(), 1u);
  const Json& program = plan.at("programs").at(static_cast<std::size_t>(made.touched[0].program));
  EXPECT_EQ(program.at("at"), Json::parse(R"({"dp": 2, "tp": 1})"));
  // dp = 0, dp = 1, (dp = 2, tp = 0), (dp = 2, tp = 1)
  EXPECT_EQ(plan.at("programs").size(), 4u);
}

// What is no communication any more has no handle; what is put behind one that is begun reads
// behind the wait.
TEST(Mutate, AsynchronousCommunication) {
  const Json both = readDocument(std::string(SHARDPROOF_SOURCE_DIR) +
                                 "/tests/plans/small/async_collective_around_a_message.json");
  const test::TemporaryDirectory directory;
  const std::string model = directory.write("m.model.json", both.at("model").dump());
  const std::string file = directory.write("p.json", both.at("plan").dump());
  for (const char* bug : {"missing_all_reduce", "all_gather_for_all_reduce"}) {
    Json changed = both.at("plan");
    mutate(changed, file, findBug(bug), {});
    readProblem(model, directory.write("q.json", changed.dump()));
    // In rank 0's program a message stands between the all_reduce and the node that waits for it.
    const Json& made = changed["programs"][0]["nodes"];
    EXPECT_EQ(made[1]["op"], "send");
    if (made[0]["op"] == "identity") {
      EXPECT_FALSE(made[0].contains("handle") || made[2].contains("waits"));
      continue;
    }
    EXPECT_EQ(made[0]["handle"], "h");
    EXPECT_EQ(made[2]["op"], "chunk");
    EXPECT_EQ(made[2]["waits"], Json({"h"}));
  }
}

// Members' programs call their operands a and b.
TEST(Mutate, MembersWithOtherNames) {
  const Json both = readDocument(std::string(SHARDPROOF_SOURCE_DIR) +
                                 "/tests/plans/small/async_collective_around_a_message.json");
  const test::TemporaryDirectory directory;
  const std::string model = directory.write("m.model.json", both.at("model").dump());
  const std::string file = directory.write("p.json", both.at("plan").dump());
  Json changed = both.at("plan");
  const Mutation made = mutate(changed, file, findBug("reduce_scatter_for_all_reduce"), {});
  EXPECT_EQ(made.touched.size(), 4u);
  readProblem(model, directory.write("q.json", changed.dump()));
}

}  // namespace
}  // namespace shardproof::mutate
