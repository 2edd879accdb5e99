// SPDX-License-Identifier: Apache-2.0
// What is kept of each dimension, by hand for small stages and as properties of every stage of the
// real plans.
#include "shape_reduction/reduction.h"

#include <set>

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof {
namespace {

using List = std::vector<std::int64_t>;
using test::Draft;
using test::Json;
using test::oneRank;

struct Reduced {
  test::Cut cut;
  ReducedStage stage;
  const ops::ReducedDim& dim(const std::string& name, std::size_t d, std::int32_t rank = -1) const {
    const std::int32_t t = test::findIn(cut.stage, *cut.problem, name, rank);
    if (t < 0) throw std::logic_error("the stage has no tensor " + name);
    return *stage.dims[static_cast<std::size_t>(t)].at(d);
  }
};
Reduced reduced(const Draft& d, std::int32_t entry, const ReductionOptions& options = {}) {
  Reduced r{test::cut(d, entry), {}};
  r.stage = reduceStage(r.cut.stage, options);
  return r;
}
Reduced mirrored(const std::string& inputs, const std::string& tensors, const std::string& nodes,
                 const ReductionOptions& options = {}) {
  const Draft d = oneRank(inputs, tensors, nodes, tensors, nodes);
  return reduced(d, test::lastEntry(d), options);
}
void expectDim(const ops::ReducedDim& dim, const List& position, const List& weight) {
  EXPECT_EQ(dim.position, position);
  EXPECT_EQ(dim.weight, weight);
}

// y = x w^T, w cut into row shards of the given sizes on named ranks.
Draft rowShards(const List& sizes) {
  std::int64_t rows = 0;
  for (const std::int64_t s : sizes) rows += s;
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [5, 30], "kind": "input"}},
          "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"]}], "outputs": ["y"]})",
      R"({"mesh": [], "programs": [], "lineage": [{"tensor": "x", "role": "input",
          "shards": [{"box": [[0, 5], [0, 30]], "parts": [{"local": "x"}]}]}]})");
  d.model["tensors"]["w"] = {{"shape", {rows, 30}}, {"kind", "parameter"}};
  d.model["tensors"]["y"] = {{"shape", {5, rows}}};
  d.plan["mesh"].push_back({"tp", sizes.size()});
  Json w = Json::array(), y = Json::array();
  std::int64_t lo = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const std::int64_t hi = lo + sizes[r];
    Json program = {
        {"at", {{"tp", r}}},
        {"tensors", Json::parse(R"({"x": {"shape": [5, 30], "kind": "input"}})")},
        {"nodes", {Json::parse(R"({"op": "linear", "in": ["x", "w"], "out": ["y"]})")}}};
    program["tensors"]["w"] = {{"shape", {sizes[r], 30}}, {"kind", "parameter"}};
    program["tensors"]["y"] = {{"shape", {5, sizes[r]}}};
    d.plan["programs"].push_back(program);
    w.push_back({{"box", {{lo, hi}, {0, 30}}}, {"parts", {{{"local", "w"}, {"at", {{"tp", r}}}}}}});
    y.push_back({{"box", {{0, 5}, {lo, hi}}}, {"parts", {{{"local", "y"}, {"at", {{"tp", r}}}}}}});
    lo = hi;
  }
  d.plan["lineage"].push_back({{"tensor", "w"}, {"role", "input"}, {"shards", w}});
  d.plan["lineage"].push_back({{"tensor", "y"}, {"role", "output"}, {"shards", y}});
  return d;
}

TEST(Reduction, UniformShards) {
  const auto r = reduced(rowShards({4, 4, 4}), 2);
  expectDim(r.dim("w", 0), {0, 4, 8}, {4, 4, 4});
  expectDim(r.dim("w", 0, 1), {0}, {4});
  expectDim(r.dim("y", 1), {0, 4, 8}, {4, 4, 4});
  expectDim(r.dim("y", 0), {0}, {5});
  expectDim(r.dim("x", 1), {0, 1, 2}, {1, 1, 28});  // summed: two positions, and one for all others
  EXPECT_EQ(r.stage.mostVariables, 1);
  EXPECT_EQ(&r.dim("x", 1), &r.dim("w", 1, 2));  // shared
}

