// SPDX-License-Identifier: Apache-2.0
#include "shardproof/infer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attempts/attempts.h"
#include "executor/run.h"
#include "infer/lift.h"
#include "infer/model_table.h"
#include "infer/relations.h"
#include "infer/subsets.h"
#include "ir/clone.h"
#include "shardproof/read.h"
#include "shardproof/verify.h"
#include "support/problems.h"
#include "verify/attempt.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

using test::draft;
using test::Draft;

Verdict verdictOf(const Problem& problem) {
  VerifyOptions options;
  options.jobs = 1;
  return verify(problem, options).verdict;
}

// y = relu(x w1) w2 over two tensor-parallel ranks, rows over two data-parallel ones; no lineage
// inside.
Draft twoLayers() {
  return draft(
      R"({"tensors": {"x": {"shape": [8, 6], "kind": "input"},
          "w1": {"shape": [10, 6], "kind": "parameter"},
          "w2": {"shape": [4, 10], "kind": "parameter"},
                      "h": {"shape": [8, 10]}, "a": {"shape": [8, 10]}, "y": {"shape": [8, 4]}},
          "nodes": [{"op": "linear", "in": ["x", "w1"], "out": ["h"]},
           {"op": "relu", "in": ["h"], "out": ["a"]},
                    {"op": "linear", "in": ["a", "w2"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["dp", 2], ["tp", 2]], "programs": [{
            "tensors": {"x": {"shape": [4, 6], "kind": "input"},
             "w1": {"shape": [5, 6], "kind": "parameter"},
             "w2": {"shape": [4, 5], "kind": "parameter"},
                        "lh": {"shape": [4, 5]}, "la": {"shape": [4, 5]}, "part": {"shape": [4, 4]},
                         "ly": {"shape": [4, 4]}},
            "nodes": [{"op": "linear", "in": ["x", "w1"], "out": ["lh"]},
             {"op": "relu", "in": ["lh"], "out": ["la"]},
                      {"op": "linear", "in": ["la", "w2"], "out": ["part"]},
                      {"op": "all_reduce", "in": ["part"], "out": ["ly"], "comm": "c",
                       "group": ["tp"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 6]],
           "step": {"dp": [4, 0]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "w1", "role": "input", "shards": [{"box": [[0, 5], [0, 6]],
                       "step": {"tp": [5, 0]}, "parts": [{"local": "w1"}]}]},
                      {"tensor": "w2", "role": "input", "shards": [{"box": [[0, 4], [0, 5]],
                       "step": {"tp": [0, 5]}, "parts": [{"local": "w2"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4], [0, 4]],
                       "step": {"dp": [4, 0]}, "parts": [{"local": "ly"}]}]}]})");
}

const LineageEntry* entryOf(const Problem& problem, const std::string& local) {
  for (const LineageEntry& entry : problem.plan.lineage)
    if (entry.inferred && problem.names.text(entry.shards[0].parts[0].local) == local)
      return &entry;
  return nullptr;
}
std::string tensorOf(const Problem& problem, const LineageEntry& entry) {
  return problem.names.text(problem.model.graph.tensors[entry.tensor].name);
}
using Steps = std::vector<std::pair<std::int32_t, Shape>>;

// A plan of tests/plans/small without its cut points.
std::unique_ptr<Problem> withoutCutPoints(const std::string& name) {
  std::ifstream file(std::string(SHARDPROOF_SOURCE_DIR) + "/tests/plans/small/" + name + ".json");
  auto small = nlohmann::ordered_json::parse(file);
  auto& lineage = small["plan"]["lineage"];
  for (std::size_t e = lineage.size(); e-- > 0;)
    if (lineage[e]["role"] == "cut_point") lineage.erase(e);
  return readProblemText(small["model"].dump(), small["plan"].dump());
}

// The inferred parts of a local tensor.
std::vector<const PlacedPart*> partsOf(const Problem& problem, const std::string& local) {
  std::vector<const PlacedPart*> parts;
  for (const PlacedPart& p : problem.plan.placed)
    if (problem.plan.lineage[p.entry].inferred && problem.names.text(p.local) == local)
      parts.push_back(&p);
  return parts;
}

TEST(Infer, FindsBoxesThatLieInPieces) {
  const auto problem = withoutCutPoints("parts_zigzag");
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr) << inferred.reason;
  const auto parts = partsOf(*inferred.problem, "h");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0]->where.box, (decltype(LocalPart::box){{0, 2}, {0, 3}}));
  EXPECT_EQ(parts[1]->where.box, (decltype(LocalPart::box){{2, 4}, {0, 3}}));
  const Shard& last = inferred.problem->plan.lineage[parts[1]->entry].shards[0];
  EXPECT_EQ(last.box, (decltype(Shard::box){{6, 8}, {0, 3}}));
  EXPECT_EQ(last.step, (Steps{{0, {-2, 0}}}));
  EXPECT_EQ(verdictOf(*inferred.problem), Verdict::kEquivalent);
  // What was found is written with its parts, and left out again.
  const auto again = readProblemText(modelText(*problem), planText(*inferred.problem, "m", true));
  EXPECT_EQ(again->plan.placed.size(), inferred.problem->plan.placed.size());
  EXPECT_EQ(verdictOf(*again), Verdict::kEquivalent);
  EXPECT_EQ(planText(*withoutInferred(*inferred.problem), "m"), planText(*problem, "m"));
  EXPECT_EQ(planText(*inferred.problem, "m"), planText(*problem, "m"));
}

