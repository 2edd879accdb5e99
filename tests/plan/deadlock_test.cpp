// SPDX-License-Identifier: Apache-2.0
// Which plans run and which wait for ever: cycles of data, of the order of communications, and of
// both. The plain executor, which goes through the schedule step by step, is asked as well.
#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "executor/interpret.h"
#include "plan/checks.h"
#include "plan/defects.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::defectsOf;
using test::Draft;
using test::Json;
using test::Pointers;
using test::pointersOf;
using test::Ranks;

bool executes(const Problem& problem) {
  return executor::execute(problem, {}).status == executor::Status::kRun;
}

void expectRuns(const Draft& d) {
  const auto problem = test::read(d);
  const auto defects = defectsOf(*problem);
  EXPECT_TRUE(defects.empty()) << defects.front().message;
  EXPECT_TRUE(executes(*problem));
}

// One cycle, with what its message must contain.
Defect expectDeadlock(const Draft& d, const Ranks& ranks, const Pointers& pointers,
                      const std::vector<std::string>& messages = {}) {
  const auto problem = test::read(d);
  EXPECT_FALSE(executes(*problem));
  const auto defects = defectsOf(*problem);
  if (defects.size() != 1) {
    ADD_FAILURE() << defects.size() << " defects";
    return {};
  }
  EXPECT_EQ(defects[0].kind, DefectKind::kDeadlock) << defects[0].message;
  EXPECT_EQ(defects[0].ranks, ranks) << defects[0].message;
  EXPECT_EQ(pointersOf(defects[0]), pointers) << defects[0].message;
  for (const std::string& message : messages)
    EXPECT_NE(defects[0].message.find(message), std::string::npos) << defects[0].message;
  return defects[0];
}

// ---- order alone ----

// Two ranks, each with these communications.
Draft twoRanksWith(const std::vector<Json>& nodes) {
  Draft d = test::twoRanks();
  for (std::size_t p = 0; p < 2; ++p) {
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      Json node = nodes[n];
      if (!node["out"].empty())
        d.tensor(p, node["out"][0].get<std::string>()) = Json::parse(R"({"shape": [4]})");
      d.program(p)["nodes"].push_back(node);
    }
  }
  return d;
}
Json allReduce(const std::string& comm, const std::string& in, const std::string& out) {
  return {{"op", "all_reduce"}, {"in", {in}}, {"out", {out}}, {"comm", comm}, {"group", {"tp"}}};
}

TEST(Deadlock, CollectivesInCrossedOrder) {
  Draft d = twoRanksWith({allReduce("c", "x", "y"), allReduce("d", "x", "z")});
  expectRuns(d);
  std::swap(d.node(1, 0), d.node(1, 1));
  expectDeadlock(d, {0, 1}, {"/programs/1/nodes/1", "/programs/0/nodes/1"},
                 {"on rank 0 /programs/0/nodes/1 (all_reduce 'd') is issued after "
                  "/programs/0/nodes/0 (all_reduce 'c')",
                  "on rank 1 /programs/1/nodes/1 (all_reduce 'c') is issued after "
                  "/programs/1/nodes/0 (all_reduce 'd')"});
}

// Both ranks send x to the other one, begun asynchronously, and receive into y. `waits`: which node
// waits for the message.
Draft exchanged(std::size_t waits, bool handles = true, bool issueOrder = false) {
  Draft d = test::twoRanks();
  for (int p = 0; p < 2; ++p) {
    const auto at = static_cast<std::size_t>(p);
    for (const char* name : {"y", "z"}) d.tensor(at, name) = Json::parse(R"({"shape": [4]})");
    const std::string own = std::to_string(p), other = std::to_string(1 - p);
    d.program(at)["nodes"] = Json::parse(R"([{"op": "send", "in": ["x"], "out": [], "comm": "to )" +
                                         other + R"(", "to": {"tp": )" + other + R"(}},
            {"op": "recv", "in": [], "out": ["y"], "comm": "to )" +
                                         own + R"(", "from": {"tp": )" + other + R"(}},
            {"op": "neg", "in": ["y"], "out": ["z"]}])");
    if (handles) {
      d.node(at, 0)["handle"] = "h";
      d.node(at, waits)["waits"] = Json::parse(R"(["h"])");
    }
    if (issueOrder) d.program(at)["order"] = "issue";
  }
  return d;
}