TEST(Reduction, UnevenShards) {
  const auto r = reduced(rowShards({5, 1, 7}), 2);
  expectDim(r.dim("w", 0), {0, 5, 6}, {5, 1, 7});
  expectDim(r.dim("y", 1, 2), {0}, {7});
  EXPECT_EQ(r.dim("w", 0).full, 13);
}

TEST(Reduction, OddOffsets) {
  const auto r = mirrored(
      R"("x": {"shape": [101], "kind": "input"})", R"("o": {"shape": [60]})",
      R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "start": 7, "stop": 67}})");
  expectDim(r.dim("x", 0), {0, 7, 67}, {7, 60, 34});
  expectDim(r.dim("o", 0), {0}, {60});
}

// The plan's slice starts earlier than the model's: each cut goes to and fro between x and o until
// the shift is exhausted.
TEST(Reduction, CutsCloseOverBothSides) {
  const auto shifted = [](int start) {
    const auto slice = [](int lo) {
      return R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "start": )" +
             std::to_string(lo) + R"(, "stop": )" + std::to_string(lo + 4) + "}}";
    };
    const char* const o = R"("o": {"shape": [4]})";
    return reduced(oneRank(R"("x": {"shape": [8], "kind": "input"})", o, slice(4), o, slice(start)),
                   1);
  };
  expectDim(shifted(4).dim("x", 0), {0, 4}, {4, 4});
  const auto early = shifted(3);
  expectDim(early.dim("x", 0), {0, 3, 4, 5, 6, 7}, {3, 1, 1, 1, 1, 1});
  expectDim(early.dim("o", 0), {0, 1, 2, 3}, {1, 1, 1, 1});
  expectDim(shifted(2).dim("x", 0), {0, 2, 4, 6}, {2, 2, 2, 2});
  expectDim(shifted(0).dim("x", 0), {0, 4}, {4, 4});
}

TEST(Reduction, ViewsReduceFactorByFactor) {
  const auto r = mirrored(R"("x": {"shape": [600], "kind": "input"})",
                          R"("v": {"shape": [20, 30]}, "o": {"shape": [20]})",
                          R"({"op": "view", "in": ["x"], "out": ["v"], "attrs": {"size": [20, 30]}},
          {"op": "sum", "in": ["v"], "out": ["o"], "attrs": {"dim": 1}})");
  expectDim(r.dim("x", 0), {0, 1, 2}, {20, 20, 20 * 28});
  expectDim(r.dim("v", 1), {0, 1, 2}, {1, 1, 28});
  expectDim(r.dim("o", 0), {0}, {20});
}

TEST(Reduction, FlatDimensionsKeepEveryPosition) {
  const auto r =
      mirrored(R"("x": {"shape": [6, 4], "kind": "input"})", R"("o": {"shape": [8, 3]})",
               R"({"op": "view", "in": ["x"], "out": ["o"], "attrs": {"size": [8, 3]}})");
  EXPECT_FALSE(r.dim("x", 0).reduced());
  EXPECT_FALSE(r.dim("o", 1).reduced());
}

TEST(Reduction, PairsAreReducedAsPairs) {
  const auto r = mirrored(
      R"("q": {"shape": [1, 50, 2, 8], "kind": "input"}, "k": {"shape": [1, 50, 2, 8],
          "kind": "input"}, "f": {"shape": [50, 4], "kind": "input", "dtype": "complex64"})",
      R"("o": {"shape": [1, 50, 2, 8]}, "k2": {"shape": [1, 50, 2, 8]})",
      R"({"op": "apply_rotary_emb", "in": ["q", "k", "f"], "out": ["o", "k2"]})");
  expectDim(r.dim("q", 3), {0, 1}, {4, 4});
  expectDim(r.dim("f", 1), {0}, {4});
  expectDim(r.dim("q", 1), {0}, {50});
}

