// SPDX-License-Identifier: Apache-2.0
#include "parameters/parameters.h"

#include <gtest/gtest.h>

#include "report/parameter_text.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using State = ParameterTable::State;

// Samples are cut along dp, columns of d along tp. Gradients: w a part of the tensor along tp, u
// reduced along tp within backward, n computed of numbers that all ranks have.
const char* const kModel = R"({"tensors": {
    "x": {"shape": [4, 2], "kind": "input"}, "d": {"shape": [4, 2], "kind": "input"},
    "c": {"shape": [2, 2], "kind": "input"}, "e": {"shape": [3], "kind": "input"},
    "w": {"shape": [2, 2], "kind": "parameter"}, "u": {"shape": [2], "kind": "parameter"},
    "n": {"shape": [3], "kind": "parameter"},
    "xt": {"shape": [2, 4]}, "w.grad": {"shape": [2, 2]}, "h": {"shape": [4, 2]},
    "u.grad": {"shape": [2]}, "n.grad": {"shape": [3]}},
  "nodes": [
    {"op": "transpose", "in": ["x"], "out": ["xt"], "attrs": {"dim0": 0, "dim1": 1}},
    {"op": "matmul", "in": ["xt", "d"], "out": ["w.grad"]},
    {"op": "matmul", "in": ["d", "c"], "out": ["h"]},
    {"op": "sum", "in": ["h"], "out": ["u.grad"], "attrs": {"dim": [0]}},
    {"op": "neg", "in": ["e"], "out": ["n.grad"]}],
  "outputs": ["w.grad", "u.grad", "n.grad"]})";

const char* const kPlan = R"({"mesh": [["dp", 2], ["tp", 2]], "programs": [{"tensors": {
    "x": {"shape": [2, 2], "kind": "input"}, "d": {"shape": [2, 1], "kind": "input"},
    "c": {"shape": [1, 2], "kind": "input"}, "e": {"shape": [3], "kind": "input"},
    "w": {"shape": [2, 1], "kind": "parameter"}, "u": {"shape": [2], "kind": "parameter"},
    "n": {"shape": [3], "kind": "parameter"},
    "xt": {"shape": [2, 2]}, "wg": {"shape": [2, 1]}, "wr": {"shape": [2, 1]},
    "hp": {"shape": [2, 2]}, "h": {"shape": [2, 2]}, "up": {"shape": [2]}, "ur": {"shape": [2]},
    "m": {"shape": [3]}},
  "nodes": [
    {"op": "transpose", "in": ["x"], "out": ["xt"], "attrs": {"dim0": 0, "dim1": 1}},
    {"op": "matmul", "in": ["xt", "d"], "out": ["wg"]},
    {"op": "all_reduce", "in": ["wg"], "out": ["wr"], "comm": "a", "group": ["dp"],
     "attrs": {"reduce": "sum"}, "loc": "train.py:8"},
    {"op": "matmul", "in": ["d", "c"], "out": ["hp"]},
    {"op": "all_reduce", "in": ["hp"], "out": ["h"], "comm": "b", "group": ["tp"],
     "attrs": {"reduce": "sum"}, "loc": "model.py:3"},
    {"op": "sum", "in": ["h"], "out": ["up"], "attrs": {"dim": [0]}},
    {"op": "all_reduce", "in": ["up"], "out": ["ur"], "comm": "c", "group": ["dp"],
     "attrs": {"reduce": "sum"}, "loc": "train.py:9"},
    {"op": "neg", "in": ["e"], "out": ["m"]}]}],
  "lineage": [
    {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 2]], "step": {"dp": [2, 0]},
     "parts": [{"local": "x"}]}]},
    {"tensor": "d", "role": "input", "shards": [{"box": [[0, 2], [0, 1]],
     "step": {"dp": [2, 0], "tp": [0, 1]}, "parts": [{"local": "d"}]}]},
    {"tensor": "c", "role": "input", "shards": [{"box": [[0, 1], [0, 2]], "step": {"tp": [1, 0]},
     "parts": [{"local": "c"}]}]},
    {"tensor": "e", "role": "input", "shards": [{"box": [[0, 3]], "parts": [{"local": "e"}]}]},
    {"tensor": "w", "role": "input", "shards": [{"box": [[0, 2], [0, 1]], "step": {"tp": [0, 1]},
     "parts": [{"local": "w"}]}]},
    {"tensor": "u", "role": "input", "shards": [{"box": [[0, 2]], "parts": [{"local": "u"}]}]},
    {"tensor": "n", "role": "input", "shards": [{"box": [[0, 3]], "parts": [{"local": "n"}]}]},
    {"tensor": "w.grad", "role": "output", "shards": [{"box": [[0, 2], [0, 1]],
     "step": {"tp": [0, 1]}, "parts": [{"local": "wr"}]}]},
    {"tensor": "u.grad", "role": "output", "shards": [{"box": [[0, 2]],
     "parts": [{"local": "ur"}]}]},
    {"tensor": "n.grad", "role": "output", "shards": [{"box": [[0, 3]],
     "parts": [{"local": "m"}]}]}]})";