TEST(Deadlock, MessagesThatAreBegunHoldUpWhatWaitsForThem) {
  for (const bool issueOrder : {false, true}) {
    expectRuns(exchanged(2, true, issueOrder));
    expectDeadlock(exchanged(1, false, issueOrder), {0, 1},
                   {"/programs/1/nodes/1", "/programs/0/nodes/1"}, {"is issued after"});
    expectDeadlock(exchanged(1, true, issueOrder), {0, 1},
                   {"/programs/1/nodes/1", "/programs/0/nodes/1"}, {"is issued after"});
  }
  // What is received may be begun, too, and is there for who has waited.
  Draft d = exchanged(2);
  for (std::size_t p = 0; p < 2; ++p) {
    d.node(p, 1)["handle"] = "r";
    d.node(p, 2)["waits"] = Json::parse(R"(["r", "h"])");
  }
  expectRuns(d);
  for (std::size_t p = 0; p < 2; ++p) d.program(p)["order"] = "issue";
  expectRuns(d);
}

Json send(const std::string& comm, const std::string& in, int to) {
  return {
      {"op", "send"}, {"in", {in}}, {"out", Json::array()}, {"comm", comm}, {"to", {{"r", to}}}};
}
Json receive(const std::string& comm, const std::string& out, int from) {
  return {{"op", "recv"},
          {"in", Json::array()},
          {"out", {out}},
          {"comm", comm},
          {"from", {{"r", from}}}};
}
Json negative(const std::string& in, const std::string& out) {
  return {{"op", "neg"}, {"in", {in}}, {"out", {out}}};
}
Json of(Json node, const Json& microbatch) {
  node["mb"] = microbatch;
  return node;
}

