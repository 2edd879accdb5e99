// SPDX-License-Identifier: Apache-2.0
// Which dimensions run together, into which factors views take them apart, and what operators say
// about them.
#include "shape_reduction/dimension_graph.h"

#include <gtest/gtest.h>

#include "ops/registry.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using Sizes = std::vector<std::int64_t>;
using test::Draft;
using test::oneRank;

struct Graphed {
  test::Cut cut;
  DimensionGraph graph;
  std::int32_t group(const std::string& name, std::size_t dim, std::int32_t rank = -1) const {
    return graph.dimOfTensor[static_cast<std::size_t>(
        test::findIn(cut.stage, *cut.problem, name, rank))][dim];
  }
  std::vector<std::int32_t> lines(const std::string& name, std::size_t dim,
                                  std::int32_t rank = -1) const {
    return graph.linesOfGroup[static_cast<std::size_t>(group(name, dim, rank))];
  }
  const Line& line(std::int32_t l) const { return graph.lines[static_cast<std::size_t>(l)]; }
  Sizes sizes(const std::string& name, std::size_t dim, std::int32_t rank = -1) const {
    Sizes list;
    for (const std::int32_t l : lines(name, dim, rank)) list.push_back(line(l).size);
    return list;
  }
};
Graphed graphed(const Draft& d, std::int32_t entry) {
  Graphed g{test::cut(d, entry), {}};
  g.graph = buildDimensionGraph(g.cut.stage);
  return g;
}
// The same nodes on both sides.
Graphed mirrored(const std::string& inputs, const std::string& tensors, const std::string& nodes) {
  const Draft d = oneRank(inputs, tensors, nodes, tensors, nodes);
  return graphed(d, test::lastEntry(d));
}

TEST(DimensionGraph, DimensionsOfOneOperatorRunTogetherOnBothSides) {
  const auto g = mirrored(
      R"("x": {"shape": [5, 3], "kind": "input"}, "w": {"shape": [7, 3], "kind": "parameter"})",
      R"("o": {"shape": [5, 7]})", R"({"op": "linear", "in": ["x", "w"], "out": ["o"]})");
  EXPECT_EQ(g.group("x", 0), g.group("o", 0));
  EXPECT_EQ(g.group("w", 0), g.group("o", 1));
  EXPECT_EQ(g.group("x", 1), g.group("w", 1));
  EXPECT_EQ(g.group("x", 0), g.group("x", 0, 0));  // through the lineage
  EXPECT_EQ(g.group("o", 1), g.group("o", 1, 0));
  EXPECT_NE(g.group("x", 0), g.group("x", 1));
  EXPECT_TRUE(g.line(g.lines("x", 1)[0]).summed);
  EXPECT_FALSE(g.line(g.lines("x", 0)[0]).summed);
  EXPECT_TRUE(g.graph.segments.empty());
}

TEST(DimensionGraph, AViewTakesDimensionsApartIntoFactors) {
  const auto g = mirrored(R"("x": {"shape": [24], "kind": "input"})",
                          R"("v": {"shape": [6, 4]}, "o": {"shape": [2, 12]})",
                          R"({"op": "view", "in": ["x"], "out": ["v"], "attrs": {"size": [6, 4]}},
          {"op": "view", "in": ["v"], "out": ["o"], "attrs": {"size": [2, 12]}})");
  EXPECT_EQ(g.sizes("x", 0), (Sizes{2, 3, 4}));
  EXPECT_EQ(g.sizes("v", 0), (Sizes{2, 3}));
  EXPECT_EQ(g.sizes("v", 1), (Sizes{4}));
  EXPECT_EQ(g.sizes("o", 0), (Sizes{2}));
  EXPECT_EQ(g.sizes("o", 1), (Sizes{3, 4}));
  EXPECT_EQ(g.lines("x", 0)[2], g.lines("v", 1)[0]);
  EXPECT_EQ(g.lines("o", 1)[1], g.lines("v", 1)[0]);
  EXPECT_FALSE(g.line(g.lines("v", 1)[0]).keep);
}

TEST(DimensionGraph, WithoutCommonFactorsADimensionIsFlat) {
  const auto g =
      mirrored(R"("x": {"shape": [6, 4], "kind": "input"})", R"("o": {"shape": [8, 3]})",
               R"({"op": "view", "in": ["x"], "out": ["o"], "attrs": {"size": [8, 3]}})");
  for (const auto& [name, dim] : {std::pair{"x", 0}, {"x", 1}, {"o", 0}, {"o", 1}}) {
    const auto lines = g.lines(name, static_cast<std::size_t>(dim));
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(g.line(lines[0]).keep);
  }
}

TEST(DimensionGraph, PairsStayTogether) {
  const std::string tensors = R"("o": {"shape": [1, 5, 2, 8]}, "k2": {"shape": [1, 5, 2, 8]})";
  const auto g = mirrored(
      R"("q": {"shape": [1, 5, 2, 8], "kind": "input"}, "k": {"shape": [1, 5, 2, 8],
          "kind": "input"}, "f": {"shape": [5, 4], "kind": "input", "dtype": "complex64"})",
      tensors, R"({"op": "apply_rotary_emb", "in": ["q", "k", "f"], "out": ["o", "k2"]})");
  EXPECT_EQ(g.sizes("q", 3), (Sizes{4, 2}));
  EXPECT_TRUE(g.line(g.lines("q", 3)[1]).keep);
  EXPECT_FALSE(g.line(g.lines("q", 3)[0]).keep);
  EXPECT_EQ(g.lines("f", 1)[0], g.lines("q", 3)[0]);
}