TEST(Infer, FindsPermutedAndScaledTensors) {
  const Inferred permuted = inferLineage(*withoutCutPoints("parts_sequence_before_batch"));
  ASSERT_NE(permuted.problem, nullptr) << permuted.reason;
  const auto h = partsOf(*permuted.problem, "h");
  ASSERT_EQ(h.size(), 1u);
  EXPECT_EQ(h[0]->where.permute, (std::vector<std::int64_t>{1, 0, 2}));
  EXPECT_EQ(verdictOf(*permuted.problem), Verdict::kEquivalent);
  const Inferred scaled = inferLineage(*withoutCutPoints("parts_multiples"));
  ASSERT_NE(scaled.problem, nullptr) << scaled.reason;
  const auto sum = partsOf(*scaled.problem, "p");
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_EQ(sum[0]->where.scale, Rational(1, 2));
  EXPECT_EQ(scaled.problem->plan.lineage[sum[0]->entry].shards[0].sum,
            (std::vector<std::int32_t>{0}));
  EXPECT_EQ(verdictOf(*scaled.problem), Verdict::kEquivalent);
}

// Rows of batch and sequence as one dimension, in both orders, in a plan that is executed as it is
// and in one that is made smaller.
TEST(Infer, FindsRegroupedRows) {
  for (const bool swapped : {false, true}) {
    for (const int times : {1, 64}) {
      const int b = 4 * times, s = 6 * times, h = 5 * times, own = b / 2;
      const Shape kept{own, s, h}, turned = swapped ? Shape{s, own, h} : kept, rows{own * s, h};
      Draft d = draft(
          R"({"tensors": {"x": {"kind": "input"}, "w": {"kind": "parameter"}, "a": {}, "y": {}},
              "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["a"]},
               {"op": "relu", "in": ["a"], "out": ["y"]}], "outputs": ["y"]})",
          R"({"mesh": [["dp", 2]], "programs": [{
                "tensors": {"x": {"kind": "input"}, "w": {"kind": "parameter"}, "t": {}, "r": {},
                 "a": {}, "z": {}, "v": {}, "y": {}},
                "nodes": [{"op": "identity", "in": ["x"], "out": ["t"]},
                 {"op": "view", "in": ["t"], "out": ["r"]},
                          {"op": "linear", "in": ["r", "w"], "out": ["a"]},
                           {"op": "relu", "in": ["a"], "out": ["z"]},
                          {"op": "view", "in": ["z"], "out": ["v"]},
                           {"op": "identity", "in": ["v"], "out": ["y"]}]}],
              "lineage": [{"tensor": "x", "role": "input",
               "shards": [{"step": {}, "parts": [{"local": "x"}]}]},
                          {"tensor": "w", "role": "input", "shards": [{"parts": [{"local": "w"}]}]},
                          {"tensor": "y", "role": "output",
                           "shards": [{"step": {}, "parts": [{"local": "y"}]}]}]})");
      for (const char* tensor : {"x", "a", "y"}) d.model["tensors"][tensor]["shape"] = {b, s, h};
      d.model["tensors"]["w"]["shape"] = d.tensor(0, "w")["shape"] = {h, h};
      for (const char* tensor : {"x", "y"}) d.tensor(0, tensor)["shape"] = kept;
      for (const char* tensor : {"t", "v"}) d.tensor(0, tensor)["shape"] = turned;
      for (const char* tensor : {"r", "a", "z"}) d.tensor(0, tensor)["shape"] = rows;
      d.node(0, 1)["attrs"]["size"] = rows;
      d.node(0, 4)["attrs"]["size"] = turned;
      for (const int n : {0, 5}) {
        if (!swapped) continue;
        d.node(0, n)["op"] = "permute";
        d.node(0, n)["attrs"]["dims"] = {1, 0, 2};
      }
      d.entry(1)["shards"][0]["box"] = {{0, h}, {0, h}};
      for (const int e : {0, 2}) {
        d.entry(e)["shards"][0]["box"] = {{0, own}, {0, s}, {0, h}};
        d.entry(e)["shards"][0]["step"]["dp"] = {own, 0, 0};
      }
      const Inferred found = inferLineage(*test::read(d));
      ASSERT_NE(found.problem, nullptr) << found.reason;
      for (const char* local : {"a", "z"}) {
        const auto parts = partsOf(*found.problem, local);
        ASSERT_EQ(parts.size(), 1u) << local << swapped << times;
        EXPECT_EQ(parts[0]->where.view, turned);
        EXPECT_EQ(parts[0]->where.permute, swapped ? Shape({1, 0, 2}) : Shape());
        const Shard& shard = found.problem->plan.lineage[parts[0]->entry].shards[0];
        EXPECT_EQ(shard.step, (Steps{{0, {own, 0, 0}}}));
      }
      EXPECT_EQ(verdictOf(*found.problem), Verdict::kEquivalent);
    }
  }
}