// x -> y = -x, for each microbatch on each of these ranks; what else they do is of no use to
// anyone. Results are local tensors of their own.
Draft ranksOf(const std::vector<std::vector<Json>>& nodes, int microbatches = 2) {
  const std::string steps =
      R"("step": {"r": [)" + std::to_string(microbatches) + R"(], "mb": [1]})";
  const std::string size = std::to_string(static_cast<int>(nodes.size()) * microbatches);
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [)" + size + R"(], "kind": "input"}, "y": {"shape": [)" +
          size + R"(]}}, "nodes": [{"op": "neg", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["r", )" + std::to_string(nodes.size()) + R"(]], "microbatches": )" +
          std::to_string(microbatches) + R"(, "programs": [], "lineage": [
                            {"tensor": "x", "role": "input", "shards": [{"box": [[0, 1]], )" +
          steps + R"(, "parts": [{"local": "x"}]}]},
                            {"tensor": "y", "role": "output", "shards": [{"box": [[0, 1]], )" +
          steps + R"(, "parts": [{"local": "y"}]}]}]})");
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    Json program = {{"at", {{"r", r}}},
                    {"tensors", Json::parse(
                                    R"({"x": {"shape": [1], "kind": "input", "per_mb": true},
                 "y": {"shape": [1], "per_mb": true}})")},
                    {"nodes", Json::array()}};
    for (const Json& node : nodes[r]) {
      for (const Json& result : node["out"]) {
        program["tensors"][result.get<std::string>()] = {{"shape", {1}}};
        if (node.contains("mb")) program["tensors"][result.get<std::string>()]["per_mb"] = true;
      }
      program["nodes"].push_back(node);
    }
    program["nodes"].push_back(of(negative("x", "y"), "*"));
    d.plan["programs"].push_back(program);
  }
  return d;
}

Json onAll(const std::string& comm, const std::string& in = "w") {
  return {{"op", "all_reduce"}, {"in", {in}}, {"out", {comm}}, {"comm", comm}, {"group", {"r"}}};
}
Json among(const std::string& comm, const std::vector<int>& ranks) {
  Json node = onAll(comm);
  node.erase("group");
  for (const int r : ranks) node["group_at"].push_back({{"r", r}});
  return node;
}
// Begun under the communication's name; a node that waits for these.
Json begun(Json node) {
  node["handle"] = node["comm"];
  return node;
}
Json waiting(const std::vector<std::string>& handles, Json node) {
  node["waits"] = handles;
  return node;
}
Json waits(const std::string& handle) {
  return waiting({handle}, negative("w", "after " + handle));
}

// Without microbatches, as handles ask for; in issue order or not.
Draft ranksWithHandles(const std::vector<std::vector<Json>>& nodes, bool issueOrder) {
  Draft d = ranksOf(nodes, 1);
  for (Json& program : d.plan["programs"]) {
    if (issueOrder) program["order"] = "issue";
    program["tensors"]["w"] = Json::parse(R"({"shape": [1], "kind": "constant", "value": 1})");
    for (const char* name : {"x", "y"}) program["tensors"][name].erase("per_mb");
    program["nodes"].back().erase("mb");
  }
  for (Json& entry : d.plan["lineage"]) entry["shards"][0]["step"].erase("mb");
  return d;
}
void expectRunsWithHandles(const std::vector<std::vector<Json>>& nodes) {
  for (const bool issueOrder : {false, true}) expectRuns(ranksWithHandles(nodes, issueOrder));
}
void expectDeadlockWithHandles(const std::vector<std::vector<Json>>& nodes, const Ranks& ranks,
                               const Pointers& pointers) {
  for (const bool issueOrder : {false, true})
    expectDeadlock(ranksWithHandles(nodes, issueOrder), ranks, pointers, {"is issued after"});
}

// A message between the beginning of a collective and the wait for it; on the other rank before it.
TEST(Deadlock, ACollectiveHoldsUpWhatWaitsForIt) {
  const std::vector<Json> receives{receive("m", "v", 0), onAll("c")};
  expectRunsWithHandles({{begun(onAll("c")), send("m", "w", 1), waits("c")}, receives});
  expectRunsWithHandles({{begun(onAll("c")), send("m", "w", 1)}, receives});  // nobody waits
  const Pointers crossed{"/programs/1/nodes/1", "/programs/0/nodes/1"};
  expectDeadlockWithHandles({{onAll("c"), send("m", "w", 1)}, receives}, {0, 1}, crossed);
  expectDeadlockWithHandles({{begun(onAll("c")), waiting({"c"}, send("m", "w", 1))}, receives},
                            {0, 1}, crossed);
  expectDeadlockWithHandles({{begun(onAll("c")), waits("c"), send("m", "w", 1)}, receives}, {0, 1},
                            {"/programs/1/nodes/1", "/programs/0/nodes/2"});
  // What is begun comes after what is waited for at once: here the message of rank 1.
  expectDeadlockWithHandles({{onAll("c"), send("m", "w", 1)}, {receives[0], begun(onAll("c"))}},
                            {0, 1}, crossed);
  expectRunsWithHandles({{onAll("c"), send("m", "w", 1)}, {begun(onAll("c")), receives[0]}});
}

// One group's collectives take place as they are begun, on each of its ranks; those of others in
// any order.
TEST(Deadlock, CollectivesOfOneGroupAreInOrder) {
  const Json c = among("c", {0, 1}), d = among("d", {0, 1});
  expectRunsWithHandles({{begun(c), begun(d)}, {c, d}});
  const Pointers crossed{"/programs/1/nodes/1", "/programs/0/nodes/1"};
  expectDeadlockWithHandles({{begun(c), begun(d)}, {begun(d), begun(c)}}, {0, 1}, crossed);
  expectDeadlockWithHandles({{begun(c), d}, {begun(d), c}}, {0, 1}, crossed);
  // The same ranks, listed as axes or in another order, are the same group.
  const Json all = onAll("d");
  expectDeadlockWithHandles({{begun(c), begun(all)}, {begun(all), begun(c)}}, {0, 1}, crossed);
  const Json turned = among("d", {1, 0});
  expectDeadlockWithHandles({{begun(c), begun(turned)}, {begun(turned), begun(c)}}, {0, 1},
                            crossed);
  // Two groups: the second is of three ranks.
  const std::vector<Json> third{all};
  expectRunsWithHandles({{begun(c), begun(all)}, {begun(all), begun(c)}, third});
  expectRunsWithHandles({{begun(c), all}, {begun(all), c}, third});
  expectDeadlockWithHandles({{c, all}, {all, c}, third}, {0, 1}, crossed);
  expectDeadlockWithHandles({{begun(c), waiting({"c"}, all)}, {all, c}, third}, {0, 1}, crossed);
  // Of three collectives in two groups the waits close the circle.
  expectDeadlockWithHandles(
      {{begun(c), waiting({"c"}, begun(all))}, {begun(all), waits("d"), begun(c)}, third}, {0, 1},
      {"/programs/1/nodes/2", "/programs/0/nodes/1"});
}

// What is waited for before one beginning is waited for before all that follow.
TEST(Deadlock, WaitsAddUp) {
  const Json c = among("c", {0, 1}), d = among("d", {0, 2});
  const std::vector<Json> first{begun(c), begun(d), waiting({"c"}, begun(receive("n", "n", 2))),
                                waiting({"d"}, begun(receive("o", "o", 2))),
                                begun(send("m", "w", 1))},
      third{d, send("n", "w", 0), send("o", "w", 0)};
  expectRunsWithHandles({first, {c, receive("m", "m", 0)}, third});
  expectDeadlockWithHandles({first, {receive("m", "m", 0), c}, third}, {0, 1},
                            {"/programs/1/nodes/1", "/programs/0/nodes/4"});
}

TEST(Deadlock, BothSendFirst) {
  Draft d = ranksOf({{of(send("up", "x", 1), "*"), of(receive("down", "a", 1), "*")},
                     {of(send("down", "x", 0), "*"), of(receive("up", "a", 0), "*")}});
  const Defect defect = expectDeadlock(d, {0, 1}, {"/programs/1/nodes/1", "/programs/0/nodes/1"},
                                       {"(recv 'down', microbatch 0) is issued after"});
  EXPECT_EQ(defect.microbatch, 0);
  std::swap(d.node(1, 0), d.node(1, 1));
  expectRuns(d);
}

// Three ranks in a ring, each sending to the next before it receives.
TEST(Deadlock, ARing) {
  std::vector<std::vector<Json>> nodes;
  for (int r = 0; r < 3; ++r)
    nodes.push_back({of(send("from" + std::to_string(r), "x", (r + 1) % 3), "*"),
                     of(receive("from" + std::to_string((r + 2) % 3), "a", (r + 2) % 3), "*")});
  Draft d = ranksOf(nodes);
  expectDeadlock(d, {0, 1, 2},
                 {"/programs/1/nodes/1", "/programs/2/nodes/1", "/programs/0/nodes/1"});
  std::swap(d.node(2, 0), d.node(2, 1));  // one that receives first breaks the ring
  expectRuns(d);
}

// How microbatches interleave is known only in programs with issue order.
TEST(Deadlock, MicrobatchesInCrossedIssueOrder) {
  Draft d = ranksOf({{of(send("c", "x", 1), 0), of(send("c", "x", 1), 1)},
                     {of(receive("c", "a", 0), 1), of(receive("c", "a", 0), 0)}});
  expectRuns(d);
  const auto issue = [&](std::size_t p) {
    d.program(p)["order"] = "issue";
    d.node(p, 2) = of(negative("x", "y"), 0);
    d.program(p)["nodes"].push_back(of(negative("x", "y"), 1));
  };
  issue(0);
  expectRuns(d);  // the other rank may still interleave as it likes
  issue(1);
  expectDeadlock(d, {0, 1}, {"/programs/1/nodes/1", "/programs/0/nodes/1"});
  std::swap(d.node(1, 0), d.node(1, 1));
  expectRuns(d);
}

// ---- data alone ----

TEST(Deadlock, AcrossMicrobatchesOfOneRank) {
  expectDeadlock(ranksOf({{of(negative("b#1", "a"), 0), of(negative("a#0", "b"), 1)}}), {0},
                 {"/programs/0/nodes/0", "/programs/0/nodes/1"},
                 {"on rank 0 /programs/0/nodes/0 (neg, microbatch 0) reads what "
                  "/programs/0/nodes/1 (neg, microbatch 1) makes"});
  expectRuns(
      ranksOf({{of(negative("b#1", "a"), 0), of(negative("x", "b"), 1)}}));  // in this order, too
}

// Microbatch k reads what microbatch k - 1 made: no cycle, although each node reads the same
// tensor that it writes.
TEST(Deadlock, AChainOverMicrobatches) {
  std::vector<Json> nodes{of(negative("x", "a"), 0)};
  for (int m = 1; m < 5; ++m) nodes.push_back(of(negative("a#" + std::to_string(m - 1), "a"), m));
  expectRuns(ranksOf({nodes}, 5));
}

// ---- data and order ----

// Rank 0 sends what it receives by d, which it issues after e; what rank 1 sends by e is what it
// receives by c.
Draft mixed() {
  return ranksOf(
      {{of(send("c", "d#1", 1), 0), of(receive("e", "e", 1), 1), of(receive("d", "d", 1), 1)},
       {of(receive("c", "c", 0), 0), of(send("e", "c#0", 0), 1), of(send("d", "x", 0), 1)}});
}

TEST(Deadlock, DataAcrossMicrobatchesAndOrder) {
  Draft d = mixed();
  expectDeadlock(
      d, {0, 1}, {"/programs/0/nodes/0", "/programs/0/nodes/2", "/programs/1/nodes/1"},
      {"on rank 0 /programs/0/nodes/0 (send 'c', microbatch 0) reads what /programs/0/nodes/2 "
       "(recv 'd', microbatch 1) makes",
       "(recv 'd', microbatch 1) is issued after /programs/0/nodes/1 (recv 'e', microbatch 1)",
       "on rank 1 /programs/1/nodes/1 (send 'e', microbatch 1) reads what /programs/1/nodes/0 "
       "(recv 'c', microbatch 0) makes"});
  std::swap(d.node(0, 1), d.node(0, 2));
  std::swap(d.node(1, 1), d.node(1, 2));
  expectRuns(d);
}

// On the way there may be operators, also ones that run once.
TEST(Deadlock, ThroughOtherOperators) {
  Draft d = ranksOf(
      {{of(send("c", "g", 1), 0), of(receive("e", "e", 1), 1), of(receive("d", "d", 1), 1),
        negative("d#1", "f")},
       {of(receive("c", "c", 0), 0), of(send("e", "c#0", 0), 1), of(send("d", "x", 0), 1)}});
  // What runs once stands before its readers; a communication that reads it and one for another
  // microbatch are not in each other's list.
  Json& nodes = d.program(0)["nodes"];
  nodes = {nodes[1], nodes[2], nodes[3], of(negative("f", "g"), 0), nodes[0], nodes[4]};
  d.tensor(0, "g") = Json::parse(R"({"shape": [1], "per_mb": true})");
  expectDeadlock(d, {0, 1},
                 {"/programs/1/nodes/1", "/programs/0/nodes/4", "/programs/0/nodes/3",
                  "/programs/0/nodes/2", "/programs/0/nodes/1"},
                 {"/programs/0/nodes/2 (neg) reads what"});
  std::swap(d.node(0, 0), d.node(0, 1));
  std::swap(d.node(1, 1), d.node(1, 2));
  expectRuns(d);
}

TEST(Deadlock, OverThreeRanks) {
  Draft d = ranksOf(
      {{of(send("c", "d#1", 1), 0), of(receive("e", "e", 2), 1), of(receive("d", "d", 1), 1)},
       {of(receive("c", "c", 0), 0), of(send("f", "c", 2), 0), of(send("d", "x", 0), 1)},
       {of(receive("f", "f", 1), 0), of(send("e", "f#0", 0), 1)}});
  expectDeadlock(
      d, {0, 1, 2},
      {"/programs/0/nodes/0", "/programs/0/nodes/2", "/programs/2/nodes/1", "/programs/1/nodes/1"});
  std::swap(d.node(0, 1), d.node(0, 2));
  expectRuns(d);
}

// Rank 0 issues e and d for each microbatch, and needs d of microbatch 1 for c of microbatch 0.
// With five microbatches those that nothing names are one class.
TEST(Deadlock, NodesThatRunForEachMicrobatch) {
  for (const int microbatches : {2, 5}) {
    std::vector<Json> second{of(receive("c", "c", 0), 0)};
    for (int m = 0; m < microbatches; ++m)
      second.push_back(of(send("e", m == 1 ? "c#0" : "x", 0), m));
    second.push_back(of(send("d", "x", 0), "*"));
    Draft d = ranksOf(
        {{of(send("c", "d#1", 1), 0), of(receive("e", "e", 1), "*"), of(receive("d", "d", 1), "*")},
         second},
        microbatches);
    expectDeadlock(d, {0, 1},
                   {"/programs/0/nodes/0", "/programs/0/nodes/2", "/programs/1/nodes/2"});
    d.node(1, 2)["in"] = {"x"};
    expectRuns(d);  // the nodes still wait in a cycle
  }
}

// The plan does not tell the coordinates of f apart; the cycle is on each of them.
TEST(Deadlock, OnSymmetricRanks) {
  Draft d = mixed();
  d.plan["mesh"].push_back({"f", 64});
  expectDeadlock(d, {0, 64}, {"/programs/0/nodes/0", "/programs/0/nodes/2", "/programs/1/nodes/1"});
  std::swap(d.node(0, 1), d.node(0, 2));
  std::swap(d.node(1, 1), d.node(1, 2));
  EXPECT_TRUE(defectsOf(*test::read(d)).empty());
}

// A tag makes different microbatches meet.
TEST(Deadlock, OfMicrobatchesThatMeetByTheirTag) {
  Draft d = ranksOf({{of(send("c", "x", 1), 0), of(receive("d", "d", 1), 0)},
                     {of(receive("c", "c", 0), 1), of(send("d", "x", 0), 0)}});
  for (const std::size_t p : {0, 1}) d.node(p, 0)["tag"] = 7;
  expectRuns(d);
  d.node(1, 1)["in"] = {"c#1"};
  expectRuns(d);
  std::swap(d.node(0, 0), d.node(0, 1));  // rank 0 receives first what rank 1 has from it
  expectDeadlock(d, {0, 1}, {"/programs/1/nodes/1", "/programs/0/nodes/1"});
}

// ---- against the executor ----

// Messages and sums between two or three ranks, beside an axis that nothing names, for one
// microbatch, each, or none, of what other messages have brought and operators have made of it, in
// random order.
class RandomPlan {
 public:
  explicit RandomPlan(std::uint32_t seed) : random_(seed) {}

  Draft made() {
    const int ranks = 2 + below(2);
    microbatches_ = 1 + below(3);
    const bool each = below(2) == 0, calm = below(2) == 0;
    std::vector<std::vector<Json>> nodes(static_cast<std::size_t>(ranks));
    std::vector<std::vector<std::pair<std::string, bool>>> values(
        static_cast<std::size_t>(ranks));  // name, per microbatch
    const int events = 2 + below(6);
    for (int e = 0; e < events; ++e) {
      const int from = below(ranks), to = (from + 1 + below(ranks - 1)) % ranks;
      const std::string comm = "c" + std::to_string(below(8) == 0 ? 0 : e),
                        result = "v" + std::to_string(e);
      const int kind = below(6);
      const Json microbatch = kind == 0          ? Json()
                              : each && kind < 4 ? Json("*")
                                                 : Json(below(microbatches_));
      // "*" on one side, one by one on the other
      const bool listed = microbatch == "*" && below(4) == 0;
      const auto put = [&](int rank, const Json& node, bool apart) {
        auto& list = nodes[static_cast<std::size_t>(rank)];
        if (microbatch.is_null()) list.push_back(node);
        else if (!apart) list.push_back(of(node, microbatch));
        else
          for (int m = 0; m < microbatches_; ++m) list.push_back(of(node, m));
      };
      if (below(4) == 0) {
        put(from, negative(operand(values[static_cast<std::size_t>(from)], microbatch), result),
            listed);
        values[static_cast<std::size_t>(from)].emplace_back(result, !microbatch.is_null());
        continue;
      }
      if (below(5) == 0) {
        for (int r = 0; r < ranks; ++r) {
          Json sum{{"op", "all_reduce"},
                   {"in", {operand(values[static_cast<std::size_t>(r)], microbatch)}},
                   {"out", {result}},
                   {"comm", comm},
                   {"group", {"r"}}};
          put(r, sum, listed && r == from);
        }
        for (auto& list : values) list.emplace_back(result, !microbatch.is_null());
        continue;
      }
      put(from, send(comm, operand(values[static_cast<std::size_t>(from)], microbatch), to),
          listed);
      put(to, receive(comm, result, from), false);
      values[static_cast<std::size_t>(to)].emplace_back(result, !microbatch.is_null());
    }
    for (auto& list : nodes) {
      if (!calm) std::shuffle(list.begin(), list.end(), random_);
      else
        for (int k = below(3); k > 0 && list.size() > 1; --k)
          std::swap(list[static_cast<std::size_t>(below(static_cast<int>(list.size())))],
                    list[static_cast<std::size_t>(below(static_cast<int>(list.size())))]);
    }
    Draft d = ranksOf(nodes, microbatches_);
    if (below(2) == 0) d.plan["mesh"].insert(d.plan["mesh"].begin() + below(2), Json{"f", 3});
    for (Json& program : d.plan["programs"]) {
      program["tensors"]["w"] = Json::parse(R"({"shape": [1], "kind": "constant", "value": 1})");
      const bool stars =
          std::any_of(program["nodes"].begin(), program["nodes"].end(), [](const Json& n) {
            return n.value("mb", Json()) == "*" && !(n["op"] == "neg" && n["out"][0] == "y");
          });
      if (stars || below(3) > 0) continue;
      program["order"] = "issue";
      program["nodes"].erase(program["nodes"].size() - 1);
      for (int m = 0; m < microbatches_; ++m)
        program["nodes"].insert(
            program["nodes"].begin() + below(static_cast<int>(program["nodes"].size()) + 1),
            of(negative("x", "y"), m));
    }
    return d;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }

  std::string operand(const std::vector<std::pair<std::string, bool>>& values,
                      const Json& microbatch) {
    if (values.empty() || below(4) == 0) return microbatch.is_null() ? "w" : "x";
    const auto& [name, perMicrobatch] =
        values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
    return perMicrobatch && (microbatch.is_null() || below(2) == 0)
               ? name + "#" + std::to_string(below(microbatches_))
               : name;
  }

  std::mt19937 random_;
  int microbatches_ = 1;
};

TEST(Deadlock, AsTheExecutorHasIt) {
  int runs = 0, waits = 0, mixed = 0;
  for (std::uint32_t seed = 0; static_cast<int>(seed) < test::randomCases(1500); ++seed) {
    const Draft d = RandomPlan(seed).made();
    const auto problem = test::read(d);
    const auto defects = defectsOf(*problem);
    ASSERT_EQ(defects.empty(), executes(*problem))
        << seed << ": " << (defects.empty() ? "runs" : defects.front().message) << "\n"
        << d.plan.dump();
    if (defects.empty()) ++runs;
    else if (defects.front().kind == DefectKind::kDeadlock)
      ++waits, mixed += defects.front().message.find(" reads ") != std::string::npos &&
                        defects.front().message.find(" issued ") != std::string::npos;
  }
  EXPECT_GT(runs, test::randomCases(200));
  EXPECT_GT(waits, test::randomCases(100));
  EXPECT_GT(mixed, test::randomCases(20));
}

}  // namespace
}  // namespace shardproof