// Rows and columns of the square matrix run together: every flattened dimension is two positions of
// one class.
TEST(Reduction, AFlattenedSquareIsTwoPositions) {
  const auto r =
      mirrored(R"("x": {"shape": [30, 30], "kind": "input"})",
               R"("t": {"shape": [30, 30]}, "s": {"shape": [30, 30]}, "u": {"shape": [900]},
          "v": {"shape": [900]}, "o": {"shape": [900, 900]})",
               R"({"op": "transpose", "in": ["x"], "out": ["t"], "attrs": {"dim0": 0, "dim1": 1}},
          {"op": "add", "in": ["x", "t"], "out": ["s"]},
          {"op": "view", "in": ["s"], "out": ["u"], "attrs": {"size": [900]}},
                             {"op": "view", "in": ["t"], "out": ["v"], "attrs": {"size": [900]}},
                              {"op": "einsum", "in": ["u", "v"], "out": ["o"],
                              "attrs": {"equation": "i,j->ij"}})");
  EXPECT_EQ(r.stage.mostVariables, 4);
  expectDim(r.dim("x", 0), {0, 1, 2, 3}, {1, 1, 1, 27});
  EXPECT_EQ(r.dim("o", 1).size(), 16);
}

TEST(Reduction, KeptDimensions) {
  const auto strided = [](const ReductionOptions& options) {
    return mirrored(R"("x": {"shape": [12, 100], "kind": "input"})", R"("o": {"shape": [4, 100]})",
                    R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "step": 3}})",
                    options);
  };
  const auto r = strided({});
  EXPECT_EQ(r.dim("x", 0), ops::ReducedDim::whole(12));
  expectDim(r.dim("x", 1), {0}, {100});
  ReductionOptions small;
  small.maxKeptDimension = 11;
  try {
    strided(small);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_STREQ(error.what(), "a dimension of size 12 would have to be kept whole (limit 11)");
  }
}

// m index variables over one piece: m positions explicit; twice as many and one for all others
// where it is summed.
TEST(Reduction, PositionsThatOneSummandInvolvesAreKeptApart) {
  const auto scores = [](const char* equation, const char* shape,
                         const ReductionOptions& options = {}) {
    return mirrored(
        R"("x": {"shape": [70, 90], "kind": "input"})",
        std::string(R"("o": {"shape": )") + shape + "}",
        std::string(R"({"op": "einsum", "in": ["x", "x"], "out": ["o"], "attrs": {"equation": ")") +
            equation + "\"}}",
        options);
  };
  const auto two = scores("id,jd->ij", "[70, 70]");
  expectDim(two.dim("x", 0), {0, 1}, {1, 69});
  expectDim(two.dim("x", 1), {0, 1, 2}, {1, 1, 88});
  EXPECT_EQ(two.stage.mostVariables, 2);
  // Of [i, j]: equal ones, and different ones in one order.
  const auto orbits = [](const auto& r) {
    std::vector<std::vector<char>> claimed;
    for (const auto& first : r.stage.firstOfOrbit) {
      if (!first.empty()) claimed.push_back(first);
    }
    return claimed;
  };
  EXPECT_EQ(orbits(two), (std::vector<std::vector<char>>{{1, 1, 0, 0}}));
  const auto summed = scores("id,jd->i", "[70]");
  expectDim(summed.dim("x", 0), {0, 1, 2, 3, 4}, {1, 1, 1, 1, 66});
  EXPECT_EQ(orbits(summed), (std::vector<std::vector<char>>{{1, 0, 0, 0, 0}}));
  ReductionOptions more;
  more.extraSummands = 2;
  expectDim(scores("id,jd->ij", "[70, 70]", more).dim("x", 0), {0, 1, 2, 3, 4, 5},
            {1, 1, 1, 1, 1, 65});
  expectDim(scores("id,jd->ij", "[70, 70]", more).dim("x", 1), {0, 1, 2, 3, 4}, {1, 1, 1, 1, 86});
  const auto three = mirrored(
      R"("x": {"shape": [70], "kind": "input"})", R"("o": {"shape": []})",
      R"({"op": "einsum", "in": ["x", "x", "x"], "out": ["o"], "attrs": {"equation": "i,j,k->"}})");
  expectDim(three.dim("x", 0), {0, 1, 2, 3, 4, 5, 6}, {1, 1, 1, 1, 1, 1, 64});
}

