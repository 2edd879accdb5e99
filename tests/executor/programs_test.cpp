// SPDX-License-Identifier: Apache-2.0
// Who meets whom, and in which order ranks may go on.
#include <gtest/gtest.h>

#include "executor/interpret.h"
#include "support/problems.h"

namespace shardproof::executor {
namespace {

using test::Draft;
using test::Json;

Result executed(const Draft& d) {
  const auto problem = test::read(d);
  return execute(*problem, {});
}
std::string cannotRun(const Draft& d) {
  const Result result = executed(d);
  EXPECT_EQ(result.status, Status::kCannotRun);
  return result.reason;
}
bool agrees(const Draft& d) {
  const auto problem = test::read(d);
  const Result result = execute(*problem, {});
  EXPECT_EQ(result.status, Status::kRun) << result.reason;
  return result.outputs(problem->plan) == Agreement::kAgrees;
}
void expectPart(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// y = the sum of x's two halves over a x b ranks: 2 x 2 ranks, the halves along a; `node` is the
// communication of every rank.
Draft reduced(const std::string& node) {
  return test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "p": {"shape": [2]},
          "q": {"shape": [2]}, "y": {"shape": [2]}},
      "nodes": [{"op": "slice", "in": ["x"], "out": ["p"], "attrs": {"dim": 0, "stop": 2}},
       {"op": "slice", "in": ["x"], "out": ["q"], "attrs": {"dim": 0, "start": 2}},
                {"op": "add", "in": ["p", "q"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["a", 2], ["b", 2]], "programs": [{"tensors": {"x": {"shape": [2],
          "kind": "input"}, "y": {"shape": [2]}}, "nodes": [)" +
          node + R"(]}],
      "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"a": [2]},
       "parts": [{"local": "x"}]}]},
                  {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2]],
                   "parts": [{"local": "y"}]}]}]})");
}

TEST(Groups, ByAxesAndByListsOfCoordinates) {
  EXPECT_TRUE(agrees(
      reduced(R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["a"]})")));
  EXPECT_FALSE(agrees(
      reduced(R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["b"]})")));
  EXPECT_FALSE(agrees(reduced(
      R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c",
          "group": ["a", "b"]})")));  // each half twice
  EXPECT_TRUE(agrees(reduced(
      R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c",
          "group_at": [{"a": 1}, {"a": 0}]})")));
  expectPart(cannotRun(reduced(
                 R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c",
              "group_at": [{"a": 1}]})")),
             "not in the group");
}

TEST(Groups, OrderCountsInGathers) {
  const auto gathered = [](const std::string& group) {
    Draft d = reduced(
        R"({"op": "all_gather", "in": ["x"], "out": ["g"], "comm": "c", "attrs": {"dim": 0}, )" +
        group + "}");
    d.model["outputs"] = {"x"};
    d.tensor(0, "g") = Json::parse(R"({"shape": [4]})");
    d.program(0)["tensors"].erase("y");
    d.plan["lineage"][1] = Json::parse(
        R"({"tensor": "x", "role": "output", "shards": [{"box": [[0, 4]],
            "parts": [{"local": "g"}]}]})");
    return d;
  };
  EXPECT_TRUE(agrees(gathered(R"("group": ["a"])")));
  EXPECT_TRUE(agrees(gathered(R"("group_at": [{"a": 0}, {"a": 1}])")));
  EXPECT_FALSE(agrees(gathered(R"("group_at": [{"a": 1}, {"a": 0}])")));
  // A program for each half that list the same group in two orders.
  Draft d = gathered(R"("group_at": [{"a": 0}, {"a": 1}])");
  Json other = d.program(0);
  d.program(0)["at"] = Json{{"a", 0}};
  other["at"] = Json{{"a", 1}};
  other["nodes"][0]["group_at"] = Json::parse(R"([{"a": 1}, {"a": 0}])");
  d.plan["programs"].push_back(other);
  expectPart(cannotRun(d), "another order");
}

TEST(Groups, MembersMustMeanTheSame) {
  Draft d =
      reduced(R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["a"]})");
  Json other = d.program(0);
  d.program(0)["at"] = Json{{"a", 0}};
  other["at"] = Json{{"a", 1}};
  d.plan["programs"].push_back(other);
  EXPECT_TRUE(agrees(d));
  Draft e = d;
  e.node(1, 0)["attrs"] = Json{{"reduce", "max"}};
  expectPart(cannotRun(e), "reduces otherwise");
  e = d;
  e.node(1, 0)["tag"] = 7;
  expectPart(cannotRun(e), "never joins");
  e = d;
  e.node(1, 0)["op"] = "all_gather";
  e.node(1, 0)["attrs"] = Json{{"dim", 0}};
  expectPart(cannotRun(e), "never joins");
  e = d;
  e.program(1)["nodes"].push_back(e.node(1, 0));
  e.node(1, 1)["out"] = {"z"};
  e.tensor(1, "z") = Json::parse(R"({"shape": [2]})");
  expectPart(cannotRun(e), "twice");
  e = d;
  e.tensor(1, "y")["shape"] = {1, 2};
  e.plan["lineage"][1]["shards"][0]["parts"][0]["at"] = Json{{"a", 0}};
  expectPart(cannotRun(e), "declared with shape [1, 2]");
}

