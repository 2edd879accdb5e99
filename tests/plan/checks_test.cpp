// SPDX-License-Identifier: Apache-2.0
// Every kind of defect that shows before any solving, one at a time in a plan that is otherwise
// right, with the ranks and nodes it names.
#include "plan/checks.h"
#include "ops/collectives.h"

#include <gtest/gtest.h>

#include "plan/defects.h"

namespace shardproof {
namespace {

using test::defectsOf;
using test::Draft;
using test::Json;
using test::Pointers;
using test::pointersOf;
using test::Ranks;

// The first defect, with what its message must contain.
void expectDefect(const Draft& d, DefectKind kind, const Ranks& ranks, const Pointers& pointers,
                  const std::string& message) {
  const auto defects = defectsOf(d);
  ASSERT_FALSE(defects.empty()) << "expected: " << message;
  const Defect& first = defects.front();
  EXPECT_EQ(first.kind, kind) << toString(first.kind) << ": " << first.message;
  EXPECT_EQ(first.ranks, ranks) << first.message;
  EXPECT_EQ(pointersOf(first), pointers) << first.message;
  EXPECT_NE(first.message.find(message), std::string::npos) << first.message;
}

// Each of two ranks makes `result` from x by one communication node.
Draft withCommunication(const std::string& node, const std::string& result = "[4]") {
  Draft d = test::twoRanks();
  for (std::size_t p = 0; p < 2; ++p) {
    d.tensor(p, "y") = Json::parse(R"({"shape": )" + result + "}");
    d.program(p)["nodes"].push_back(Json::parse(node));
  }
  return d;
}
const char* const kAllReduce =
    R"({"op": "all_reduce", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"]})";

TEST(Checks, ARightPlanHasNoDefects) {
  EXPECT_TRUE(defectsOf(test::pipeline()).empty());
  EXPECT_TRUE(defectsOf(withCommunication(kAllReduce)).empty());
}

// Each of two ranks has 4 elements of x and gets `result` elements.
Draft withSizes(const std::string& op, const std::string& attributes, const std::string& sizes,
                const char* first, const char* second) {
  Draft d =
      withCommunication(R"({"op": ")" + op +
                        R"(", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"], "attrs": )" +
                        attributes + R"(, "sizes": )" + sizes + "}");
  d.tensor(0, "y")["shape"] = Json::parse(first);
  d.tensor(1, "y")["shape"] = Json::parse(second);
  return d;
}

TEST(Checks, UnevenPiecesAreComparedAtEachPlace) {
  EXPECT_TRUE(
      defectsOf(withSizes("reduce_scatter", R"({"dim": 0})", "[3, 1]", "[3]", "[1]")).empty());
  expectDefect(withSizes("reduce_scatter", R"({"dim": 0})", "[3, 1]", "[3]", "[3]"),
               DefectKind::kShape, {1}, {"/programs/1/nodes/0"},
               "'y' is declared with shape [3], but the operator produces [1]");
  expectDefect(withSizes("reduce_scatter", R"({"dim": 0})", "[3, 2]", "[3]", "[2]"),
               DefectKind::kShape, {0}, {"/programs/0/nodes/0"},
               "has length 4, but the sizes add up to 5");
  EXPECT_TRUE(defectsOf(withSizes("all_to_all", R"({"idim": 0, "odim": 0})", "[[3, 1], [2, 2]]",
                                  "[5]", "[3]"))
                  .empty());
  expectDefect(
      withSizes("all_to_all", R"({"idim": 0, "odim": 0})", "[[3, 1], [2, 1]]", "[5]", "[2]"),
      DefectKind::kShape, {0}, {"/programs/0/nodes/0"},
      "of member 1, of shape [4], has length 4, but the sizes that it sends add up to 3");
  expectDefect(withSizes("all_gather", R"({"dim": 0})", "[4, 3]", "[7]", "[7]"), DefectKind::kShape,
               {0}, {"/programs/0/nodes/0"}, "but the size of its piece is 3");
  // One program for both: its result fits the first place only.
  const auto problem = test::read(test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "o": {"shape": [4]}},
          "nodes": [{"op": "identity", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["tp", 2]], "programs": [{"tensors": {"x": {"shape": [4], "kind": "input"},
          "o": {"shape": [4]}, "y": {"shape": [3]}},
          "nodes": [{"op": "identity", "in": ["x"], "out": ["o"]},
                    {"op": "reduce_scatter", "in": ["x"], "out": ["y"], "comm": "c",
                     "group": ["tp"], "attrs": {"dim": 0}, "sizes": [3, 1]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
           "parts": [{"local": "x"}]}]},
                      {"tensor": "o", "role": "output", "shards": [{"box": [[0, 4]],
                       "parts": [{"local": "o"}]}]}]})"));
  const auto defects = defectsOf(*problem);
  ASSERT_EQ(defects.size(), 1U);
  EXPECT_EQ(defects[0].ranks, (Ranks{1}));
  EXPECT_EQ(defects[0].kind, DefectKind::kShape);
}