TEST(Reduction, AMaskMayBeReducedForAProofOnly) {
  const auto masked = [](bool keep) {
    ReductionOptions options;
    options.keepAbsolute = keep;
    return mirrored(
        R"("x": {"shape": [1, 1, 60, 60], "kind": "input"}, "t": {"shape": [1, 60], "kind": "input",
            "dtype": "int64"})",
        R"("m": {"shape": [1, 1, 60, 60]}, "o": {"shape": [1, 1, 60, 60]})",
        R"({"op": "create_mask", "in": ["t"], "out": ["m"]},
            {"op": "apply_mask", "in": ["x", "m"], "out": ["o"]})",
        options);
  };
  EXPECT_TRUE(masked(false).stage.reducesAbsolute);
  EXPECT_TRUE(masked(false).dim("x", 3).reduced());
  EXPECT_FALSE(masked(true).stage.reducesAbsolute);
  EXPECT_EQ(masked(true).dim("x", 3), ops::ReducedDim::whole(60));
}

TEST(Reduction, IndexValuesThatTheTablesTellApart) {
  const auto table = [](int lo, int hi) {
    return R"({"op": "embedding", "in": ["i", "w"], "out": ["o"], "attrs": {"start": )" +
           std::to_string(lo) + R"(, "stop": )" + std::to_string(hi) + "}}";
  };
  const auto r = mirrored(
      R"("i": {"shape": [3], "kind": "input", "dtype": "int64"},
          "w": {"shape": [20, 2], "kind": "parameter"})",
      R"("o": {"shape": [3, 2]})", table(100, 120));
  const List& values =
      r.stage.values[static_cast<std::size_t>(test::findIn(r.cut.stage, *r.cut.problem, "i"))];
  EXPECT_TRUE(std::find(values.begin(), values.end(), 100) != values.end());
  for (const std::int64_t v : values) EXPECT_LT(v, 120);
}

TEST(Reduction, TooLarge) {
  ReductionOptions options;
  options.maxElements = 20;
  EXPECT_THROW(
      mirrored(R"("x": {"shape": [6, 4], "kind": "input"})", R"("o": {"shape": [8, 3]})",
               R"({"op": "view", "in": ["x"], "out": ["o"], "attrs": {"size": [8, 3]}})", options),
      Unsupported);
  // A shift by one cuts a dimension of half a million into single positions.
  const auto slice = [](int lo) {
    return R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "start": )" +
           std::to_string(lo) + R"(, "stop": )" + std::to_string(lo + 500000) + "}}";
  };
  const char* const o = R"("o": {"shape": [500000]})";
  try {
    reduced(oneRank(R"("x": {"shape": [500001], "kind": "input"})", o, slice(0), o, slice(1)), 1);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("bounds that do not line up"), std::string::npos)
        << error.what();
  }
}

// ---- collapsed axes ----