// The root's own coordinates stand in for axes that it does not name.
Draft broadcast(const std::string& root) {
  Draft d = test::twoRanks();
  d.model["outputs"] = {"h"};
  d.model["tensors"]["h"] = Json::parse(R"({"shape": [4]})");
  d.model["nodes"].push_back(
      Json::parse(R"({"op": "slice", "in": ["x"], "out": ["h"], "attrs": {"dim": 0, "stop": 4}})"));
  for (const std::size_t p : {0, 1}) {
    d.program(p)["nodes"].push_back(Json{{"op", "broadcast"},
                                         {"in", Json::array()},
                                         {"out", Json::array()},
                                         {"comm", "b"},
                                         {"group", {"tp"}},
                                         {"root", Json::parse(root)}});
    if (p == 0) d.node(p, 0)["in"].push_back("x");
    else d.node(p, 0)["out"].push_back("h");
  }
  d.tensor(1, "h") = Json::parse(R"({"shape": [4]})");
  d.plan["lineage"][1] = Json::parse(
      R"({"tensor": "h", "role": "output", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "h", "at": {"tp": 1}}]}]})");
  return d;
}

TEST(Groups, BroadcastFromItsRoot) {
  EXPECT_TRUE(agrees(broadcast(R"({"tp": 0})")));
  expectPart(cannotRun(broadcast(R"({"tp": 1})")), "broadcast");
  expectPart(cannotRun(broadcast("{}")), "another root");
}

// Two microbatches on one rank; c and d are what the nodes make of them.
Draft twoMicrobatches(const std::string& nodes) {
  return test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}},
          "nodes": [{"op": "neg", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [], "microbatches": 2, "programs": [{"tensors": {"x": {"shape": [2],
          "kind": "input", "per_mb": true}, "c": {"shape": [2], "per_mb": true},
          "d": {"shape": [2], "per_mb": true},
                      "y": {"shape": [2], "per_mb": true}, "s": {"shape": [2]}}, "nodes": [)" +
          nodes + R"(]}],
      "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"mb": [2]},
       "parts": [{"local": "x"}]}]},
                  {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2]],
                   "step": {"mb": [2]}, "parts": [{"local": "y"}]}]}]})");
}
const std::string kY = R"(, {"op": "neg", "in": ["x"], "out": ["y"], "mb": "*"})";

TEST(Order, AcrossMicrobatchesOnlyWhatIsReadCounts) {
  // Microbatch 0 reads what microbatch 1 produces further down.
  const std::string late =
      R"({"op": "neg", "in": ["c#1"], "out": ["d"], "mb": 0},
          {"op": "neg", "in": ["x"], "out": ["c"], "mb": 1})";
  EXPECT_TRUE(agrees(twoMicrobatches(late + kY)));
  Draft d = twoMicrobatches(late +
                            R"(, {"op": "neg", "in": ["x"], "out": ["y"], "mb": 0},
          {"op": "neg", "in": ["x"], "out": ["y"], "mb": 1})");
  d.program(0)["order"] = "issue";
  expectPart(cannotRun(d), "only later");
  // A node that runs once is in every microbatch's list.
  expectPart(
      cannotRun(twoMicrobatches(
          R"({"op": "neg", "in": ["c#1"], "out": ["s"]}, {"op": "neg", "in": ["x"], "out": ["c"],
              "mb": "*"})" +
          kY)),
      "only later");
  // Each waits for the other.
  expectPart(cannotRun(twoMicrobatches(
                 R"({"op": "neg", "in": ["c#1"], "out": ["d"], "mb": 0},
              {"op": "neg", "in": ["d#0"], "out": ["c"], "mb": 1})" +
                 kY)),
             "wait for their own results");
}