TEST(Checks, EmptyPieces) {
  Draft d = withSizes("reduce_scatter", R"({"dim": 0})", "[4, 0]", "[4]", "[4]");
  expectDefect(d, DefectKind::kShape, {1}, {"/programs/1/nodes/0"},
               "has a result, but by the sizes only empty pieces");
  d.node(1, 0)["out"] = Json::array();
  EXPECT_TRUE(defectsOf(d).empty());
  d = withSizes("all_gather", R"({"dim": 0})", "[4, 0]", "[4]", "[4]");
  expectDefect(d, DefectKind::kShape, {1}, {"/programs/1/nodes/0"}, "has an operand");
  d.node(1, 0)["in"] = Json::array();
  EXPECT_TRUE(defectsOf(d).empty());
  d.node(0, 0)["in"] = Json::array();
  expectDefect(d, DefectKind::kShape, {0}, {"/programs/0/nodes/0"}, "has no operand");
}

TEST(Checks, SizesAndPairsThatDiffer) {
  Draft d = withSizes("reduce_scatter", R"({"dim": 0})", "[3, 1]", "[3]", "[1]");
  d.node(1, 0)["sizes"] = {1, 3};
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "gives other sizes of the pieces");
  d.node(1, 0).erase("sizes");
  expectDefect(d, DefectKind::kShape, {1}, {"/programs/1/nodes/0"},
               "declared with shape [1], but the operator produces [2]");
  d.tensor(1, "y")["shape"] = {2};
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "gives other sizes of the pieces");
  d = withCommunication(
      R"({"op": "collective_permute", "in": ["x"], "out": ["y"], "comm": "c", "group": ["tp"],
          "pairs": [[0, 1]]})");
  EXPECT_TRUE(defectsOf(d).empty());
  d.node(1, 0)["pairs"] = Json::parse("[[0, 1], [1, 0]]");
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "names other pairs");
  d.node(0, 0)["pairs"] = Json::parse("[[1, 0], [0, 1]]");
  EXPECT_TRUE(defectsOf(d).empty());
}

// ---- shapes ----

TEST(Checks, DeclaredShapeThatTheOperatorDoesNotProduce) {
  Draft d = test::pipeline();
  d.tensor(1, "t")["shape"] = {2};
  d.entry(4) = d.entry(3);
  expectDefect(d, DefectKind::kShape, {2, 3}, {"/programs/1/nodes/1"},
               "'t' is declared with shape [2], but the operator produces []");
}

// [1] for [] is the same only where a reduction produces it.
TEST(Checks, OneElementDeclaredForAScalar) {
  const auto through = [](const char* y, const char* t) {
    const std::string nodes =
        R"({"op": "sum", "in": ["x"], "out": ["y"]}, {"op": "neg", "in": ["y"], "out": ["t"]},
            {"op": "sum", "in": ["t"], "out": ["o"]})";
    const auto tensors = [](const std::string& ofY, const std::string& ofT) {
      return R"("y": {"shape": )" + ofY + R"(}, "t": {"shape": )" + ofT +
             R"(}, "o": {"shape": []})";
    };
    return test::oneRank(R"("x": {"shape": [3], "kind": "input"})", tensors("[]", "[]"), nodes,
                         tensors(y, t), nodes);
  };
  EXPECT_TRUE(defectsOf(through("[]", "[]")).empty());
  EXPECT_TRUE(defectsOf(through("[1]", "[1]")).empty());
  expectDefect(through("[]", "[1]"), DefectKind::kShape, {0}, {"/programs/0/nodes/1"},
               "'t' is declared with shape [1], but the operator produces []");
}