// A model whose rows are one dimension, and a plan that keeps them apart.
TEST(Infer, FindsDimensionsThatTheModelHasAsOne) {
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [4, 6, 5], "kind": "input"}, "r": {"shape": [24, 5]},
          "a": {"shape": [24, 5]}, "y": {"shape": [24, 5]}},
          "nodes": [{"op": "view", "in": ["x"], "out": ["r"], "attrs": {"size": [24, 5]}},
           {"op": "exp", "in": ["r"], "out": ["a"]}, {"op": "neg", "in": ["a"], "out": ["y"]}],
           "outputs": ["y"]})",
      R"({"mesh": [["dp", 2]], "programs": [{
            "tensors": {"x": {"shape": [2, 6, 5], "kind": "input"}, "a": {"shape": [2, 6, 5]},
             "z": {"shape": [2, 6, 5]}, "y": {"shape": [12, 5]}},
            "nodes": [{"op": "exp", "in": ["x"], "out": ["a"]},
             {"op": "neg", "in": ["a"], "out": ["z"]}, {"op": "view", "in": ["z"], "out": ["y"],
             "attrs": {"size": [12, 5]}}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 6], [0, 5]],
           "step": {"dp": [2, 0, 0]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 12], [0, 5]],
                       "step": {"dp": [12, 0]}, "parts": [{"local": "y"}]}]}]})");
  const Inferred found = inferLineage(*test::read(d));
  ASSERT_NE(found.problem, nullptr) << found.reason;
  const auto parts = partsOf(*found.problem, "a");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0]->where.view, Shape({12, 5}));
  EXPECT_EQ(verdictOf(*found.problem), Verdict::kEquivalent);
}

// Cut points of a right plan that do not hold: what was found instead is said, and takes their
// place in what is written.
TEST(Infer, WrongCutPointsAreReplaced) {
  std::ifstream file(std::string(SHARDPROOF_SOURCE_DIR) +
                     "/tests/plans/small/parts_zigzag_checkpoint_chunks_exchanged.json");
  const auto small = nlohmann::ordered_json::parse(file);
  Draft d = twoLayers();
  d.plan["lineage"].push_back(test::Json::parse(
      R"({"tensor": "h", "role": "cut_point", "shards": [{"box": [[4, 8], [0, 5]],
          "step": {"dp": [-4, 0], "tp": [0, 5]}, "parts": [{"local": "lh"}]}]})"));
  const std::string says[] = {
      "h (/lineage/2): local `h[0:2, 0:3]'` holds h[0:2, 0:3], [2, 0] further",
      "h (/lineage/4): local `lh` holds h[0:4, 0:5], [4, 0] further for "
      "each dp, [0, 5] further for each tp"};
  for (const bool whole : {false, true}) {
    const auto read = [&] {
      return whole ? test::read(d) : readProblemText(small["model"].dump(), small["plan"].dump());
    };
    for (const Infer infer : {Infer::kAuto, Infer::kAlways}) {
      auto problem = read();
      VerifyOptions options;
      options.jobs = 1;
      const Report report = verifyInferring(problem, options, infer);
      EXPECT_EQ(report.verdict, Verdict::kEquivalent);
      ASSERT_TRUE(report.inference);
      ASSERT_EQ(report.inference->replaced.size(), 1u);
      const std::string& text = report.inference->replaced[0];
      EXPECT_EQ(text.find(says[whole]), 0u) << text;
      // Parts are not looked for before they are needed.
      EXPECT_NE(text.find(whole ? "(proved)" : "(not proved)"), std::string::npos) << text;
    }
    auto problem = read();
    VerifyOptions options;
    options.jobs = 1;
    EXPECT_FALSE(verifyInferring(problem, options, Infer::kNever).inference);
    const Inferred inferred = inferLineage(*read());
    ASSERT_EQ(inferred.replaced.size(), 1u);
    const auto written = readProblemText(
        modelText(*problem), planText(*inferred.problem, "m", true, {inferred.replaced[0].entry}));
    const Report again = verify(*written, options);
    EXPECT_EQ(again.verdict, Verdict::kEquivalent);
    for (const StageReport& stage : again.stages)
      EXPECT_EQ(stage.verdict, StageVerdict::kProved) << stage.tensor;
  }
}

// Whatever is said of parts, right plans stay equivalent and wrong ones are not.
TEST(Infer, AWrongGuessOfPartsCostsTimeOnly) {
  for (const auto& [name, verdict] :
       {std::pair("parts_zigzag", Verdict::kEquivalent),
        std::pair("parts_zigzag_other_function", Verdict::kNotEquivalent)}) {
    const auto problem = withoutCutPoints(name);
    const auto find = [&](const Graph& graph) {
      for (const TensorId t : firstIds<TensorId>(graph.tensors.size()))
        if (problem->names.text(graph.tensors[t].name) == "h") return t;
      return TensorId();
    };
    const TensorId tensor = find(problem->model.graph);
    const Graph& graph = problem->plan.programs[0].graph;
    const NameId local = graph.tensors[find(graph)].name;
    std::vector<LocalPart> guesses(3);
    guesses[0].box = {{2, 4}, {0, 3}};
    guesses[1].box = {{1, 3}, {0, 3}};
    guesses[2].box = {{0, 2}, {0, 3}};
    guesses[2].scale = Rational(-1, 3);
    for (const LocalPart& guess : guesses) {
      Shard shard;
      shard.box = {{0, 2}, {0, 3}};
      shard.parts.push_back({local, {}, Microbatch::none()});
      const auto more = cloneProblem(*problem);
      addInferred(*more, {{tensor, Role::kCutPoint, {shard}}}, {{EntryId(0), 0, 0, local, guess}});
      EXPECT_EQ(verdictOf(*more), verdict) << name;
    }
  }
}

