// SPDX-License-Identifier: Apache-2.0
// Which coordinates of an axis a plan does not tell apart.
#include "plan/symmetry_classes.h"

#include <gtest/gtest.h>

#include "plan/plan_index.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;
using Classes = std::vector<std::vector<std::int32_t>>;

// Every rank of a mesh a=4 x b=2 squares its x; all have the same program.
Draft squares() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "o": {"shape": [4]}},
          "nodes": [{"op": "square", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["a", 4], ["b", 2]], "programs": [{"tensors": {"x": {"shape": [4],
          "kind": "input"}, "o": {"shape": [4]}}, "nodes": [{"op": "square", "in": ["x"],
          "out": ["o"]}]}],
                         "lineage": [{"tensor": "x", "role": "input",
                          "shards": [{"box": [[0, 4]], "parts": [{"local": "x"}]}]},
                                     {"tensor": "o", "role": "output",
                                      "shards": [{"box": [[0, 4]],
                                       "parts": [{"local": "o"}]}]}]})");
}

// A program for each coordinate of a, and one for the rank (2, 1) alone.
Draft oneRankApart() {
  Draft d = squares();
  const Json same = d.program(0);
  d.plan["programs"] = Json::array();
  for (const char* at : {R"({"a": 0})", R"({"a": 1})", R"({"a": 3})", R"({"a": 2, "b": 0})",
                         R"({"a": 2, "b": 1})"}) {
    d.plan["programs"].push_back(same);
    d.plan["programs"].back()["at"] = Json::parse(at);
  }
  return d;
}

Classes classesOf(const Draft& d, std::int32_t axis) {
  const auto problem = test::read(d);
  return PlanIndex(*problem).symmetry().classes(axis);
}

TEST(SymmetryClasses, WithoutNamesAllAre) {
  EXPECT_EQ(classesOf(squares(), 0), (Classes{{0, 1, 2, 3}}));
  EXPECT_EQ(classesOf(squares(), 1), (Classes{{0, 1}}));
}

// Members run one program and are unlike all the same: by their places.
TEST(SymmetryClasses, PlacesInAGroupTellApartWhereTheyMean) {
  const auto with = [](const char* node) {
    Draft d = squares();
    d.program(0)["tensors"]["p"] = Json::parse(R"({"shape": [4]})");
    d.program(0)["nodes"].push_back(Json::parse(node));
    return d;
  };
  const Classes apart{{0}, {1}, {2}, {3}};
  Draft d = with(
      R"({"op": "collective_permute", "in": ["x"], "out": ["p"], "comm": "c", "group": ["a"],
          "pairs": []})");
  EXPECT_EQ(classesOf(d, 0), apart);
  EXPECT_EQ(classesOf(d, 1), (Classes{{0, 1}}));
  d = with(
      R"({"op": "reduce_scatter", "in": ["x"], "out": ["p"], "comm": "c", "group": ["a"],
          "attrs": {"dim": 0}, "sizes": [1, 2, 1, 0]})");
  EXPECT_EQ(classesOf(d, 0), (Classes{{0, 2}, {1}, {3}}));
  EXPECT_EQ(classesOf(d, 1), (Classes{{0, 1}}));
  const auto problem = test::read(d);
  const PlanIndex index(*problem);
  std::vector<ProgramId> programOfRank;
  for (const Rank r : firstIds<Rank>(8)) programOfRank.push_back(index.programOf(r));
  EXPECT_EQ(SymmetryClasses(problem->plan, index.mesh(), programOfRank, true, true).classes(0),
            apart);
  d = with(
      R"({"op": "all_to_all", "in": ["x"], "out": ["p"], "comm": "c", "group": ["a"],
          "attrs": {"idim": 0, "odim": 0}, "sizes": [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1],
          [1, 1, 1, 1]]})");
  EXPECT_EQ(classesOf(d, 0), apart);
  d = with(
      R"({"op": "reduce_scatter", "in": ["x"], "out": ["p"], "comm": "c", "group": ["a"],
          "attrs": {"dim": 0}})");
  EXPECT_EQ(classesOf(d, 0), (Classes{{0, 1, 2, 3}}));
}

TEST(SymmetryClasses, ProgramsWithTheSameContentDoNotTellApart) {
  EXPECT_EQ(classesOf(oneRankApart(), 0), (Classes{{0, 1, 2, 3}}));
  EXPECT_EQ(classesOf(oneRankApart(), 1), (Classes{{0, 1}}));
}

TEST(SymmetryClasses, ContentDoes) {
  const auto changed = [](const char* what, auto&& change) {
    Draft d = oneRankApart();
    change(d.program(4));
    EXPECT_EQ(classesOf(d, 0), (Classes{{0, 1, 3}, {2}})) << what;
    EXPECT_EQ(classesOf(d, 1), (Classes{{0}, {1}})) << what;
  };
  changed("operator", [](Json& p) {
    p["nodes"][0] = {{"op", "mul"}, {"in", {"x", "x"}}, {"out", {"o"}}};
  });
  changed("attribute", [](Json& p) {
    p["nodes"][0] = {{"op", "pow"}, {"in", {"x"}}, {"out", {"o"}}, {"attrs", {{"scalar", 2}}}};
  });
  changed("a tensor more", [](Json& p) {
    p["tensors"]["y"] = {{"shape", {1}}, {"kind", "input"}};
  });
  changed("kind", [](Json& p) { p["tensors"]["x"]["kind"] = "parameter"; });
}

TEST(SymmetryClasses, SourceLocationsAreNotContent) {
  Draft d = oneRankApart();
  d.program(4)["nodes"][0]["loc"] = "elsewhere.py:1";
  EXPECT_EQ(classesOf(d, 0).size(), 1u);
}

TEST(SymmetryClasses, LineagePartsTellApart) {
  Draft d = squares();
  d.entry(1)["shards"][0]["parts"][0]["at"] = {{"a", 1}};
  EXPECT_EQ(classesOf(d, 0), (Classes{{0, 2, 3}, {1}}));
  EXPECT_EQ(classesOf(d, 1), (Classes{{0, 1}}));
}

TEST(SymmetryClasses, RootsAndListedGroupsTellApart) {
  Draft d = squares();
  d.program(0)["nodes"][0] = Json::parse(
      R"({"op": "all_reduce", "in": ["x"], "out": ["o"], "comm": "c",
          "group_at": [{"a": 0}, {"a": 1}, {"a": 2}, {"a": 3}]})");
  EXPECT_EQ(classesOf(d, 0), (Classes{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(classesOf(d, 1), (Classes{{0, 1}}));
}

TEST(SymmetryClasses, RanksThatStandForTheOthers) {
  Draft d = oneRankApart();
  d.program(4)["nodes"][0] = {{"op", "mul"}, {"in", {"x", "x"}}, {"out", {"o"}}};
  const auto problem = test::read(d);
  EXPECT_EQ(PlanIndex(*problem).representativeRanks(), (test::ids<Rank>({0, 1, 4, 5})));
}

}  // namespace
}  // namespace shardproof