// x [dp * block, 3] cut by rows over an unnamed axis; `model` and `plan` make o [dp * block, 3]
// from it.
Draft rowsOver(int dp, const std::string& model, const std::string& plan,
               const std::string& extra = "") {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [0, 3], "kind": "input"}, "o": {"shape": [0, 3]})" + extra +
          R"(}, "nodes": [], "outputs": ["o"]})",
      R"({"mesh": [["dp", 0]], "programs": [{"tensors": {"x": {"shape": [10, 3], "kind": "input"},
          "o": {"shape": [10, 3]}}, "nodes": []}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 10], [0, 3]], "step": {"dp": [10, 0]},
                             "parts": [{"local": "x"}]}]},
                                        {"tensor": "o", "role": "output",
                                         "shards": [{"box": [[0, 10], [0, 3]],
                                         "step": {"dp": [10, 0]}, "parts": [{"local": "o"}]}]}]})");
  d.model["tensors"]["x"]["shape"][0] = d.model["tensors"]["o"]["shape"][0] = 10 * dp;
  d.model["nodes"] = Json::parse("[" + model + "]");
  d.program(0)["nodes"] = Json::parse("[" + plan + "]");
  d.plan["mesh"][0][1] = dp;
  return d;
}
const char* const kNegate = R"({"op": "neg", "in": ["x"], "out": ["o"]})";

TEST(Reduction, BlocksOfACollapsedAxisHaveWeights) {
  const auto r = reduced(rowsOver(8, kNegate, kNegate), 1);
  ASSERT_EQ(r.cut.stage.collapsedAxes.size(), 1u);
  expectDim(r.dim("x", 0), {0, 10, 20}, {10, 10, 60});  // the third block stands for six
  expectDim(r.dim("x", 0, 0), {0}, {10});
}

// x [2 * (8 * 10 + rest), 3]: rows over tp, of which there are two, and within a rank's over dp;
// `rest` rows of each tp rank are nobody's part.
Draft rowsWithinRows(int rest) {
  const int rows = 80 + rest;
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [0, 3], "kind": "input"}, "o": {"shape": [0, 3]}},
          "nodes": [{"op": "neg", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["dp", 8], ["tp", 2]], "programs": [{"tensors": {"x": {"shape": [10, 3],
          "kind": "input"}, "o": {"shape": [10, 3]}}, "nodes": [{"op": "neg", "in": ["x"],
          "out": ["o"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 10], [0, 3]],
           "parts": [{"local": "x"}]}]},
                      {"tensor": "o", "role": "output", "shards": [{"box": [[0, 10], [0, 3]],
                       "parts": [{"local": "o"}]}]}]})");
  d.model["tensors"]["x"]["shape"][0] = d.model["tensors"]["o"]["shape"][0] = 2 * rows;
  for (int e : {0, 1}) {
    d.entry(e)["shards"][0]["step"] = {{"dp", {10, 0}}, {"tp", {rows, 0}}};
    if (rest > 0) {  // held by all ranks of a tp coordinate
      const std::string other = e == 0 ? "x" : "o";
      d.tensor(0, other + "r") = Json{{"shape", {rest, 3}}};
      if (e == 0) d.tensor(0, "xr")["kind"] = "input";
      d.entry(e)["shards"].push_back({{"box", {{80, rows}, {0, 3}}},
                                      {"step", {{"tp", {rows, 0}}}},
                                      {"parts", Json::array({{{"local", other + "r"}}})}});
    }
  }
  if (rest > 0)
    d.program(0)["nodes"].push_back(Json::parse(R"({"op": "neg", "in": ["xr"], "out": ["or"]})"));
  return d;
}

TEST(Reduction, BlocksInsideAnotherAxisRepeat) {
  auto r = reduced(rowsWithinRows(0), 1);
  ASSERT_EQ(r.cut.stage.collapsedAxes.size(), 1u);
  expectDim(r.dim("x", 0), {0, 10, 20, 80, 90, 100}, {10, 10, 60, 10, 10, 60});
  r = reduced(rowsWithinRows(5), 1);
  ASSERT_EQ(r.cut.stage.collapsedAxes.size(), 1u);
  expectDim(r.dim("x", 0), {0, 10, 20, 80, 85, 95, 105, 165}, {10, 10, 60, 5, 10, 10, 60, 5});
}