TEST(Infer, FindsBoxesAndPartialSums) {
  const auto problem = test::read(twoLayers());
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr) << inferred.reason;
  EXPECT_TRUE(inferred.doubtful.empty());
  const LineageEntry* h = entryOf(*inferred.problem, "lh");
  ASSERT_NE(h, nullptr);
  EXPECT_EQ(tensorOf(*inferred.problem, *h), "h");
  EXPECT_EQ(h->shards[0].box, (decltype(Shard::box){{0, 4}, {0, 5}}));
  EXPECT_EQ(h->shards[0].step, (Steps{{0, {4, 0}}, {1, {0, 5}}}));
  const LineageEntry* part = entryOf(*inferred.problem, "part");
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(tensorOf(*inferred.problem, *part), "y");
  EXPECT_EQ(part->shards[0].sum, std::vector<std::int32_t>{1});
  EXPECT_EQ(part->shards[0].step, (Steps{{0, {4, 0}}}));
  // What the lineage names already is left alone.
  EXPECT_EQ(entryOf(*inferred.problem, "ly"), nullptr);
  EXPECT_EQ(entryOf(*inferred.problem, "x"), nullptr);
  EXPECT_EQ(verdictOf(*inferred.problem), Verdict::kEquivalent);
}

// 64 ranks are executed as two: what is found moves by shares of the full sizes.
// Eight tokens of three values are alike at any draw, so that further ones are taken: sums are
// compared with the draw that they are of.
TEST(Infer, FindsPartialSumsWhereTokensAreAlike) {
  Draft d = draft(
      R"({"tensors": {"t": {"shape": [8], "dtype": "int64", "kind": "input"},
          "table": {"shape": [3, 6], "kind": "parameter"},
          "w": {"shape": [4, 6], "kind": "parameter"},
                      "e": {"shape": [8, 6]}, "y": {"shape": [8, 4]}},
          "nodes": [{"op": "embedding", "in": ["t", "table"], "out": ["e"]},
           {"op": "linear", "in": ["e", "w"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["dp", 8], ["tp", 2]], "programs": [{
            "tensors": {"t": {"shape": [1], "dtype": "int64", "kind": "input"},
             "table": {"shape": [3, 3], "kind": "parameter"},
             "w": {"shape": [4, 3], "kind": "parameter"},
                        "le": {"shape": [1, 3]}, "part": {"shape": [1, 4]},
                         "ly": {"shape": [1, 4]}},
            "nodes": [{"op": "embedding", "in": ["t", "table"], "out": ["le"]},
             {"op": "linear", "in": ["le", "w"], "out": ["part"]},
                      {"op": "all_reduce", "in": ["part"], "out": ["ly"], "comm": "c",
                       "group": ["tp"]}]}],
          "lineage": [{"tensor": "t", "role": "input", "shards": [{"box": [[0, 1]],
           "step": {"dp": [1]}, "parts": [{"local": "t"}]}]},
                      {"tensor": "table", "role": "input",
                       "shards": [{"box": [[0, 3], [0, 3]], "step": {"tp": [0, 3]},
                       "parts": [{"local": "table"}]}]},
                      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 4], [0, 3]],
                       "step": {"tp": [0, 3]}, "parts": [{"local": "w"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 1], [0, 4]],
                       "step": {"dp": [1, 0]}, "parts": [{"local": "ly"}]}]}]})");
  const Inferred found = inferLineage(*test::read(d), {});
  ASSERT_TRUE(found.problem) << found.reason;
  const LineageEntry* part = entryOf(*found.problem, "part");
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(tensorOf(*found.problem, *part), "y");
  EXPECT_EQ(part->shards[0].sum, std::vector<std::int32_t>{1});
  EXPECT_EQ(part->shards[0].step, (Steps{{0, {1, 0}}}));
  EXPECT_EQ(verdictOf(*found.problem), Verdict::kEquivalent);
}

// An image has two of eight microbatches, and in it what is added up of three looks like the whole.
TEST(Infer, PartialSumsOfMicrobatchesAreNotTakenForTheWhole) {
  auto full = test::read(test::microbatchByMicrobatch(1000));
  const Inferred found = inferLineage(*full, {});
  ASSERT_TRUE(found.problem) << found.reason;
  EXPECT_NE(entryOf(*found.problem, "t"), nullptr);
  for (int i = 1; i < 7; ++i)
    EXPECT_EQ(entryOf(*found.problem, "sum." + std::to_string(i)), nullptr) << i;
  Report report = verify(*found.problem, {});
  EXPECT_EQ(report.verdict, Verdict::kEquivalent);
  for (const StageReport& stage : report.stages) EXPECT_EQ(stage.verdict, StageVerdict::kProved);
}

