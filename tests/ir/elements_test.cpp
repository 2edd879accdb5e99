// SPDX-License-Identifier: Apache-2.0
// Kinds of element that the plan leaves out follow from what produces the tensor, through operators
// and communication.
#include "ir/elements.h"

#include <gtest/gtest.h>

#include "support/problems.h"

namespace shardproof {
namespace {

// Rank 0 chooses experts (integers) and sends the choice on; no dtype says so.
test::Draft choice() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [4, 2], "kind": "input"},
          "w": {"shape": [8, 2], "kind": "parameter"}, "g": {"shape": [4, 2]},
          "i": {"shape": [4, 2]}},
      "nodes": [{"op": "moe_gate", "in": ["x", "w"], "out": ["g", "i"],
       "attrs": {"score_func": "softmax", "topk": 2}}], "outputs": ["g"]})",
      R"({"mesh": [["pp", 2]], "programs": [
        {"at": {"pp": 0}, "tensors": {"x": {"shape": [4, 2], "kind": "input"},
         "w": {"shape": [8, 2], "kind": "parameter"}, "g": {"shape": [4, 2]},
         "i": {"shape": [4, 2]}, "v": {"shape": [8]}},
         "nodes": [{"op": "moe_gate", "in": ["x", "w"], "out": ["g", "i"],
          "attrs": {"score_func": "softmax", "topk": 2}},
          {"op": "view", "in": ["i"], "out": ["v"], "attrs": {"size": [8]}},
                   {"op": "send", "in": ["v"], "out": [], "comm": "c", "to": {"pp": 1}}]},
        {"at": {"pp": 1}, "tensors": {"v": {"shape": [8]}, "u": {"shape": [2, 4]},
         "r": {"shape": [4], "kind": "input"}},
         "nodes": [{"op": "recv", "in": [], "out": ["v"], "comm": "c", "from": {"pp": 0}},
          {"op": "view", "in": ["v"], "out": ["u"], "attrs": {"size": [2, 4]}}]}],
       "lineage": [
        {"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 2]],
         "parts": [{"local": "x", "at": {"pp": 0}}]}]},
        {"tensor": "w", "role": "input", "shards": [{"box": [[0, 8], [0, 2]],
         "parts": [{"local": "w", "at": {"pp": 0}}]}]},
        {"tensor": "g", "role": "output", "shards": [{"box": [[0, 4], [0, 2]],
         "parts": [{"local": "g", "at": {"pp": 0}}]}]}]})");
}

ElementKind elementOf(const Problem& problem, std::int32_t program, const std::string& name) {
  return problem.plan.programs[static_cast<std::size_t>(program)]
      .graph.tensors[static_cast<std::size_t>(test::localTensor(problem, program, name))]
      .element;
}

TEST(Elements, FollowOperatorsAndCommunication) {
  const auto problem = test::read(choice());
  EXPECT_EQ(elementOf(*problem, 0, "g"), ElementKind::kReal);
  EXPECT_EQ(elementOf(*problem, 0, "i"), ElementKind::kInteger);
  EXPECT_EQ(elementOf(*problem, 0, "v"), ElementKind::kInteger);
  EXPECT_EQ(elementOf(*problem, 1, "v"), ElementKind::kInteger);
  EXPECT_EQ(elementOf(*problem, 1, "u"), ElementKind::kInteger);
  EXPECT_EQ(elementOf(*problem, 1, "r"),
            ElementKind::kReal);  // inputs keep what they are declared with
  EXPECT_TRUE(PlanIndex(*problem).defects().empty());
}

// The programs in the other order: what is carried is known only after a second pass.
TEST(Elements, DoNotDependOnTheOrderOfPrograms) {
  test::Draft d = choice();
  std::swap(d.plan["programs"][0], d.plan["programs"][1]);
  const auto problem = test::read(d);
  EXPECT_EQ(elementOf(*problem, 0, "v"), ElementKind::kInteger);
  EXPECT_EQ(elementOf(*problem, 0, "u"), ElementKind::kInteger);
}

TEST(Elements, ADeclaredDtypeStandsAndIsReported) {
  test::Draft d = choice();
  d.tensor(1, "u")["dtype"] = "float32";
  const auto problem = test::read(d);
  EXPECT_EQ(elementOf(*problem, 1, "u"), ElementKind::kReal);
  const PlanIndex planIndex(*problem);
  ASSERT_EQ(planIndex.defects().size(), 1u);
  EXPECT_EQ(planIndex.defects()[0].kind, DefectKind::kShape);
  EXPECT_NE(planIndex.defects()[0].message.find("another kind of element"), std::string::npos)
      << planIndex.defects()[0].message;
}

// Another pair uses the name for reals: each receiver says what it gets.
TEST(Elements, WhereDifferentKindsAreSentUnderOneNameReceiversSayWhich) {
  test::Draft d = choice();
  d.plan["mesh"] = test::Json::parse(R"([["pp", 2], ["dp", 2]])");
  for (auto& program : d.plan["programs"]) program["at"]["dp"] = 0;
  test::Json sender = d.plan["programs"][0], receiver = d.plan["programs"][1];
  sender["at"]["dp"] = receiver["at"]["dp"] = 1;
  sender["tensors"]["v"] = test::Json::parse(R"({"shape": [4, 2]})");
  sender["nodes"][1] = test::Json::parse(R"({"op": "neg", "in": ["g"], "out": ["v"]})");
  receiver["tensors"]["v"] = test::Json::parse(R"({"shape": [4, 2]})");
  d.plan["programs"].push_back(sender);
  d.plan["programs"].push_back(receiver);
  try {
    test::read(d);
    ADD_FAILURE() << "it was read";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("/programs/1/nodes/0/out/0: 'v' has no dtype"),
              std::string::npos)
        << error.what();
  }
  d.plan["programs"][1]["tensors"]["v"]["dtype"] = "int64";
  d.plan["programs"][3]["tensors"]["v"]["dtype"] = "float32";
  EXPECT_TRUE(PlanIndex(*test::read(d)).defects().empty());
}

}  // namespace
}  // namespace shardproof
