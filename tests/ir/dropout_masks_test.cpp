// SPDX-License-Identifier: Apache-2.0
// A mask is drawn for logical positions, which lineage tells.
#include "ir/dropout_masks.h"

#include <gtest/gtest.h>

#include "shardproof/verify.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;

// o = dropout(x), and the gradient of x for the gradient o: on 2 dp ranks with 2 microbatches each.
Draft forwardAndBackward() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [8, 4], "kind": "input"}, "o": {"shape": [8, 4]},
          "g": {"shape": [8, 4]}},
      "nodes": [{"op": "dropout", "in": ["x"], "out": ["o"], "attrs": {"p": 0.25, "seed": 3}},
                {"op": "dropout_backward", "in": ["o", "x"], "out": ["g"],
                 "attrs": {"p": 0.25, "seed": 3}}], "outputs": ["o", "g"]})",
      R"({"mesh": [["dp", 2], ["tp", 2]], "microbatches": 2, "programs": [
        {"at": {"dp": 0}, "tensors": {"x": {"shape": [2, 4], "kind": "input", "per_mb": true},
         "o": {"shape": [2, 4], "per_mb": true}, "g": {"shape": [2, 4], "per_mb": true}},
         "nodes": [{"op": "dropout", "in": ["x"], "out": ["o"], "attrs": {"p": 0.25, "seed": 3},
          "mb": "*"},
                   {"op": "dropout_backward", "in": ["o", "x"], "out": ["g"],
                    "attrs": {"p": 0.25, "seed": 3}, "mb": "*"}]},
        {"at": {"dp": 1}, "tensors": {"x": {"shape": [2, 4], "kind": "input", "per_mb": true},
         "o": {"shape": [2, 4], "per_mb": true}, "g": {"shape": [2, 4], "per_mb": true}},
         "nodes": [{"op": "dropout", "in": ["x"], "out": ["o"], "attrs": {"p": 0.25, "seed": 3},
          "mb": "*"},
                   {"op": "dropout_backward", "in": ["o", "x"], "out": ["g"],
                    "attrs": {"p": 0.25, "seed": 3}, "mb": "*"}]}],
       "lineage": [
        {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 4]],
         "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "x"}]}]},
        {"tensor": "o", "role": "output", "shards": [{"box": [[0, 2], [0, 4]],
         "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "o"}]}]},
        {"tensor": "g", "role": "output", "shards": [{"box": [[0, 2], [0, 4]],
         "step": {"dp": [4, 0], "mb": [2, 0]}, "parts": [{"local": "g"}]}]}]})");
}

// One rank; `model` and `plan` are nodes from x to o, `tensors` what else the plan's have.
Draft oneRank(const std::string& model, const std::string& plan, const std::string& tensors = "") {
  return test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]},
          "o": {"shape": [4]}}, "nodes": [)" +
          model + R"(], "outputs": ["o"]})",
      R"({"mesh": [["dp", 1]], "programs": [{"at": {}, "tensors": {"x": {"shape": [4],
          "kind": "input"}, "y": {"shape": [4]}, "o": {"shape": [4]})" +
          tensors + R"(}, "nodes": [)" + plan + R"(]}],
       "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
        "parts": [{"local": "x"}]}]},
                   {"tensor": "o", "role": "output", "shards": [{"box": [[0, 4]],
                    "parts": [{"local": "o"}]}]}]})");
}
std::string dropout(const char* from, const char* to, int seed, const char* p = "0.5") {
  return std::string(R"({"op": "dropout", "in": [")") + from + R"("], "out": [")" + to +
         R"("], "attrs": {"p": )" + p + R"(, "seed": )" + std::to_string(seed) + "}}";
}

Verdict verdict(const Draft& d) {
  VerifyOptions options;
  options.jobs = 1;
  return verify(*test::read(d), options).verdict;
}

TEST(DropoutMasks, PiecesOfOneMask) {
  const Draft d = forwardAndBackward();
  const auto problem = test::read(d);
  // One mask for both nodes of the model, one local tensor in each program.
  EXPECT_EQ(problem->model.graph.tensors.size(), 4u);
  EXPECT_EQ(problem->model.graph.tensors.back().shape, (Shape{8, 4}));
  for (const Program& p : problem->plan.programs) EXPECT_EQ(p.graph.tensors.size(), 4u);
  const LineageEntry& masks = problem->plan.lineage.back();
  EXPECT_EQ(masks.role, Role::kInput);
  ASSERT_EQ(masks.shards.size(), 2u);
  EXPECT_EQ(masks.shards[1].box[0],
            (std::pair<std::int64_t, std::int64_t>{4, 6}));  // dp = 1, by the program
  EXPECT_EQ(verdict(d), Verdict::kEquivalent);
}

