// SPDX-License-Identifier: Apache-2.0
// Memory that is used while communication is under way: each rule in a plan that is otherwise
// right, and what is no such plan at all.
#include "plan/async.h"

#include <gtest/gtest.h>

#include "plan/defects.h"
#include "reader/reader.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

using test::defectsOf;
using test::Draft;
using test::Json;
using test::pointersOf;

// On both ranks: y is the sum of x, begun asynchronously; z is computed from `operand`.
Draft summed(const std::string& operand = "y", const std::string& buffers = "{}") {
  Draft d = test::twoRanks();
  for (std::size_t p = 0; p < 2; ++p) {
    for (const char* name : {"y", "z"}) d.tensor(p, name) = Json::parse(R"({"shape": [4]})");
    d.program(p)["nodes"] = Json::parse(
        R"([{"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
            "handle": "h"},
            {"op": "neg", "in": [")" +
        operand + R"("], "out": ["z"]}])");
    const Json places = Json::parse(buffers);
    for (const auto& [name, place] : places.items()) d.tensor(p, name)["buffer"] = place;
  }
  return d;
}

void waits(Draft& d, std::size_t node) {
  for (std::size_t p = 0; p < 2; ++p) d.node(p, node)["waits"] = Json::parse(R"(["h"])");
}

void expectAsync(const Draft& d, const test::Pointers& pointers, const std::string& message) {
  const auto defects = defectsOf(d);
  ASSERT_FALSE(defects.empty()) << "expected: " << message;
  EXPECT_EQ(defects[0].kind, DefectKind::kAsync) << defects[0].message;
  EXPECT_EQ(defects[0].ranks, test::Ranks{0});
  EXPECT_EQ(pointersOf(defects[0]), pointers) << defects[0].message;
  EXPECT_NE(defects[0].message.find(message), std::string::npos) << defects[0].message;
}

TEST(Async, AResultIsReadAfterItsWait) {
  Draft d = summed();
  expectAsync(d, {"/programs/0/nodes/1", "/programs/0/nodes/0"},
              "reads 'y', which the asynchronous all_reduce at /programs/0/nodes/0 (handle 'h') "
              "still writes");
  waits(d, 1);
  EXPECT_TRUE(defectsOf(d).empty());
  EXPECT_TRUE(defectsOf(summed("x")).empty());  // the operand may be read
}

TEST(Async, MemoryThatIsSentIsNotWritten) {
  const std::string buffers = R"({"x": ["b", 0, 4], "z": ["b", 3, 7]})";
  expectAsync(summed("x", buffers), {"/programs/0/nodes/1", "/programs/0/nodes/0"},
              "writes 'z' into buffer 'b', which the asynchronous all_reduce at "
              "/programs/0/nodes/0 (handle 'h') still sends");
  Draft after = summed("x", buffers);
  waits(after, 1);
  // Then it is written, and is an output here.
  expectAsync(after, {"/programs/0/nodes/1"}, "no more there when the program ends");
  EXPECT_TRUE(defectsOf(summed("x", R"({"x": ["b", 0, 4], "z": ["b", 4, 8]})")).empty());
  EXPECT_TRUE(defectsOf(summed("x", R"({"x": "b", "z": "c"})")).empty());
  EXPECT_FALSE(defectsOf(summed("x", R"({"x": "b", "z": ["b", 9, 10]})")).empty());
}

TEST(Async, MemoryThatIsReceivedIsNeitherReadNorWritten) {
  expectAsync(summed("x", R"({"y": "b", "z": "b"})"),
              {"/programs/0/nodes/1", "/programs/0/nodes/0"}, "still writes");
  expectAsync(summed("x", R"({"x": "b", "y": "b"})"),
              {"/programs/0/nodes/1", "/programs/0/nodes/0"}, "reads 'x'");
}

TEST(Async, WhatWasWrittenAgainIsNotRead) {
  Draft d = summed("x", R"({"x": "b", "z": "b"})");
  waits(d, 1);
  for (std::size_t p = 0; p < 2; ++p) {
    d.tensor(p, "late") = Json::parse(R"({"shape": [4]})");
    d.program(p)["nodes"].push_back(Json::parse(R"({"op": "neg", "in": ["x"], "out": ["late"]})"));
  }
  expectAsync(d, {"/programs/0/nodes/2", "/programs/0/nodes/1"},
              "reads 'x', whose buffer 'b' was written again by /programs/0/nodes/1");
}

// The model is y = 2 x, and y an output.
void outputOfY(Draft& d) {
  d.model = Json::parse(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}},
          "nodes": [{"op": "mul", "in": ["x"], "out": ["y"], "attrs": {"scalar": 2}}],
           "outputs": ["y"]})");
  d.plan["lineage"] = Json::parse(
      R"([{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "x"}]}]},
          {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4]],
           "parts": [{"local": "y"}]}]}])");
}