// Eight ranks that differ in the window of their table are executed as two; the others' tensors lie
// as far on again, and are parts of sums.
TEST(Infer, WindowsOfRanksThatWereNotExecutedFollowTheOthers) {
  Draft d = draft(
      R"({"tensors": {"t": {"shape": [64], "dtype": "int64", "kind": "input"},
          "table": {"shape": [8000, 64], "kind": "parameter"},
                      "e": {"shape": [64, 64]}, "w": {"shape": [8000, 64]},
                       "s": {"shape": [64, 64]}},
          "nodes": [{"op": "embedding", "in": ["t", "table"], "out": ["e"]},
           {"op": "square", "in": ["table"], "out": ["w"]},
                    {"op": "square", "in": ["e"], "out": ["s"]}], "outputs": ["s", "w"]})",
      R"({"mesh": [["tp", 8]], "programs": [],
          "lineage": [{"tensor": "t", "role": "input", "shards": [{"box": [[0, 64]],
           "parts": [{"local": "t"}]}]},
                      {"tensor": "table", "role": "input",
                       "shards": [{"box": [[0, 1000], [0, 64]], "step": {"tp": [1000, 0]},
                       "parts": [{"local": "table"}]}]},
                      {"tensor": "w", "role": "output", "shards": [{"box": [[0, 1000], [0, 64]],
                       "step": {"tp": [1000, 0]}, "parts": [{"local": "w"}]}]},
                      {"tensor": "s", "role": "output", "shards": [{"box": [[0, 64], [0, 64]],
                       "parts": [{"local": "s"}]}]}]})");
  for (int c = 0; c < 8; ++c) {
    test::Json program = test::Json::parse(
        R"({"tensors": {"t": {"shape": [64], "dtype": "int64", "kind": "input"},
            "table": {"shape": [1000, 64], "kind": "parameter"},
                        "part": {"shape": [64, 64]}, "e": {"shape": [64, 64]},
                         "copy": {"shape": [1000, 64]}, "w": {"shape": [1000, 64]},
                         "s": {"shape": [64, 64]}},
            "nodes": [{"op": "embedding", "in": ["t", "table"], "out": ["part"]},
             {"op": "square", "in": ["table"], "out": ["copy"]},
             {"op": "identity", "in": ["copy"], "out": ["w"]},
                      {"op": "all_reduce", "in": ["part"], "out": ["e"], "comm": "c",
                       "group": ["tp"]}, {"op": "square", "in": ["e"], "out": ["s"]}]})");
    program["at"] = {{"tp", c}};
    program["nodes"][0]["attrs"] = {{"start", 1000 * c}, {"stop", 1000 * (c + 1)}};
    d.plan["programs"].push_back(program);
  }
  const Inferred found = inferLineage(*test::read(d), {});
  ASSERT_TRUE(found.problem) << found.reason;
  std::map<std::int32_t, std::int64_t> low;
  for (const LineageEntry& entry : found.problem->plan.lineage) {
    const Shard& shard = entry.shards[0];
    const std::string name = found.problem->names.text(shard.parts[0].local);
    if (entry.inferred && name == "copy") low[shard.parts[0].at[0].second] = shard.box[0].first;
    if (entry.inferred && name == "part") {
      EXPECT_EQ(shard.parts.size(), 8U);
    }
  }
  for (int c = 0; c < 8; ++c) EXPECT_EQ(low[c], 1000 * c);
  EXPECT_NE(entryOf(*found.problem, "part"), nullptr);
  EXPECT_EQ(verdictOf(*found.problem), Verdict::kEquivalent);
  // One rank of those that were not executed has another window.
  d.plan["programs"][5]["nodes"][0]["attrs"] = {{"start", 4999}, {"stop", 5999}};
  const Inferred wrong = inferLineage(*test::read(d), {});
  EXPECT_NE(verdictOf(wrong.problem ? *wrong.problem : *test::read(d)), Verdict::kEquivalent);
}

// Three tokens name rows of three ranks at most: of the others the gradient says nothing, and is
// taken to lie as far on again.
TEST(Infer, WhatSaysNothingLiesAsTheOthersDo) {
  Draft d = draft(
      R"({"tensors": {"t": {"shape": [3], "dtype": "int64", "kind": "input"},
          "dy": {"shape": [3, 6], "kind": "input"}, "table": {"shape": [16, 6],
          "kind": "parameter"},
                      "g": {"shape": [16, 6]}, "s": {"shape": [16, 6]}},
          "nodes": [{"op": "embedding_backward", "in": ["dy", "t", "table"], "out": [null, "g"]},
           {"op": "square", "in": ["g"], "out": ["s"]}], "outputs": ["s"]})",
      R"({"mesh": [["tp", 8]], "programs": [],
          "lineage": [{"tensor": "t", "role": "input", "shards": [{"box": [[0, 3]],
           "parts": [{"local": "t"}]}]},
                      {"tensor": "dy", "role": "input", "shards": [{"box": [[0, 3], [0, 6]],
                       "parts": [{"local": "dy"}]}]},
                      {"tensor": "table", "role": "input",
                       "shards": [{"box": [[0, 2], [0, 6]], "step": {"tp": [2, 0]},
                       "parts": [{"local": "table"}]}]},
                      {"tensor": "s", "role": "output", "shards": [{"box": [[0, 2], [0, 6]],
                       "step": {"tp": [2, 0]}, "parts": [{"local": "s"}]}]}]})");
  for (int c = 0; c < 8; ++c) {
    test::Json program = test::Json::parse(
        R"({"tensors": {"t": {"shape": [3], "dtype": "int64", "kind": "input"},
            "dy": {"shape": [3, 6], "kind": "input"}, "table": {"shape": [2, 6],
            "kind": "parameter"},
                        "g": {"shape": [2, 6]}, "s": {"shape": [2, 6]}},
            "nodes": [{"op": "embedding_backward", "in": ["dy", "t", "table"], "out": [null, "g"]},
             {"op": "square", "in": ["g"], "out": ["s"]}]})");
    program["at"] = {{"tp", c}};
    program["nodes"][0]["attrs"] = {{"start", 2 * c}, {"stop", 2 * (c + 1)}};
    d.plan["programs"].push_back(program);
  }
  const auto problem = test::read(d);
  const Inferred found = inferLineage(*problem, {});
  ASSERT_TRUE(found.problem) << found.reason;
  std::map<std::int32_t, std::int64_t> low;
  for (const LineageEntry& entry : found.problem->plan.lineage)
    if (entry.inferred) low[entry.shards[0].parts[0].at[0].second] = entry.shards[0].box[0].first;
  for (int c = 0; c < 8; ++c) {
    ASSERT_TRUE(low.contains(c)) << c;
    EXPECT_EQ(low[c], 2 * c);
  }
  EXPECT_EQ(verdictOf(*found.problem), Verdict::kEquivalent);
}