TEST(DropoutMasks, AnotherSeedOnOneRankIsRefuted) {
  for (const std::size_t node : {0u, 1u}) {
    Draft d = forwardAndBackward();
    d.node(1, node)["attrs"]["seed"] = 4;
    EXPECT_EQ(verdict(d), Verdict::kNotEquivalent);
  }
  Draft d = forwardAndBackward();
  d.node(1, 0)["attrs"]["p"] = 0.5;
  EXPECT_EQ(verdict(d), Verdict::kNotEquivalent);
  d = forwardAndBackward();
  d.node(0, 0)["op"] = "identity";
  d.node(0, 0).erase("attrs");
  EXPECT_EQ(verdict(d), Verdict::kNotEquivalent);
}

// What was drawn for other positions is another mask: here both dp ranks work on the same rows, and
// the second claims the rows of the first.
TEST(DropoutMasks, OtherPositionsAreOtherBits) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [2], "kind": "input"}, "both": {"shape": [4]},
          "o": {"shape": [4]}},
      "nodes": [{"op": "cat", "in": ["x", "x"], "out": ["both"], "attrs": {"dim": 0}}, )" +
          dropout("both", "o", 1) + R"(], "outputs": ["o"]})",
      R"({"mesh": [["dp", 2]], "programs": [{"at": {}, "tensors": {"x": {"shape": [2],
          "kind": "input"}, "y": {"shape": [2]}, "o": {"shape": [4]}},
         "nodes": [)" +
          dropout("x", "y", 1) +
          R"(, {"op": "all_gather", "in": ["y"], "out": ["o"], "comm": "c", "group": ["dp"],
              "attrs": {"dim": 0}}]}],
       "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]],
        "parts": [{"local": "x"}]}]},
                   {"tensor": "both", "role": "cut_point",
                    "shards": [{"box": [[0, 2]], "step": {"dp": [2]}, "parts": [{"local": "x"}]}]},
                   {"tensor": "o", "role": "output", "shards": [{"box": [[0, 4]],
                    "parts": [{"local": "o"}]}]}]})");
  EXPECT_EQ(verdict(d), Verdict::kEquivalent);
  d.entry(1)["shards"][0].erase("step");
  EXPECT_EQ(verdict(d), Verdict::kNotEquivalent);
}

TEST(DropoutMasks, OfPartialSums) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "o": {"shape": [4]}}, "nodes": [)" +
          dropout("x", "o", 1) + R"(], "outputs": ["o"]})",
      R"({"mesh": [["tp", 2]], "programs": [{"at": {}, "tensors": {"x": {"shape": [4],
          "kind": "input"}, "y": {"shape": [4]}, "o": {"shape": [4]}},
         "nodes": [)" +
          dropout("x", "y", 1) +
          R"(, {"op": "all_reduce", "in": ["y"], "out": ["o"], "comm": "c", "group": ["tp"]}]}],
       "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
        "parts": [{"local": "x"}], "sum": ["tp"]}]},
                   {"tensor": "o", "role": "output", "shards": [{"box": [[0, 4]],
                    "parts": [{"local": "o"}]}]}]})");
  EXPECT_EQ(verdict(d), Verdict::kEquivalent);
}

// Bits, not numbers: dropping out twice with one seed is once, but for the scale.
TEST(DropoutMasks, AreZeroOrOne) {
  const std::string twice = dropout("x", "y", 1) + ", " + dropout("y", "o", 1);
  const auto scaled = [](const char* by) {
    return dropout("x", "y", 1) +
           R"(, {"op": "mul", "in": ["y"], "out": ["o"], "attrs": {"scalar": )" + by + "}}";
  };
  EXPECT_EQ(verdict(oneRank(twice, scaled("2"))), Verdict::kEquivalent);
  EXPECT_EQ(verdict(oneRank(twice, scaled("4"))), Verdict::kNotEquivalent);
}