void expectNeedsRefinement(const Draft& d, const std::string& why) {
  try {
    reduced(d, 1);
    FAIL() << "expected: " << why;
  } catch (const NeedsRefinement& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
  CutOptions options;
  options.collapse = false;  // with all coordinates there is nothing to object to
  const auto c = test::cut(d, 1, options);
  EXPECT_NO_THROW(reduceStage(c.stage, {}));
}

TEST(Reduction, WhatTellsCoordinatesApart) {
  expectNeedsRefinement(
      rowsOver(8,
               R"({"op": "slice", "in": ["x"], "out": ["f"], "attrs": {"dim": 0, "stop": 1}},
              {"op": "add", "in": ["x", "f"], "out": ["o"]})",
               kNegate, R"(, "f": {"shape": [1, 3]})"),
      "an operator takes a stretch");
  expectNeedsRefinement(
      rowsOver(8,
               R"({"op": "slice", "in": ["x"], "out": ["f"], "attrs": {"dim": 0, "step": 20}},
              {"op": "sum", "in": ["f"], "out": ["s"]}, {"op": "add", "in": ["x", "s"],
              "out": ["o"]})",
               kNegate, R"(, "f": {"shape": [4, 3]}, "s": {"shape": []})"),
      "must be kept whole");
  // x itself is cut by another step in a second assumption.
  Draft d = rowsOver(8, kNegate, kNegate);
  d.tensor(0, "x2") = Json::parse(R"({"shape": [5, 3], "kind": "input"})");
  d.program(0)["nodes"] = Json::parse(
      R"([{"op": "sum", "in": ["x2"], "out": ["s"]}, {"op": "add", "in": ["x", "s"],
          "out": ["o"]}])");
  d.tensor(0, "s") = Json::parse(R"({"shape": []})");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "x", "role": "input", "shards": [{"box": [[0, 5], [0, 3]],
          "step": {"dp": [5, 0]}, "parts": [{"local": "x2"}]}]})"));
  expectNeedsRefinement(d, "different steps");
  // A box that every coordinate holds, over some of the blocks.
  d.entry(2)["shards"][0]["step"] = Json::object();
  expectNeedsRefinement(d, "covers some blocks");
  // A box that reaches into the next coordinate's block.
  d = rowsOver(8, kNegate, kNegate);
  d.entry(0)["shards"][0]["box"] = {{5, 15}, {0, 3}};
  d.model["tensors"]["x"]["shape"][0] = 85;
  d.model["tensors"]["o"]["shape"][0] = 85;
  d.entry(1)["shards"].push_back(Json::parse(
      R"({"box": [[75, 85], [0, 3]], "step": {"dp": [0, 0]}, "parts": [{"local": "o"}]})"));
  EXPECT_THROW(reduced(d, 1), NeedsRefinement);
}

// Rows over dp, of which the last coordinate has a program and lineage of its own.
TEST(Reduction, TheBlockOfACoordinateThatIsAClassByItself) {
  Draft d = rowsOver(8, kNegate, kNegate);
  d.plan["version"] = 2;
  d.plan["programs"].push_back(d.program(0));
  d.program(0)["at"] = Json::parse(R"({"dp": [0, 7]})");
  d.program(1)["at"] = {{"dp", 7}};
  d.tensor(1, "u") = Json::parse(R"({"shape": [10, 3]})");
  d.program(1)["nodes"].push_back(Json::parse(R"({"op": "neg", "in": ["o"], "out": ["u"]})"));
  for (int e : {0, 1}) {
    Json own = d.entry(e)["shards"][0];
    d.entry(e)["shards"][0]["parts"][0]["at"] = d.program(0)["at"];
    own.erase("step");
    own["box"] = {{70, 80}, {0, 3}};
    own["parts"][0]["at"] = d.program(1)["at"];
    d.entry(e)["shards"].push_back(own);
  }
  const auto r = reduced(d, 1);
  ASSERT_EQ(r.cut.stage.collapsedAxes.size(), 1u);
  EXPECT_EQ(r.cut.stage.collapsedAxes[0].alone, std::vector<std::int32_t>{7});
  expectDim(r.dim("x", 0), {0, 10, 20, 70}, {10, 10, 50, 10});
  // A half of it, and one that reaches beyond it.
  d.entry(0)["shards"].push_back(
      Json::parse(R"({"box": [[72, 75], [0, 3]], "parts": [{"local": "v", "at": {"dp": 7}}]})"));
  d.tensor(1, "v") = Json::parse(R"({"shape": [3, 3], "kind": "input"})");
  EXPECT_NO_THROW(reduced(d, 1));
  for (const int low : {68, 60}) {  // of which coordinate 6 has some, all
    d.entry(0)["shards"][1]["box"][0] = {low, low + 10};
    expectNeedsRefinement(d, "covers some blocks");
  }
}