TEST(Checks, OperandsThatDoNotFit) {
  Draft d = test::pipeline();
  d.node(0, 0)["in"] = {"w", "x"};  // [3, 4] by [4, 4]: possible, but another result
  expectDefect(d, DefectKind::kShape, {0, 1}, {"/programs/0/nodes/0"}, "declared with shape");
  d.node(0, 0)["in"] = {"y", "w"};
  expectDefect(d, DefectKind::kShape, {0, 1}, {"/programs/0/nodes/0"}, "linear");
}

TEST(Checks, CommunicationShapes) {
  CommunicationSpec spec;
  spec.kind = Communication::kAllGather;
  spec.dim = -1;
  EXPECT_EQ(ops::communicationShape(spec, {2, 3}, 4), (Shape{2, 12}));
  spec.kind = Communication::kReduceScatter;
  spec.dim = 0;
  EXPECT_EQ(ops::communicationShape(spec, {8, 3}, 4), (Shape{2, 3}));
  EXPECT_THROW(ops::communicationShape(spec, {6, 3}, 4), ShapeError);
  spec.kind = Communication::kAllToAll;
  spec.dim = 1;
  spec.odim = 0;
  EXPECT_EQ(ops::communicationShape(spec, {2, 8}, 4), (Shape{8, 2}));
  spec.odim = 1;
  EXPECT_EQ(ops::communicationShape(spec, {2, 8}, 4), (Shape{2, 8}));
  spec.kind = Communication::kAllReduce;
  EXPECT_EQ(ops::communicationShape(spec, {2, 8}, 4), (Shape{2, 8}));
  spec.kind = Communication::kAllGather;
  spec.dim = 2;
  EXPECT_THROW(ops::communicationShape(spec, {2, 3}, 4), ShapeError);
}

TEST(Checks, PiecesThatDoNotDivide) {
  const Draft d = withCommunication(
      R"({"op": "reduce_scatter", "in": ["x"], "out": ["y"], "comm": "c",
          "group_at": [{"tp": 0}, {"tp": 1}], "attrs": {"dim": 0}})",
      "[3]");
  expectDefect(d, DefectKind::kShape, {0}, {"/programs/0/nodes/0"},
               "declared with shape [3], but the operator produces [2]");
}

// ---- assignments ----

TEST(Checks, DoubleAssignment) {
  Draft d = test::pipeline();
  d.program(0)["nodes"].push_back(d.node(0, 0));
  expectDefect(d, DefectKind::kDoubleAssignment, {0, 1},
               {"/programs/0/nodes/2", "/programs/0/nodes/0"}, "'y' is produced twice");
  d.node(0, 2)["mb"] = 1;  // one microbatch overlaps with all
  expectDefect(d, DefectKind::kDoubleAssignment, {0, 1},
               {"/programs/0/nodes/2", "/programs/0/nodes/0"}, "'y' is produced twice");
  d.node(0, 0)["mb"] = 0;  // one each: right, once both come before the send
  std::swap(d.node(0, 1), d.node(0, 2));
  EXPECT_TRUE(defectsOf(d).empty());
}

TEST(Checks, AProducedInput) {
  Draft d = test::pipeline();
  d.program(1)["tensors"]["z"] = Json::parse(R"({"shape": [], "kind": "constant", "value": 0})");
  d.program(1)["nodes"].push_back(Json::parse(R"({"op": "identity", "in": ["s"], "out": ["z"]})"));
  expectDefect(d, DefectKind::kDoubleAssignment, {2, 3},
               {"/programs/1/nodes/4", "/programs/1/nodes/4"},
               "it is an input, parameter or constant");
}

TEST(Checks, OnceForEachMicrobatchIntoOneTensor) {
  Draft d = test::pipeline();
  d.tensor(1, "last") = Json::parse(R"({"shape": []})");
  d.program(1)["nodes"].push_back(
      Json::parse(R"({"op": "identity", "in": ["t"], "out": ["last"], "mb": "*"})"));
  expectDefect(d, DefectKind::kDoubleAssignment, {2, 3},
               {"/programs/1/nodes/4", "/programs/1/nodes/4"}, "once in each microbatch");
}