TEST(DropoutMasks, WithoutPositionNothingIsDecided) {
  const std::string model =
      dropout("x", "y", 1) + R"(, {"op": "square", "in": ["y"], "out": ["o"]})";
  const std::string plan = R"({"op": "identity", "in": ["x"], "out": ["z"]}, )" +
                           dropout("z", "y", 1) +
                           R"(, {"op": "square", "in": ["y"], "out": ["o"]})";
  Draft d = oneRank(model, plan, R"(, "z": {"shape": [4]})");
  EXPECT_EQ(verdict(d), Verdict::kUndecided);
  d.plan["lineage"].push_back(test::Json::parse(
      R"({"tensor": "y", "role": "cut_point", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "y"}]}]})"));
  EXPECT_EQ(verdict(d), Verdict::kEquivalent);
}

// A place for all microbatches and one for the first, or places on other axes, may be the same
// instance: no input error, but no place either.
TEST(DropoutMasks, PlacesThatMeetAreNone) {
  for (const bool axes : {false, true}) {
    Draft d = test::draft(
        R"({"tensors": {"x": {"shape": [8], "kind": "input"}, "o": {"shape": [8]}}, "nodes": [)" +
            dropout("x", "o", 7) + R"(], "outputs": ["o"]})",
        R"({"mesh": [["dp", 2], ["tp", 2]], "microbatches": 2, "programs": [{"at": {},
                              "tensors": {"x": {"shape": [2], "kind": "input", "per_mb": true},
                               "h": {"shape": [2], "per_mb": true},
                               "o": {"shape": [2], "per_mb": true}},
                              "nodes": [{"op": "identity", "in": ["x"], "out": ["h"], "mb": "*"},
                               {"op": "dropout", "in": ["h"], "out": ["o"],
                               "attrs": {"p": 0.5, "seed": 7}, "mb": "*"}]}],
                              "lineage": [{"tensor": "x", "role": "input",
                               "shards": [{"box": [[0, 2]], "step": {"dp": [4], "mb": [2]},
                               "parts": [{"local": "x"}]}]},
                                          {"tensor": "o", "role": "output",
                                           "shards": [{"box": [[0, 2]],
                                           "step": {"dp": [4], "mb": [2]},
                                           "parts": [{"local": "o"}]}]}]})");
    EXPECT_EQ(verdict(d), Verdict::kEquivalent);
    test::Json& shards = d.plan["lineage"][1]["shards"];
    if (axes) {
      shards = test::Json::parse(
          R"([{"box": [[0, 2]], "step": {"mb": [2]}, "parts": [{"local": "o", "at": {"dp": 0}}]},
              {"box": [[4, 6]], "step": {"mb": [2]}, "parts": [{"local": "o", "at": {"dp": 1}}]},
                                     {"box": [[0, 2]], "step": {"dp": [4], "mb": [2]},
                                      "parts": [{"local": "o", "at": {"tp": 0}}]}])");
    } else {
      shards.push_back(test::Json::parse(
          R"({"box": [[0, 2]], "step": {"dp": [4]}, "parts": [{"local": "o", "mb": 0}]})"));
    }
    EXPECT_EQ(verdict(d), Verdict::kUndecided);
  }
}

TEST(DropoutMasks, NothingToDraw) {
  const auto problem =
      test::read(oneRank(dropout("x", "y", 1, "0") + ", " + dropout("y", "o", 1, "1"),
                         dropout("x", "y", 1, "0") + ", " + dropout("y", "o", 1, "1")));
  EXPECT_EQ(problem->model.graph.tensors.size(), 3u);
}

// Lineage that says where a rank draws is believed by nobody before it is proved, not even where
// the draw has no effect.
TEST(DropoutMasks, TheirPlacesMustBeProved) {
  const std::string keep = R"({"op": "identity", "in": ["x"], "out": ["o"]})";
  Draft d = oneRank(keep + ", " + dropout("x", "y", 1),
                    keep + R"(, {"op": "neg", "in": ["x"], "out": ["z"]}, )" + dropout("z", "y", 1),
                    R"(, "z": {"shape": [4]})");
  EXPECT_EQ(verdict(d), Verdict::kEquivalent);  // nothing places it, and nobody reads it
  d.plan["lineage"].push_back({{"tensor", "x"},
                               {"role", "cut_point"},
                               {"shards", {{{"box", {{0, 4}}}, {"parts", {{{"local", "z"}}}}}}}});
  EXPECT_EQ(verdict(d), Verdict::kUndecided);
}

}  // namespace
}  // namespace shardproof