TEST(Async, AnOutputIsWaitedForAtTheEnd) {
  Draft d = summed("x");
  outputOfY(d);
  expectAsync(d, {"/programs/0/nodes/0"}, "nothing waits for the handle 'h'");
  for (std::size_t p = 0; p < 2; ++p) d.program(p)["waits"] = Json::parse(R"(["h"])");
  EXPECT_TRUE(defectsOf(d).empty());
}

TEST(Async, AnOutputIsStillThereAtTheEnd) {
  Draft d = summed("y", R"({"y": "b", "z": "b"})");
  waits(d, 1);
  outputOfY(d);
  expectAsync(d, {"/programs/0/nodes/1"}, "no more there when the program ends");
  for (std::size_t p = 0; p < 2; ++p) d.tensor(p, "z")["buffer"] = "c";
  EXPECT_TRUE(defectsOf(d).empty());
}

TEST(Async, InstancesOfMicrobatchesAreApart) {
  const auto made = [](const char* read) {
    return test::draft(
        R"({"tensors": {"x": {"shape": [2], "kind": "input"}}, "nodes": [], "outputs": ["x"]})",
        std::string(R"({"mesh": [["tp", 1]], "microbatches": 2, "programs": [{"order": "issue",
          "tensors": {"x": {"shape": [2], "kind": "input"}, "y": {"shape": [2], "per_mb": true},
           "z": {"shape": [2], "per_mb": true}},
          "nodes": [{"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
           "mb": 0},
                    {"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
                     "mb": 1, "handle": "h"},
                    {"op": "neg", "in": [")") +
            read + R"("], "out": ["z"], "mb": 1}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]],
           "parts": [{"local": "x"}]}]},
                      {"tensor": "x", "role": "output", "shards": [{"box": [[0, 2]],
                       "parts": [{"local": "x"}]}]}]})");
  };
  EXPECT_TRUE(defectsOf(made("y#0")).empty());
  expectAsync(made("y"), {"/programs/0/nodes/2", "/programs/0/nodes/1"}, "reads 'y#1'");
}

void expectError(const Draft& d, const std::string& message) {
  try {
    test::read(d);
    FAIL() << "expected: " << message;
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(Async, WhatIsNotUnderstoodIsAnError) {
  Draft unknown = summed();
  unknown.node(0, 1)["waits"] = Json::parse(R"(["other"])");
  expectError(unknown, "found \"other\", expected the handle of an earlier node");
  Draft own = summed();
  own.node(0, 0)["waits"] = Json::parse(R"(["h"])");
  expectError(own, "expected the handle of an earlier node");
  Draft end = summed();
  end.program(1)["waits"] = Json::parse(R"(["other"])");
  expectError(end, "expected the handle of a node of this program");
  Draft twice = summed();
  twice.program(0)["nodes"].push_back(twice.node(0, 0));
  expectError(twice, "which another node has");
  Draft compute = summed();
  compute.node(0, 1)["handle"] = "g";
  expectError(compute, "handle");
  Draft empty = summed("x", R"({"x": ["b", 4, 4]})");
  expectError(empty, "a stretch that is not empty");
  Draft text = summed();
  text.node(0, 1)["waits"] = "h";
  expectError(text, "`waits` is a list of handles");
  Draft each = summed();
  each.plan["microbatches"] = 2;
  each.node(0, 1)["mb"] = "*";
  expectError(each, "expected \"order\": \"issue\"");
  Draft model = summed();
  model.model["tensors"]["x"]["buffer"] = "b";
  expectError(model, "buffer");
}

TEST(Async, WhatIsWrittenIsReadAgain) {
  Draft d = summed("x", R"({"x": ["b", 0, 4], "z": "c"})");
  waits(d, 1);
  d.program(1)["waits"] = Json::parse(R"(["h"])");
  const auto problem = test::read(d);
  const test::TemporaryDirectory directory;
  const auto again = readProblem(directory.write("m.json", modelText(*problem)),
                                 directory.write("p.json", planText(*problem, "m.json", true)), {},
                                 ir::Programs::kAsStated);
  for (const ProgramId p : firstIds<ProgramId>(2)) {
    EXPECT_FALSE(problem->plan.programs[p].asynchrony.empty());
    EXPECT_EQ(planText(*again, "m.json", true), planText(*problem, "m.json", true));
    EXPECT_EQ(again->plan.programs[p].asynchrony.waitsAtEnd.size(),
              problem->plan.programs[p].asynchrony.waitsAtEnd.size());
    EXPECT_EQ(again->plan.programs[p].asynchrony.buffers.size(), 2U);
  }
}

TEST(Async, GivenTensorsLieApart) {
  Draft d = test::twoRanks();
  d.tensor(0, "c") =
      Json::parse(R"({"shape": [4], "kind": "constant", "value": 1, "buffer": "b"})");
  d.tensor(0, "x")["buffer"] = "b";
  expectError(d, "which is given, too");
}

}  // namespace
}  // namespace shardproof