TEST(Infer, LiftsSharesToFullSize) {
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [4096, 512], "kind": "input"}, "a": {"shape": [4096, 512]},
          "b": {"shape": [4096, 512]}, "y": {"shape": [512]}},
          "nodes": [{"op": "silu", "in": ["x"], "out": ["a"]},
           {"op": "square", "in": ["a"], "out": ["b"]},
                    {"op": "sum", "in": ["b"], "out": ["y"], "attrs": {"dim": 0}}],
                     "outputs": ["y"]})",
      R"({"mesh": [["dp", 32], ["tp", 2]], "programs": [{
            "tensors": {"x": {"shape": [64, 512], "kind": "input"}, "la": {"shape": [64, 512]},
             "lb": {"shape": [64, 512]}, "part": {"shape": [512]}, "ly": {"shape": [512]}},
            "nodes": [{"op": "silu", "in": ["x"], "out": ["la"]},
             {"op": "square", "in": ["la"], "out": ["lb"]},
                      {"op": "sum", "in": ["lb"], "out": ["part"], "attrs": {"dim": 0}},
                      {"op": "all_reduce", "in": ["part"], "out": ["ly"], "comm": "c",
                       "group": ["dp", "tp"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 64], [0, 512]],
           "step": {"dp": [128, 0], "tp": [64, 0]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 512]],
                       "parts": [{"local": "ly"}]}]}]})");
  const auto problem = test::read(d);
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr) << inferred.reason;
  const LineageEntry* a = entryOf(*inferred.problem, "la");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(tensorOf(*inferred.problem, *a), "a");
  EXPECT_EQ(a->shards[0].box, (decltype(Shard::box){{0, 64}, {0, 512}}));
  EXPECT_EQ(a->shards[0].step, (Steps{{0, {128, 0}}, {1, {64, 0}}}));
  EXPECT_EQ(verdictOf(*inferred.problem), Verdict::kEquivalent);
}

// Copies are true of all of them; what the same operator makes of the same operands is of use.
TEST(Infer, ChoosesTheTensorThatTheSameOperatorMakes) {
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "c1": {"shape": [4]},
          "c2": {"shape": [4]}, "s": {"shape": [4]}, "y": {"shape": [4]}},
          "nodes": [{"op": "relu", "in": ["x"], "out": ["c1"]},
           {"op": "relu", "in": ["c1"], "out": ["c2"]},
                    {"op": "silu", "in": ["c2"], "out": ["s"]},
                     {"op": "mul", "in": ["s", "c1"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["dp", 2]], "programs": [{
            "tensors": {"x": {"shape": [2], "kind": "input"}, "l1": {"shape": [2]},
             "l2": {"shape": [2]}, "ls": {"shape": [2]}, "ly": {"shape": [2]}},
            "nodes": [{"op": "relu", "in": ["x"], "out": ["l1"]},
             {"op": "relu", "in": ["l1"], "out": ["l2"]},
                      {"op": "silu", "in": ["l2"], "out": ["ls"]},
                       {"op": "mul", "in": ["ls", "l1"], "out": ["ly"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]],
           "step": {"dp": [2]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2]],
                       "step": {"dp": [2]}, "parts": [{"local": "ly"}]}]}]})");
  const auto problem = test::read(d);
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr) << inferred.reason;
  const LineageEntry *first = entryOf(*inferred.problem, "l1"),
                     *second = entryOf(*inferred.problem, "l2");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(tensorOf(*inferred.problem, *first), "c1");
  EXPECT_EQ(tensorOf(*inferred.problem, *second), "c2");
}

// In a wrong plan what was found is true, what could not be is expected, and the outputs that
// differ are named: the verdict is the plan's.
TEST(Infer, AWrongPlanStaysWrong) {
  Draft d = twoLayers();
  d.node(0, 3)["group"] = {"dp"};
  auto problem = test::read(d);
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr) << inferred.reason;
  EXPECT_EQ(inferred.doubtful, std::vector<EntryId>{EntryId(3)});
  EXPECT_NE(entryOf(*inferred.problem, "lh"), nullptr);
  VerifyOptions options;
  options.jobs = 1;
  for (const Infer infer : {Infer::kAlways, Infer::kAuto, Infer::kNever}) {
    auto own = cloneProblem(*problem);
    EXPECT_EQ(verifyInferring(own, options, infer).verdict, Verdict::kNotEquivalent);
  }
}

