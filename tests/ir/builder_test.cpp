// SPDX-License-Identifier: Apache-2.0
// Problems made in memory.
#include "shardproof/builder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "reader/reader.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

// y = x w, with x cut by columns and w by rows over tp: partial sums, then an all_reduce.
ProblemBuilder rowParallel(bool reduced = true) {
  ProblemBuilder b;
  b.model().input("x", {4, 8});
  b.model().parameter("w", {8, 6});
  b.model().produced("y", {4, 6});
  b.model().node("matmul", {"x", "w"}, {"y"}, {.location = "model.py:3"});
  b.output("y");
  b.axis("tp", 2);
  ProgramBuilder& p = b.program();
  p.input("x", {4, 4});
  p.parameter("w", {4, 6});
  p.produced("part", {4, 6});
  p.node("matmul", {"x", "w"}, {"part"});
  p.produced("y", {4, 6});
  if (reduced) p.allReduce("part", "y", {.comm = "sum", .axes = {"tp"}});
  else p.node("mul", {"part"}, {"y"}, {.attributes = {{"scalar", Rational(2)}}});
  b.lineage("x", Role::kInput).shard({{0, 4}, {0, 4}}).step("tp", {0, 4}).part("x");
  b.lineage("w", Role::kInput).shard({{0, 4}, {0, 6}}).step("tp", {4, 0}).part("w");
  b.lineage("y", Role::kOutput).shard({{0, 4}, {0, 6}}).part("y");
  return b;
}

Report verified(const Problem& problem) {
  VerifyOptions options;
  options.inProcess = true;
  return verify(problem, options);
}

TEST(Builder, AProblemMadeInMemoryHasItsVerdict) {
  EXPECT_EQ(verified(*rowParallel().build()).verdict, Verdict::kEquivalent);
  const Report wrong = verified(*rowParallel(false).build());
  EXPECT_EQ(wrong.verdict, Verdict::kNotEquivalent);
  ASSERT_FALSE(wrong.defects.empty());
}

// Two rows on the first rank and one on the second; the rows of the other way round are gathered.
TEST(Builder, SizesAndPairs) {
  const auto made = [](std::vector<std::pair<std::int32_t, std::int32_t>> pairs) {
    ProblemBuilder b;
    b.model().input("x", {3});
    b.model().produced("y", {3});
    b.model().node("identity", {"x"}, {"y"});
    b.output("y");
    b.axis("dp", 2);
    for (std::int32_t r = 0; r < 2; ++r) {
      ProgramBuilder& p = b.program({{"dp", r}});
      p.input("x", {2 - r});
      p.produced("all", {3});
      p.allGather("x", "all", {.comm = "g", .axes = {"dp"}, .sizes = {2, 1}}, 0);
      p.produced("y", {3});
      p.collectivePermute("all", "y", {.comm = "p", .axes = {"dp"}}, pairs);
    }
    b.lineage("x", Role::kInput).shard({{0, 2}}).part("x", {{"dp", 0}});
    b.lineage("x", Role::kInput).shard({{2, 3}}).part("x", {{"dp", 1}});
    b.lineage("y", Role::kOutput).shard({{0, 3}}).part("y");
    return std::move(b).build();
  };
  EXPECT_EQ(verified(*made({{0, 1}, {1, 0}})).verdict, Verdict::kEquivalent);
  EXPECT_EQ(verified(*made({{0, 1}})).verdict, Verdict::kNotEquivalent);
  EXPECT_THROW(made({{0, 2}}), InputError);
}

TEST(Builder, ItsTwinInJsonIsTheSame) {
  const auto twin = readProblemText(
      R"({"format": "shardproof-model", "version": 1, "outputs": ["y"], "tensors":
          {"x": {"shape": [4, 8], "kind": "input"}, "w": {"shape": [8, 6], "kind": "parameter"},
           "y": {"shape": [4, 6]}},
          "nodes": [{"op": "matmul", "in": ["x", "w"], "out": ["y"], "loc": "model.py:3"}]})",
      R"({"format": "shardproof-plan", "version": 1, "mesh": [["tp", 2]], "programs": [{"tensors":
          {"x": {"shape": [4, 4], "kind": "input"}, "w": {"shape": [4, 6], "kind": "parameter"},
           "part": {"shape": [4, 6]}, "y": {"shape": [4, 6]}},
          "nodes": [{"op": "matmul", "in": ["x", "w"], "out": ["part"]},
                    {"op": "all_reduce", "in": ["part"], "out": ["y"], "comm": "sum",
                     "group": ["tp"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 4]],
           "step": {"tp": [0, 4]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 4], [0, 6]],
                       "step": {"tp": [4, 0]}, "parts": [{"local": "w"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4], [0, 6]],
                       "parts": [{"local": "y"}]}]}]})");
  const auto built = rowParallel().build();
  EXPECT_EQ(planText(*built, "m"), planText(*twin, "m"));
  EXPECT_EQ(modelText(*built), modelText(*twin));
  EXPECT_EQ(verified(*built).verdict, verified(*twin).verdict);
}