TEST(Checks, ReadButNeverProduced) {
  Draft d = test::pipeline();
  d.tensor(1, "missing") = Json::parse(R"({"shape": []})");
  d.node(1, 3)["in"] = {"missing"};
  expectDefect(d, DefectKind::kUnproduced, {2, 3}, {"/programs/1/nodes/3"},
               "'missing', which is never produced on this rank");
}

TEST(Checks, ReadForAMicrobatchThatIsNeverProduced) {
  Draft d = test::pipeline();
  d.node(1, 1)["mb"] = 0;
  Draft unclaimed = d;
  unclaimed.entry(4) = d.entry(3);
  expectDefect(unclaimed, DefectKind::kUnproduced, {2, 3}, {"/programs/1/nodes/2"},
               "never produced on this rank for microbatch 1");
  // Lineage that names it is the first to say so.
  const auto defects = defectsOf(d);
  ASSERT_EQ(defects.size(), 2u);
  EXPECT_EQ(defects[0].kind, DefectKind::kUnproduced);
  EXPECT_EQ(defects[0].message,
            "lineage entry /lineage/4/shards/0 names local tensor 't', which no node of "
            "/programs/1 produces for microbatch 1");
  EXPECT_EQ(defects[0].microbatch, 1);
  EXPECT_EQ(defects[0].ranks, (Ranks{2, 3}));
}

TEST(Checks, LineageOfATensorThatIsNeverProduced) {
  Draft d = test::pipeline();
  d.tensor(1, "missing") = Json::parse(R"({"shape": []})");
  d.entry(5)["shards"][0]["parts"][0]["local"] = "missing";
  expectDefect(d, DefectKind::kUnproduced, {2, 3}, {},
               "names local tensor 'missing', which no node of /programs/1 produces");
}

TEST(Checks, ProducedTooLate) {
  Draft d = test::pipeline();
  std::swap(d.node(1, 2), d.node(1, 3));
  expectDefect(d, DefectKind::kUnproduced, {2, 3}, {"/programs/1/nodes/2", "/programs/1/nodes/3"},
               "produced only later, by /programs/1/nodes/3");
}

TEST(Checks, AcrossMicrobatchesNodeOrderSaysNothing) {
  Draft d = test::pipeline();
  // Microbatch 0's sum also takes microbatch 1's, whose node stands later.
  Json second = d.node(1, 1);
  d.node(1, 1) = Json::parse(R"({"op": "identity", "in": ["t#1"], "out": ["t"], "mb": 0})");
  second["mb"] = 1;
  auto& nodes = d.program(1)["nodes"];
  nodes.insert(nodes.begin() + 2, second);
  EXPECT_TRUE(defectsOf(d).empty());
  // In a program with issue order it does.
  d.program(1)["order"] = "issue";
  d.node(1, 0)["mb"] = 1;
  Json other = d.node(1, 0);
  other["mb"] = 0;
  nodes.insert(nodes.begin(), other);
  d.node(0, 1)["mb"] = 0;
  Json send = d.node(0, 1);
  send["mb"] = 1;
  d.program(0)["nodes"].push_back(send);
  expectDefect(d, DefectKind::kUnproduced, {2, 3}, {"/programs/1/nodes/2", "/programs/1/nodes/3"},
               "produced only later");
}

// ---- who meets whom ----

TEST(Checks, AMemberNeverJoins) {
  Draft d = withCommunication(kAllReduce);
  d.node(1, 0)["comm"] = "other";
  expectDefect(d, DefectKind::kCollective, {0}, {"/programs/0/nodes/0"},
               "rank 1 never issues the matching all_reduce of communication 'c'");
  d = withCommunication(kAllReduce);
  d.node(1, 0)["op"] = "all_gather";
  d.node(1, 0)["attrs"] = {{"dim", 0}};
  d.tensor(1, "y")["shape"] = {8};
  // What it issues there is named, too: a program that hangs has two places.
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "rank 1 never issues the matching all_reduce of communication 'c', but all_gather");
}

TEST(Checks, AMemberJoinsTwice) {
  Draft d = withCommunication(kAllReduce);
  d.tensor(1, "z") = Json::parse(R"({"shape": [4]})");
  Json again = d.node(1, 0);
  again["out"] = {"z"};
  d.program(1)["nodes"].push_back(again);
  expectDefect(d, DefectKind::kCollective, {0}, {"/programs/0/nodes/0"},
               "rank 1 issues the matching all_reduce of communication 'c' 2 times");
}

