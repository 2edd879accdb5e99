// SPDX-License-Identifier: Apache-2.0
// Masks that are drawn: one for each seed, p and logical position, wherever a rank's piece lies.
#include <gtest/gtest.h>

#include <cmath>

#include "executor/interpret.h"
#include "support/problems.h"

namespace shardproof::executor {
namespace {

using test::Draft;
using test::Json;

// y = dropout(2 x), z = its gradient; each rank has half the rows, of each microbatch half of
// these.
Draft halves() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [8, 6], "kind": "input"},
          "g": {"shape": [8, 6], "kind": "input"}, "d": {"shape": [8, 6]}, "y": {"shape": [8, 6]},
          "z": {"shape": [8, 6]}},
      "nodes": [{"op": "mul", "in": ["x"], "out": ["d"], "attrs": {"scalar": 2}},
       {"op": "dropout", "in": ["d"], "out": ["y"], "attrs": {"p": 0.5, "seed": 3}},
                {"op": "dropout_backward", "in": ["g", "d"], "out": ["z"],
                 "attrs": {"p": 0.5, "seed": 3}}], "outputs": ["y", "z"]})",
      R"({"mesh": [["dp", 2]], "microbatches": 2, "programs": [{"tensors": {"x": {"shape": [2, 6],
          "kind": "input", "per_mb": true}, "g": {"shape": [2, 6], "kind": "input", "per_mb": true},
                      "d": {"shape": [2, 6], "per_mb": true},
                       "y": {"shape": [2, 6], "per_mb": true},
                       "z": {"shape": [2, 6], "per_mb": true}},
      "nodes": [{"op": "mul", "in": ["x"], "out": ["d"], "attrs": {"scalar": 2}, "mb": "*"},
       {"op": "dropout", "in": ["d"], "out": ["y"], "attrs": {"p": 0.5, "seed": 3}, "mb": "*"},
                {"op": "dropout_backward", "in": ["g", "d"], "out": ["z"],
                 "attrs": {"p": 0.5, "seed": 3}, "mb": "*"}]}],
      "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 6]],
       "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "x"}]}]},
      {"tensor": "g", "role": "input", "shards": [{"box": [[0, 2], [0, 6]],
       "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "g"}]}]},
      {"tensor": "d", "role": "cut_point", "shards": [{"box": [[0, 2], [0, 6]],
       "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "d"}]}]},
      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2], [0, 6]],
       "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "y"}]}]},
      {"tensor": "z", "role": "output", "shards": [{"box": [[0, 2], [0, 6]],
       "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "z"}]}]}]})");
}

Agreement outputsOf(const Draft& d) {
  const auto problem = test::read(d);
  return execute(*problem, {}).outputs(problem->plan);
}

TEST(Dropout, PiecesOfOneMask) {
  const auto problem = test::read(halves());
  Options options;
  options.keep = true;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kAgrees);
  const std::vector<double>&x = result.model.at("x").data, &y = result.model.at("y").data;
  int kept = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_TRUE(y[i] == 0 || std::abs(y[i] - 4 * x[i]) < 1e-12);
    kept += y[i] != 0;
  }
  EXPECT_TRUE(kept > 8 && kept < 40) << kept;
  EXPECT_EQ(result.local.at("y@1#0").data, std::vector<double>(y.begin() + 24, y.begin() + 36));
}

TEST(Dropout, AnotherSeedOrProbabilityIsAnotherMask) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"seed", 4}, {"p", 0.25}}) {
    Draft d = halves();
    d.node(0, 1)["attrs"][key] = value;
    EXPECT_EQ(outputsOf(d), Agreement::kDiffers) << key;
  }
}

TEST(Dropout, TheResultsPlaceServesAsWell) {
  Draft d = halves();
  d.plan["lineage"].erase(2);  // now only y and z say where they are
  EXPECT_EQ(outputsOf(d), Agreement::kAgrees);
}

TEST(Dropout, TwoPlacesAreNone) {
  Draft d = halves();
  Json other = d.entry(2);  // the microbatches the other way round
  other["shards"][0]["box"][0] = {2, 4};
  other["shards"][0]["step"]["mb"] = {-2, 0};
  d.plan["lineage"].push_back(other);
  const auto problem = test::read(d);
  const Result result = execute(*problem, {});
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kUnknown);
  EXPECT_NE(result.entries[1].reason.find("two things"), std::string::npos)
      << result.entries[1].reason;
  EXPECT_EQ(result.entries.back().agreement, Agreement::kDiffers);  // what it says is wrong besides
}

TEST(Dropout, WithoutAPlaceNothingIsKnown) {
  Draft d = halves();
  // On the ranks y is dropped out twice over, under names that no lineage has.
  d.tensor(0, "other") = Json::parse(R"({"shape": [2, 6], "per_mb": true})");
  d.tensor(0, "again") = Json::parse(R"({"shape": [2, 6], "per_mb": true})");
  d.node(0, 1)["in"] = {"other"};
  d.node(0, 1)["out"] = {"again"};
  auto& nodes = d.program(0)["nodes"];
  nodes.insert(nodes.begin() + 1,
               Json::parse(R"({"op": "neg", "in": ["d"], "out": ["other"], "mb": "*"})"));
  nodes.insert(nodes.begin() + 3,
               Json::parse(R"({"op": "neg", "in": ["again"], "out": ["y"], "mb": "*"})"));
  const auto problem = test::read(d);
  const Result result = execute(*problem, {});
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kUnknown);
  for (const EntryResult& e : result.entries) {
    const std::string tensor = problem->names.text(
        problem->model.graph
            .tensors[static_cast<std::size_t>(
                problem->plan.lineage[static_cast<std::size_t>(e.entry)].tensor)]
            .name);
    EXPECT_EQ(e.agreement, tensor == "y" ? Agreement::kUnknown : Agreement::kAgrees) << tensor;
    if (tensor == "y") {
      EXPECT_NE(e.reason.find("no lineage says"), std::string::npos) << e.reason;
    }
  }
}

TEST(Dropout, AMaskThatIsAnOperandIsTaken) {
  Draft d = test::oneRank(
      R"("x": {"shape": [40], "kind": "input"}, "m": {"shape": [40], "kind": "input",
          "dtype": "int64"})",
      R"("o": {"shape": [40]})",
      R"({"op": "dropout", "in": ["x", "m"], "out": ["o"], "attrs": {"p": 0.5}})",
      R"("o": {"shape": [40]})",
      R"({"op": "dropout", "in": ["x", "m"], "out": ["o"], "attrs": {"p": 0.5}})");
  const auto problem = test::read(d);
  Options options;
  options.keep = true;
  const Result result = execute(*problem, options);
  EXPECT_EQ(result.outputs(problem->plan), Agreement::kAgrees);
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(result.model.at("o").data[i] != 0, result.model.at("m").data[i] == 1);
  d.node(0, 0)["attrs"]["p"] = 0.25;
  EXPECT_EQ(outputsOf(d), Agreement::kDiffers);
}

}  // namespace
}  // namespace shardproof::executor