TEST(Builder, IdsAreThoseOfTheProblem) {
  ProblemBuilder b = rowParallel();
  const TensorId z = b.model().produced("z", {4, 6});
  const NodeId node = b.model().node("exp", {"y"}, {"z"});
  const auto problem = std::move(b).build();
  const Graph& graph = problem->model.graph;
  EXPECT_EQ(problem->names.text(graph.tensors[z.index()].name), "z");
  EXPECT_EQ(graph.out(graph.nodes[node.index()])[0], z.value);
}

std::string errorOf(ProblemBuilder&& b) {
  try {
    static_cast<void>(std::move(b).build());
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Builder, MistakesAreToldWithTheirPlaces) {
  const auto with = [](auto&& change) {
    ProblemBuilder b = rowParallel();
    change(b);
    return errorOf(std::move(b));
  };
  EXPECT_EQ(with([](ProblemBuilder& b) { b.model().node("exp", {"no"}, {"y"}); }),
            "the model: /nodes/1/in/0: found \"no\", expected the name of a tensor in \"tensors\"");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.model().input("x", {1}); }),
            "the model: /tensors: found two tensors with the name \"x\", expected one");
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.model().produced("z", {4, 6});
              b.model().node("exp", {"z"}, {"z"}, {.location = "model.py:9"});
            }),
            "the model: /nodes/1/in/0: tensor \"z\" is used before any node produces it, expected "
            "nodes in execution order (model.py:9)");
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.model().input("empty", {3, 0});
            }),
            "the model: /tensors/empty/shape/1: found a dimension of size 0: tensors without "
            "elements are not supported");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.model().input("negative", {-3}); }),
            "the model: /tensors/negative/shape/0: found a dimension of size -3, expected a size "
            "from 1");
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.model().constant("c", {3}, {{1, 2}, false});
            }),
            "the model: /tensors/c/value: found 2 numbers, expected 3");
  EXPECT_EQ(
      with([](ProblemBuilder& b) {
        b.model().constant("c", {}, {{Rational(1, 2)}, true}, {.element = ElementKind::kInteger});
      }),
      "the model: /tensors/c/value: found the number 1/2, expected an integer, as the "
      "tensor's dtype is one");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.axis("tp", 2); }),
            "the plan: /mesh/1/0: found the axis \"tp\" twice");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.axis("dp", 0); }),
            "the plan: /mesh/1/1: found the size 0, expected one from 1");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.microbatches(0); }),
            "the plan: /microbatches: found 0, expected a number from 1 to 1048576");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.program(); }),
            "the plan: /programs/1/at: the rank at {\"tp\": 0} is also covered by /programs/0, "
            "expected exactly one program for each rank");
  EXPECT_EQ(with([](ProblemBuilder& b) { b.lineage("y", Role::kCutPoint); }),
            "the plan: /lineage/3: found no shards, expected at least one");
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.lineage("y", Role::kCutPoint).shard({{0, 4}, {0, 6}});
            }),
            "the plan: /lineage/3/shards/0/parts: expected at least one part");
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.lineage("y", Role::kCutPoint).shard({{2, 2}, {0, 6}}).part("y");
            }),
            "the plan: /lineage/3/shards/0/box/0: found the empty range [2, 2), expected at least "
            "one element");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(with([&](ProblemBuilder& b) {
              b.lineage("y", Role::kCutPoint).shard({{-most, most}, {0, 6}}).part("y");
            }),
            "the plan: /lineage/3/shards/0/box/0: found the range [-9223372036854775807, "
            "9223372036854775807), expected one that begins at 0 or above");
  EXPECT_NE(with([&](ProblemBuilder& b) {
              b.lineage("y", Role::kCutPoint).shard({{0, most}, {0, 6}}).part("y");
            }).find("the box holds [9223372036854775807, 6] elements, expected the shape of \"y\""),
            std::string::npos);
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.lineage("y", Role::kCutPoint).shard({{0, 4}, {0, 6}}).part("y").sum("tp").sum("tp");
            }),
            "the plan: /lineage/3/shards/0/sum: found the axis \"tp\" twice");
  EXPECT_EQ(with([](ProblemBuilder& b) {
              b.lineage("x", Role::kInput).shard({{0, 4}, {0, 4}}).part("x");
            }),
            "the plan: /lineage/3/shards/0: local tensor 'x' already is the input piece stated at "
            "/lineage/0/shards/0; expected one source for each local input, because a second one "
            "would restrict the model's inputs");
  EXPECT_THROW(rowParallel().model().node("no such operator", {}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace shardproof