TEST(Checks, AMemberJoinsForAnotherMicrobatchOnly) {
  Draft d = withCommunication(kAllReduce);
  d.plan["microbatches"] = 2;
  for (std::size_t p = 0; p < 2; ++p) d.tensor(p, "y")["per_mb"] = true;
  d.node(0, 0)["mb"] = "*";
  d.node(1, 0)["mb"] = 0;
  const auto defects = defectsOf(d);
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_EQ(defects[0].microbatch, 1);
  EXPECT_NE(defects[0].message.find("rank 1 never issues"), std::string::npos);
}

TEST(Checks, GroupsThatDiffer) {
  Draft d = withCommunication(
      R"({"op": "all_gather", "in": ["x"], "out": ["y"], "comm": "c",
          "group_at": [{"tp": 0}, {"tp": 1}], "attrs": {"dim": 0}})",
      "[8]");
  EXPECT_TRUE(defectsOf(d).empty());
  d.node(1, 0)["group_at"] = Json::parse(R"([{"tp": 1}, {"tp": 0}])");
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "lists another group, or the same in another order");
}

TEST(Checks, ARankOutsideItsOwnGroup) {
  Draft d = withCommunication(kAllReduce);
  d.node(0, 0).erase("group");
  d.node(0, 0)["group_at"] = Json::parse(R"([{"tp": 1}])");
  expectDefect(d, DefectKind::kCollective, {0}, {"/programs/0/nodes/0"},
               "rank 0 is not in the group that it lists");
}

TEST(Checks, OtherReductionDimensionShapeOrElement) {
  Draft d = withCommunication(kAllReduce);
  d.node(1, 0)["attrs"] = {{"reduce", "max"}};
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "reduces with another operation");

  d = withCommunication(
      R"({"op": "all_to_all", "in": ["v"], "out": ["y"], "comm": "c", "group": ["tp"],
          "attrs": {"idim": 0, "odim": 1}})",
      "[1, 4]");
  for (std::size_t p = 0; p < 2; ++p) {
    d.tensor(p, "v") = Json::parse(R"({"shape": [2, 2]})");
    auto& nodes = d.program(p)["nodes"];
    nodes.insert(
        nodes.begin(),
        Json::parse(R"({"op": "view", "in": ["x"], "out": ["v"], "attrs": {"size": [2, 2]}})"));
  }
  EXPECT_TRUE(defectsOf(d).empty());
  d.node(1, 1)["attrs"] = Json::parse(R"({"idim": 1, "odim": 0})");
  d.tensor(1, "y")["shape"] = {4, 1};
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/1", "/programs/1/nodes/1"},
               "works along another dimension");

  d = withCommunication(kAllReduce);
  d.tensor(1, "v") = Json::parse(R"({"shape": [2]})");
  d.tensor(1, "y")["shape"] = {2};
  d.node(1, 0)["in"] = {"v"};
  auto& nodes = d.program(1)["nodes"];
  nodes.insert(
      nodes.begin(),
      Json::parse(R"({"op": "slice", "in": ["x"], "out": ["v"], "attrs": {"dim": 0, "stop": 2}})"));
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/1"},
               "has shape [2] where rank 0 has [4]");

  d = withCommunication(kAllReduce);
  d.tensor(1, "i") = Json::parse(R"({"shape": [4], "kind": "input", "dtype": "int64"})");
  d.tensor(0, "y")["dtype"] = "float32";
  d.tensor(1, "y")["dtype"] = "int64";
  d.node(1, 0)["in"] = {"i"};
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "has another kind of element");
}

Draft broadcast() {
  Draft d = withCommunication(kAllReduce);
  d.node(0, 0) = Json::parse(
      R"({"op": "broadcast", "in": ["x"], "out": [], "comm": "b", "group": ["tp"],
          "root": {"tp": 0}})");
  d.node(1, 0) = Json::parse(
      R"({"op": "broadcast", "in": [], "out": ["y"], "comm": "b", "group": ["tp"],
          "root": {"tp": 0}})");
  return d;
}