// A doubt changes the order of the work, not the verdict.
TEST(Infer, DoubtsAboutARightPlanChangeNothing) {
  const auto problem = test::read(twoLayers());
  VerifyOptions options;
  options.jobs = 1;
  const Report report = verifyOnce(*problem, options, {.name = "as given"}, Budget(), {EntryId(3)});
  EXPECT_EQ(report.verdict, Verdict::kEquivalent);
}

// Lemmas that are wrong cost time: the verdict is that of the plan without them.
TEST(Infer, WrongGuessesAreRefutedOrProveNothing) {
  for (const bool wrongPlan : {false, true}) {
    Draft d = twoLayers();
    if (wrongPlan) d.node(0, 3)["group"] = {"dp"};
    auto problem = test::read(d);
    Inferred inferred = inferLineage(*problem);
    ASSERT_NE(inferred.problem, nullptr);
    for (LineageEntry& entry : inferred.problem->plan.lineage) {
      if (!entry.inferred) continue;
      for (auto& [axis, step] : entry.shards[0].step)
        for (std::int64_t& s : step) s = 0;  // all ranks have the first part, it says
      if (!entry.shards[0].sum.empty()) entry.shards[0].sum.clear();
    }
    EXPECT_EQ(verdictOf(*inferred.problem),
              wrongPlan ? Verdict::kNotEquivalent : Verdict::kEquivalent);
  }
}

TEST(Infer, DensityIsTheShareOfTensorsThatLineageNames) {
  const auto problem = test::read(twoLayers());
  EXPECT_DOUBLE_EQ(lineageDensity(*problem), 0);  // of lh, la, part; ly is an output
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr);
  EXPECT_DOUBLE_EQ(lineageDensity(*inferred.problem), 1);
}

TEST(Infer, OnlyThinLineageIsAddedToByItself) {
  VerifyOptions options;
  options.jobs = 1;
  auto problem = test::read(twoLayers());
  EXPECT_FALSE(verifyInferring(problem, options, Infer::kAuto).inference.has_value());
  const Report always = verifyInferring(problem, options, Infer::kAlways);
  ASSERT_TRUE(always.inference.has_value());
  EXPECT_EQ(always.inference->lemmas, 3u);
  EXPECT_EQ(always.verdict, Verdict::kEquivalent);
}

// Files have none of it unless that is asked for, and then it is read again as any other.
TEST(Infer, IsWrittenWhereThatIsAskedFor) {
  const auto problem = test::read(twoLayers());
  const Inferred inferred = inferLineage(*problem);
  ASSERT_NE(inferred.problem, nullptr);
  EXPECT_EQ(planText(*inferred.problem, "m.json"), planText(*problem, "m.json"));
  const auto again =
      readProblemText(modelText(*problem), planText(*inferred.problem, "m.json", true));
  EXPECT_EQ(again->plan.lineage.size(), problem->plan.lineage.size() + inferred.count);
  EXPECT_EQ(verdictOf(*again), Verdict::kEquivalent);
  EXPECT_EQ(planText(*withoutInferred(*inferred.problem), ""), planText(*problem, ""));
}

// Products of 2048 x 2048 matrices, whose rows a stride keeps: there is no smaller image.
TEST(Infer, WhatTakesTooLongDoesNotBegin) {
  const std::string tensors =
      R"("x": {"shape": [2048, 2048], "kind": "input"}, "s": {"shape": [1024, 2048]},
          "t": {"shape": [2048, 1024]}, "y": {"shape": [2048, 2048]})";
  const std::string nodes =
      R"({"op": "slice", "in": ["x"], "out": ["s"], "attrs": {"dim": 0, "step": 2}},
          {"op": "slice", "in": ["x"], "out": ["t"], "attrs": {"dim": 1, "step": 2}},
          {"op": "matmul", "in": ["t", "s"], "out": ["y"]})";
  const auto problem = test::read(test::draft(
      R"({"tensors": {)" + tensors + R"(}, "nodes": [)" + nodes + R"(], "outputs": ["y"]})",
      R"({"mesh": [["a", 1]], "programs": [{"tensors": {)" + tensors + R"(}, "nodes": [)" + nodes +
          R"(]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2048], [0, 2048]],
           "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2048], [0, 2048]],
                       "parts": [{"local": "y"}]}]}]})"));
  const Inferred inferred = inferLineage(*problem);
  EXPECT_EQ(inferred.problem, nullptr);
  EXPECT_NE(inferred.reason.find("operations"), std::string::npos) << inferred.reason;
  EXPECT_LT(inferred.seconds, 1);
}

TEST(Infer, WithoutTimeLeftWhatWasFoundCounts) {
  const auto problem = test::read(twoLayers());
  executor::Limits limits;
  limits.maxBytes = 1 << 20;
  const infer::Relations all = infer::findRelations(*problem, limits, InferParts::kAll, false);
  EXPECT_FALSE(all.stopped);
  EXPECT_EQ(all.relations.size(), 4u);
  limits.end = std::chrono::steady_clock::now();
  const infer::Relations none = infer::findRelations(*problem, limits, InferParts::kAll, false);
  EXPECT_TRUE(none.stopped);
  EXPECT_TRUE(none.relations.empty());
  EXPECT_TRUE(none.differing.empty());  // not compared: no doubt
}