TEST(Reduction, WhatTellsRepeatedBlocksApart) {
  // The second tp rank's rows are no multiple of a period away.
  Draft d = rowsWithinRows(0);
  for (int e : {0, 1}) {
    d.entry(e)["shards"][0]["step"]["tp"] = {83, 0};
    d.entry(e)["shards"].push_back(
        {{"box", {{80, 83}, {0, 3}}}, {"parts", Json::array({{{"local", e == 0 ? "xr" : "or"}}})}});
  }
  d.model["tensors"]["x"]["shape"][0] = d.model["tensors"]["o"]["shape"][0] = 163;
  d.tensor(0, "xr") = Json::parse(R"({"shape": [3, 3], "kind": "input"})");
  d.tensor(0, "or") = Json::parse(R"({"shape": [3, 3]})");
  d.program(0)["nodes"].push_back(Json::parse(R"({"op": "neg", "in": ["xr"], "out": ["or"]})"));
  expectNeedsRefinement(d, "does not lie within its coordinate's block");
  // A box that holds one period's blocks.
  d = rowsWithinRows(0);
  d.tensor(0, "w") = Json::parse(R"({"shape": [80, 3], "kind": "input"})");
  d.tensor(0, "v") = Json::parse(R"({"shape": [80, 3]})");
  d.program(0)["nodes"].push_back(Json::parse(R"({"op": "neg", "in": ["w"], "out": ["v"]})"));
  for (int e : {0, 1})
    d.entry(e)["shards"].push_back({{"box", {{0, 80}, {0, 3}}},
                                    {"step", {{"tp", {80, 0}}}},
                                    {"parts", Json::array({{{"local", e == 0 ? "w" : "v"}}})}});
  expectNeedsRefinement(d, "covers some blocks");
}

// Rows over dp and within a rank's over tp; a second part of x, beside all those blocks, moves
// along tp alone.
TEST(Reduction, LineageThatMovesBesideBlocks) {
  Draft d = rowsWithinRows(0);
  d.plan["mesh"] = Json::parse(R"([["dp", 8], ["tp", 8]])");
  for (int e : {0, 1}) {
    d.entry(e)["shards"][0]["step"] = Json::parse(R"({"dp": [80, 0], "tp": [10, 0]})");
    d.entry(e)["shards"].push_back({{"box", {{640, 642}, {0, 3}}},
                                    {"step", {{"tp", {2, 0}}}},
                                    {"parts", Json::array({{{"local", e == 0 ? "w" : "v"}}})}});
  }
  d.tensor(0, "w") = Json::parse(R"({"shape": [2, 3], "kind": "input"})");
  d.tensor(0, "v") = Json::parse(R"({"shape": [2, 3]})");
  d.program(0)["nodes"].push_back(Json::parse(R"({"op": "neg", "in": ["w"], "out": ["v"]})"));
  d.model["tensors"]["x"]["shape"][0] = d.model["tensors"]["o"]["shape"][0] = 656;
  expectNeedsRefinement(d, "different steps");
  for (int e : {0, 1}) {
    d.entry(e)["shards"][1]["box"][0] = {640, 650};
    d.entry(e)["shards"][1]["step"]["tp"] = {10, 0};
  }
  d.model["tensors"]["x"]["shape"][0] = d.model["tensors"]["o"]["shape"][0] = 720;
  d.tensor(0, "w")["shape"] = d.tensor(0, "v")["shape"] = {10, 3};
  expectNeedsRefinement(d, "moves beside the blocks");
}