TEST(Checks, Broadcast) {
  EXPECT_TRUE(defectsOf(broadcast()).empty());
  Draft d = broadcast();  // both think they are the root
  d.node(1, 0) = d.node(0, 0);
  d.node(1, 0)["root"] = {{"tp", 1}};
  expectDefect(d, DefectKind::kCollective, {0, 1}, {"/programs/0/nodes/0", "/programs/1/nodes/0"},
               "names another root");
  d = broadcast();  // nobody does
  d.node(0, 0)["root"] = {{"tp", 1}};
  expectDefect(d, DefectKind::kCollective, {0}, {"/programs/0/nodes/0"},
               "who is not the root of a broadcast has no operand and one result");
  d = broadcast();
  d.node(1, 0).erase("group");
  d.node(1, 0)["group_at"] = Json::parse(R"([{"tp": 1}])");
  expectDefect(d, DefectKind::kCollective, {0}, {"/programs/0/nodes/0"},
               "rank 1 never issues the matching broadcast");
}

// A root that names only some of the group's axes is another rank for members that differ in the
// others, also where these are symmetric.
TEST(Checks, BroadcastOverAnAxisThatItsRootDoesNotName) {
  for (const int dp : {1, 2, 5}) {
    Draft d = broadcast();
    d.plan["mesh"].insert(d.plan["mesh"].begin(), Json::array({"dp", dp}));
    EXPECT_TRUE(defectsOf(d).empty());
    for (std::size_t p = 0; p < 2; ++p) d.node(p, 0)["group"] = {"dp", "tp"};
    if (dp == 1) EXPECT_TRUE(defectsOf(d).empty());
    else
      expectDefect(d, DefectKind::kCollective, {0, 2},
                   {"/programs/0/nodes/0", "/programs/0/nodes/0"},
                   "rank 2 joins communication 'b' but names another root");
  }
}

// Groups that share a comm id are instances apart.
TEST(Checks, OneCommIdForSeveralGroups) {
  Draft d = withCommunication(kAllReduce);
  d.plan["mesh"].insert(d.plan["mesh"].begin(), Json::array({"dp", 3}));
  const auto add = [&](const char* group, const std::string& result) {
    for (std::size_t p = 0; p < 2; ++p) {
      d.tensor(p, result) = d.tensor(p, "y");
      d.program(p)["nodes"].push_back(d.node(p, 0));
      d.program(p)["nodes"].back()["out"] = {result};
      d.program(p)["nodes"].back()["group"] = Json::parse(group);
    }
  };
  add(R"(["dp"])", "z");
  add(R"(["dp", "tp"])", "w");
  EXPECT_TRUE(defectsOf(d).empty());
  add(R"(["tp", "dp"])", "v");
  expectDefect(d, DefectKind::kCollective, {0}, {"/programs/0/nodes/2"},
               "rank 0 issues the matching all_reduce of communication 'c' 2 times");
}

TEST(Checks, SendAndReceive) {
  Draft d = test::pipeline();
  d.node(1, 0)["comm"] = "other";
  expectDefect(d, DefectKind::kSendReceive, {0}, {"/programs/0/nodes/1"},
               "rank 2 never issues the matching receive of communication 'p2p'");
  d = test::pipeline();
  d.node(0, 1)["to"] = Json::object();
  expectDefect(d, DefectKind::kSendReceive, {0}, {"/programs/0/nodes/1"},
               "communicates with its own rank");
  d = test::pipeline();
  d.node(1, 0)["from"] = Json::parse(
      R"({"pp": 0, "tp": 1})");  // rank 3 still receives from rank 1, rank 2 from rank 1 too
  const auto defects = defectsOf(d);
  ASSERT_FALSE(defects.empty());
  EXPECT_EQ(defects[0].kind, DefectKind::kSendReceive);
  EXPECT_EQ(defects[0].ranks, (Ranks{0}));
}

TEST(Checks, ATagMakesAllMicrobatchesTheSameRendezvous) {
  Draft d = test::pipeline();
  d.node(0, 1)["tag"] = d.node(1, 0)["tag"] = 3;
  expectDefect(d, DefectKind::kSendReceive, {0}, {"/programs/0/nodes/1"},
               "its tag makes them all the same one");
}

}  // namespace
}  // namespace shardproof