TEST(DimensionGraph, KeptAndAbsoluteDimensions) {
  const auto step =
      mirrored(R"("x": {"shape": [8, 3], "kind": "input"})", R"("o": {"shape": [4, 3]})",
               R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "step": 2}})");
  EXPECT_TRUE(step.line(step.lines("x", 0)[0]).keep);
  EXPECT_TRUE(step.line(step.lines("o", 0)[0]).keep);
  EXPECT_FALSE(step.line(step.lines("x", 1)[0]).keep);
  const auto mask = mirrored(
      R"("x": {"shape": [1, 1, 6, 6], "kind": "input"}, "t": {"shape": [1, 6], "kind": "input",
          "dtype": "int64"})",
      R"("m": {"shape": [1, 1, 6, 6]}, "o": {"shape": [1, 1, 6, 6]})",
      R"({"op": "create_mask", "in": ["t"], "out": ["m"]}, {"op": "apply_mask", "in": ["x", "m"],
          "out": ["o"]})");
  EXPECT_TRUE(mask.line(mask.lines("x", 3)[0]).absolute);
  EXPECT_FALSE(mask.line(mask.lines("x", 3)[0]).keep);
  const auto constant = mirrored(
      R"("x": {"shape": [3], "kind": "input"}, "c": {"shape": [3], "kind": "constant",
          "value": [1, 2, 3]})",
      R"("o": {"shape": [3]})", R"({"op": "add", "in": ["x", "c"], "out": ["o"]})");
  EXPECT_TRUE(constant.line(constant.lines("x", 0)[0]).keep);
  const auto fill = mirrored(
      R"("x": {"shape": [3], "kind": "input"}, "c": {"shape": [3], "kind": "constant",
          "value": 2})",
      R"("o": {"shape": [3]})", R"({"op": "add", "in": ["x", "c"], "out": ["o"]})");
  EXPECT_FALSE(fill.line(fill.lines("x", 0)[0]).keep);
}

TEST(DimensionGraph, StretchesBecomeSegments) {
  const auto g = mirrored(
      R"("x": {"shape": [9], "kind": "input"})", R"("o": {"shape": [4]})",
      R"({"op": "slice", "in": ["x"], "out": ["o"], "attrs": {"dim": 0, "start": 3, "stop": 7}})");
  ASSERT_EQ(g.graph.segments.size(), 1u);  // said by both sides, kept once
  const Segment& s = g.graph.segments[0];
  EXPECT_EQ(s.lineA, g.lines("x", 0)[0]);
  EXPECT_EQ(s.loA, 3);
  EXPECT_EQ(s.lineB, g.lines("o", 0)[0]);
  EXPECT_EQ(s.loB, 0);
  EXPECT_EQ(s.length, 4);
  EXPECT_FALSE(s.fromLineage);
}

TEST(DimensionGraph, BlocksOfLineageAreToldFromStretchesOfOperators) {
  const auto g = graphed(test::pipeline(), 3);
  ASSERT_FALSE(g.graph.segments.empty());
  for (const Segment& s : g.graph.segments) EXPECT_TRUE(s.fromLineage);
}

// A mask that is drawn for the logical tensor's positions: what a rank draws for its own would be
// another.
TEST(DimensionGraph, FollowsLogicalPosition) {
  const char* const inputs = R"("x": {"shape": [4], "kind": "input"})";
  const char* const tensors = R"("o": {"shape": [4]})";
  const auto dropout = [](const char* p) {
    return std::string(
               R"({"op": "dropout", "in": ["x"], "out": ["o"], "attrs": {"seed": 1, "p": )") +
           p + "}}";
  };
  EXPECT_TRUE(ops::Registry::instance()
                  .at(ops::Registry::instance().find("dropout"))
                  .followsLogicalPosition);
  EXPECT_TRUE(ops::Registry::instance()
                  .at(ops::Registry::instance().find("dropout_backward"))
                  .followsLogicalPosition);
  EXPECT_NO_THROW(mirrored(inputs, tensors, dropout("0")));
  EXPECT_NO_THROW(mirrored(inputs, tensors, dropout("1")));
}

TEST(DimensionGraph, ValuesOfIndicesFollowTheirTable) {
  const std::string nodes = R"({"op": "embedding", "in": ["i", "w"], "out": ["o"]})";
  const auto g = mirrored(
      R"("i": {"shape": [3], "kind": "input", "dtype": "int64"},
          "w": {"shape": [10, 2], "kind": "parameter"})",
      R"("o": {"shape": [3, 2]})", nodes);
  const auto i = static_cast<std::size_t>(test::findIn(g.cut.stage, *g.cut.problem, "i"));
  ASSERT_GE(g.graph.valuesOfTensor[i], 0);
  EXPECT_EQ(g.graph.groupSize[static_cast<std::size_t>(g.graph.valuesOfTensor[i])],
            kUnboundedValues);
  const auto w = static_cast<std::size_t>(test::findIn(g.cut.stage, *g.cut.problem, "w"));
  EXPECT_EQ(g.graph.valuesOfTensor[w], -1);
}

}  // namespace
}  // namespace shardproof