const ParameterTable::Axis& along(const ParameterTable& table, const std::string& parameter,
                                  const std::string& axis) {
  for (const auto& row : table.rows)
    for (const auto& p : row.parameters)
      if (p == parameter)
        for (const auto& a : row.axes)
          if (a.axis == axis) return a;
  throw std::runtime_error(parameter + " along " + axis + " is in no row: " + table.reason);
}

TEST(Parameters, WhatBackwardMakesAndWhatReducesIt) {
  const ParameterTable table = explainParameters(*test::read(kModel, kPlan), {});
  EXPECT_EQ(table.reason, "");
  EXPECT_FALSE(table.ofSmallerPlan);
  EXPECT_EQ(textOf(along(table, "w", "dp")),
            "partial: each rank makes a part of a sum; reduced by all_reduce at train.py:8");
  EXPECT_EQ(textOf(along(table, "w", "tp")), "sharded: each rank makes its part of it");
  EXPECT_EQ(textOf(along(table, "u", "dp")),
            "partial: each rank makes a part of a sum; reduced by all_reduce at train.py:9");
  EXPECT_EQ(textOf(along(table, "u", "tp")),
            "already reduced: every rank has all of it, by all_reduce at model.py:3 within "
            "backward");
  EXPECT_EQ(along(table, "n", "dp").state, State::kRedundant);
  EXPECT_EQ(along(table, "n", "tp").state, State::kRedundant);
}

TEST(Parameters, AReductionThatIsMissingOrTooMuch) {
  test::Draft d = test::draft(kModel, kPlan);
  d.program(0)["nodes"].erase(6);
  d.program(0)["tensors"].erase("ur");
  d.entry(8)["shards"][0]["parts"][0]["local"] = "up";
  d.node(0, 6)["out"][0] = "mn";
  d.program(0)["tensors"]["mn"] = {{"shape", {3}}};
  d.program(0)["nodes"].push_back({{"op", "all_reduce"},
                                   {"in", {"mn"}},
                                   {"out", {"m"}},
                                   {"comm", "more"},
                                   {"group", {"dp"}},
                                   {"attrs", {{"reduce", "mean"}}}});
  const ParameterTable table = explainParameters(*test::read(d), {});
  EXPECT_EQ(textOf(along(table, "u", "dp")),
            "partial: each rank makes a part of a sum; nothing reduces it");
  EXPECT_EQ(textOf(along(table, "n", "dp")),
            "redundant: every rank makes all of it; reduced all the same, by all_reduce (mean)");
}

TEST(Parameters, WhatHasNoGradients) {
  test::Draft d = test::draft(kModel, kPlan);
  for (const char* name : {"w", "u", "n"}) {
    d.model["tensors"][name]["kind"] = "input";
    d.program(0)["tensors"][name]["kind"] = "input";
  }
  EXPECT_EQ(explainParameters(*test::read(d), {}).reason,
            "no output of the model is the gradient of a parameter");
}

ParameterTable::Row row(const std::string& parameter, std::int64_t stage) {
  ParameterTable::Axis pp, dp;
  pp.axis = "pp";
  pp.state = State::kOnSome;
  pp.coordinates = {stage};
  dp.axis = "dp";
  dp.state = State::kPartial;
  dp.reducedBy = "all_reduce at " + parameter;
  return {{parameter}, {pp, dp}};
}

TEST(ParameterText, LayersThatDifferInTheirNumberOnly) {
  const auto together =
      layersTogether({row("layers.0.w", 0), row("layers.1.w", 1), row("head.w2", 1)});
  ASSERT_EQ(together.size(), 2U);
  EXPECT_EQ(together[0].parameters, std::vector<std::string>{"layers.*.w (2)"});
  EXPECT_EQ(textOf(together[0].axes[0]), "each at one of pp 0-1");
  EXPECT_EQ(textOf(together[0].axes[1]),
            "partial: each rank makes a part of a sum; reduced by all_reduce at layers.*.w");
  EXPECT_EQ(together[1].parameters, std::vector<std::string>{"head.w2"});
  EXPECT_EQ(textOf(together[1].axes[0]), "on pp 1 only");
}

}  // namespace
}  // namespace shardproof