TEST(Infer, DoublesFindTheSame) {
  const auto problem = test::read(twoLayers());
  executor::Limits limits;
  limits.maxBytes = 1 << 20;
  EXPECT_EQ(infer::findRelations(*problem, limits, InferParts::kNone, true).relations.size(), 4u);
}

// d is x, as the difference of two numbers that are ten million times as large: doubles do not have
// it in ten digits, and the plan rounds in other places.
TEST(Infer, WhatNearlyCancelsIsNotLookedUpInDoubles) {
  const auto problem = test::read(draft(
      R"({"tensors": {"x": {"shape": [4, 6], "kind": "input"}, "h": {"shape": [4, 6]},
          "a": {"shape": [4, 6]}, "d": {"shape": [4, 6]}, "y": {"shape": [4, 6]}},
          "nodes": [{"op": "mul", "in": ["x"], "out": ["h"], "attrs": {"scalar": 10000000}},
           {"op": "add", "in": ["x", "h"], "out": ["a"]},
                    {"op": "sub", "in": ["a", "h"], "out": ["d"]},
                     {"op": "relu", "in": ["d"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [["r", 1]], "programs": [{
            "tensors": {"x": {"shape": [4, 6], "kind": "input"}, "lh": {"shape": [4, 6]},
             "la": {"shape": [4, 6]}, "lb": {"shape": [4, 6]},
                        "lc": {"shape": [4, 6]}, "ld": {"shape": [4, 6]}, "ly": {"shape": [4, 6]}},
            "nodes": [{"op": "mul", "in": ["x"], "out": ["lh"], "attrs": {"scalar": 5000000}},
             {"op": "add", "in": ["x", "lh"], "out": ["la"]},
                      {"op": "add", "in": ["la", "lh"], "out": ["lb"]},
                       {"op": "sub", "in": ["lb", "lh"], "out": ["lc"]},
                      {"op": "sub", "in": ["lc", "lh"], "out": ["ld"]},
                       {"op": "relu", "in": ["ld"], "out": ["ly"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 6]],
           "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4], [0, 6]],
                       "parts": [{"local": "ly"}]}]}]})"));
  executor::Limits limits;
  limits.maxBytes = 1 << 20;
  std::set<std::string> found;
  for (const infer::Relation& relation :
       infer::findRelations(*problem, limits, InferParts::kNone, true).relations)
    found.insert(
        problem->names.text(problem->plan.programs[0].graph.tensors[relation.tensor].name));
  EXPECT_EQ(found, (std::set<std::string>{"lb", "ld", "ly"}));
}

TEST(Infer, SaysWhyThereIsNothing) {
  Draft d = twoLayers();
  d.tensor(0, "lh")["shape"] = {4, 7};
  const auto problem = test::read(d);
  const Inferred inferred = inferLineage(*problem);
  EXPECT_EQ(inferred.problem, nullptr);
  EXPECT_NE(inferred.reason, "");
  std::atomic<bool> cancelled{true};
  InferOptions options;
  options.cancel = &cancelled;
  const Inferred stopped = inferLineage(*test::read(twoLayers()), options);
  EXPECT_EQ(stopped.problem, nullptr);
  EXPECT_NE(stopped.reason, "");
}

// Of both signs, next to the bounds of buckets, and of a value that all rows share.
TEST(ModelTable, FindsValuesAndKnowsCommonOnes) {
  constexpr std::int64_t kRows = 100;
  Model model;
  model.graph.tensors.resize(1);
  executor::Memory memory;
  executor::Value<long double> value(memory, {kRows, 3});
  for (std::int64_t r = 0; r < kRows; ++r) {
    value.writable()[3 * r] = 1;
    value.writable()[3 * r + 1] = std::exp2(static_cast<long double>(r) / 7);
    value.writable()[3 * r + 2] = -value.data()[3 * r + 1] - 2;
  }
  infer::ModelTable<long double> table(model);
  table.take(TensorId(0), value);
  table.sort();
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (const std::int64_t column : {1, 2}) {
      const long double x = value.data()[3 * r + column];
      const long double tolerance = infer::kRounding<long double> * std::abs(x);
      for (const long double moved : {x, x + tolerance / 2, x - tolerance / 2}) {
        const auto places = table.placesOf(&moved, {1, 1}, ElementKind::kReal, 0, moved, tolerance);
        // 1 is also the first element of each row, and is found there as well.
        if (r == 0 && column == 1) continue;
        ASSERT_EQ(places.size(), 1u);
        EXPECT_EQ(places[0].low, (Shape{r, column}));
      }
      const long double other = x * (1 + 100 * infer::kRounding<long double>);
      EXPECT_TRUE(table.placesOf(&other, {1, 1}, ElementKind::kReal, 0, other, tolerance).empty());
      // As wide as the sums' tolerance may be: across zero.
      EXPECT_FALSE(table.placesOf(&x, {1, 1}, ElementKind::kReal, 0, x, 2 * std::abs(x)).empty());
    }
  }
  EXPECT_TRUE(table.common(1, 2));
  EXPECT_FALSE(table.common(1, 3));
  EXPECT_FALSE(table.common(value.data()[4], 2));
}

TEST(Subsets, SmallOnesFirst) {
  EXPECT_EQ(infer::subsetsOf({0, 3}), (std::vector<std::vector<std::int32_t>>{{0}, {3}, {0, 3}}));
  EXPECT_TRUE(infer::subsetsOf({}).empty());
}

}  // namespace
}  // namespace shardproof