TEST(Reduction, ASummandMayInvolveFewCoordinates) {
  const std::string two =
      R"({"op": "einsum", "in": ["x", "x"], "out": ["s"], "attrs": {"equation": "ia,jb->"}},
          {"op": "add", "in": ["x", "s"], "out": ["o"]})";
  expectNeedsRefinement(rowsOver(8, two, kNegate, R"(, "s": {"shape": []})"),
                        "a summand involves more coordinates");
  const std::string one =
      R"({"op": "sum", "in": ["x"], "out": ["s"]}, {"op": "add", "in": ["x", "s"], "out": ["o"]})";
  EXPECT_NO_THROW(reduced(rowsOver(8, one, kNegate, R"(, "s": {"shape": []})"), 1));
}

// ---- every stage of the real plans ----

// ReducedDim's own invariants, and weights that add up: without them a mean or a sum would be over
// another number of positions.
TEST(Reduction, OfRealPlansKeepsTheFullSizeInItsWeights) {
  bool any = false;
  for (const std::string& name : test::planNames()) {
    const auto problem = test::readShared(name);
    if (!problem) continue;
    any = true;
    const PlanIndex planIndex(*problem);
    std::set<std::string> forms;
    std::size_t uncollapsed = 0;
    for (std::size_t e = 0; e < problem->plan.lineage.size(); ++e) {
      if (problem->plan.lineage[e].role == Role::kInput) continue;
      const Stage stage = cutStage(planIndex, EntryId(e), {});
      if (!forms.insert(canonicalForm(stage)).second) continue;
      ReducedStage result;
      try {
        result = reduceStage(stage, {});
      } catch (const NeedsRefinement&) {
        ++uncollapsed;
        continue;
      } catch (const Unsupported& error) {
        FAIL() << name << " entry " << e << ": " << error.what();
      }
      ASSERT_EQ(result.dims.size(), stage.tensors.size());
      for (std::size_t t = 0; t < stage.tensors.size(); ++t) {
        const Shape& shape = stage.tensors[t].info.shape;
        ASSERT_EQ(result.dims[t].size(), shape.size());
        for (std::size_t d = 0; d < shape.size(); ++d) {
          const ops::ReducedDim& dim = *result.dims[t][d];
          ASSERT_EQ(dim.full, shape[d]);
          ASSERT_EQ(dim.position.size(), dim.weight.size());
          ASSERT_EQ(dim.position.at(0), 0);
          std::int64_t total = 0;
          for (std::size_t i = 0; i < dim.position.size(); ++i) {
            ASSERT_GE(dim.weight[i], 1);
            ASSERT_TRUE(i == 0 || dim.position[i - 1] < dim.position[i]);
            total += dim.weight[i];
          }
          ASSERT_LT(dim.position.back(), dim.full);
          ASSERT_EQ(total, dim.full)
              << name << " entry " << e << " tensor " << t << " dimension " << d;
        }
      }
    }
    // A stage without its collapsed axes has as many coordinates as the mesh: few of them are
    // affordable on thousands of ranks.
    EXPECT_LE(uncollapsed * 10, forms.size())
        << name << ": " << uncollapsed << " of " << forms.size()
        << " stages lost their collapsed axes";
  }
  if (!any) GTEST_SKIP() << "no plans in " << test::sharedPlans();
}

}  // namespace
}  // namespace shardproof