TEST(Order, MicrobatchesAreTheirOwn) {
  EXPECT_TRUE(agrees(twoMicrobatches(
      R"({"op": "neg", "in": ["x"], "out": ["c"], "mb": "*"},
          {"op": "neg", "in": ["c"], "out": ["d"], "mb": "*"},
          {"op": "neg", "in": ["d"], "out": ["y"], "mb": "*"})")));
  EXPECT_FALSE(agrees(twoMicrobatches(R"({"op": "neg", "in": ["x#0"], "out": ["y"], "mb": "*"})")));
  expectPart(cannotRun(twoMicrobatches(
                 R"({"op": "neg", "in": ["x"], "out": ["c"], "mb": 0},
              {"op": "neg", "in": ["c"], "out": ["y"], "mb": "*"})")),
             "microbatch 1");
  expectPart(
      cannotRun(twoMicrobatches(R"({"op": "neg", "in": ["x"], "out": ["s"], "mb": "*"})" + kY)),
      "produced twice");
  expectPart(cannotRun(twoMicrobatches(R"({"op": "neg", "in": ["x"], "out": ["y"], "mb": 0})")),
             "no node produces 'y'");
}

// A message waits for data of another microbatch, whose message is issued after one that waits for
// the first: neither the data alone nor the order alone goes in a cycle.
TEST(Order, ACycleOfDataAndOrderOfCommunicationIsADeadlock) {
  const Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}},
          "nodes": [{"op": "neg", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["r", 2]], "microbatches": 2, "programs": [
      {"at": {"r": 0}, "tensors": {"x": {"shape": [2], "kind": "input", "per_mb": true},
       "d": {"shape": [2], "per_mb": true}, "e": {"shape": [2], "per_mb": true},
       "y": {"shape": [2], "per_mb": true}},
       "nodes": [{"op": "send", "in": ["d#1"], "out": [], "comm": "c", "to": {"r": 1}, "mb": 0},
        {"op": "recv", "in": [], "out": ["e"], "comm": "e", "from": {"r": 1}, "mb": 1},
                 {"op": "recv", "in": [], "out": ["d"], "comm": "d", "from": {"r": 1}, "mb": 1},
                  {"op": "neg", "in": ["x"], "out": ["y"], "mb": "*"}]},
      {"at": {"r": 1}, "tensors": {"x": {"shape": [2], "kind": "input", "per_mb": true},
       "c": {"shape": [2], "per_mb": true}, "y": {"shape": [2], "per_mb": true}},
       "nodes": [{"op": "recv", "in": [], "out": ["c"], "comm": "c", "from": {"r": 0}, "mb": 0},
        {"op": "send", "in": ["c#0"], "out": [], "comm": "e", "to": {"r": 0}, "mb": 1},
                 {"op": "send", "in": ["x"], "out": [], "comm": "d", "to": {"r": 0}, "mb": 1},
                  {"op": "neg", "in": ["x"], "out": ["y"], "mb": "*"}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"mb": [2]},
      "parts": [{"local": "x"}]}]},
                 {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2]], "step": {"mb": [2]},
                  "parts": [{"local": "y"}]}]}]})");
  expectPart(cannotRun(d), "waits for rank");
  Draft free = d;  // with d before e it goes on
  std::swap(free.node(0, 1), free.node(0, 2));
  std::swap(free.node(1, 1), free.node(1, 2));
  EXPECT_TRUE(agrees(free));
}

TEST(Order, OneMicrobatchAndNoneDoNotMeet) {
  Draft one = test::draft(
      R"({"tensors": {"x": {"shape": [2], "kind": "input"}}, "nodes": [], "outputs": ["x"]})",
      R"({"mesh": [["r", 2]], "microbatches": 1, "programs": [
      {"at": {"r": 0}, "tensors": {"x": {"shape": [2], "kind": "input"}, "y": {"shape": [2]}},
       "nodes": [{"op": "send", "in": ["x"], "out": [], "comm": "c", "to": {"r": 1}, "mb": "*"}]},
      {"at": {"r": 1}, "tensors": {"x": {"shape": [2], "kind": "input"}, "y": {"shape": [2]}},
       "nodes": [{"op": "recv", "in": [], "out": ["y"], "comm": "c", "from": {"r": 0},
       "mb": "*"}]}],
     "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]],
      "parts": [{"local": "x"}]}]},
                 {"tensor": "x", "role": "output", "shards": [{"box": [[0, 2]],
                  "parts": [{"local": "y", "at": {"r": 1}}]}]}]})");
  EXPECT_TRUE(agrees(one));
  one.node(1, 0)["mb"] = 0;  // "*" of one microbatch is microbatch 0
  EXPECT_TRUE(agrees(one));
  one.node(1, 0).erase("mb");
  expectPart(cannotRun(one), "never joins");
}

}  // namespace
}  // namespace shardproof::executor
