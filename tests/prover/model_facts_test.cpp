// SPDX-License-Identifier: Apache-2.0
// What is known of the model's tensors: which rows of masked scores have a number for certain.
#include "prover/model_facts.h"

#include <gtest/gtest.h>

#include "reader/reader.h"
#include "support/problems.h"

namespace shardproof {
namespace {

// The facts of the greatest of each row (dim 3), or column (dim 2), where scores x [1, 1, n, n] are
// masked by those rows and columns of a causal mask.
TensorFacts factsOf(const char* tensor, int n, int rowLow, int rowHigh, int columnLow,
                    int columnHigh, int dim) {
  const int rows = rowHigh - rowLow, columns = columnHigh - columnLow;
  const std::string size = std::to_string(n), square = "[1, 1, " + size + ", " + size + "]",
                    box = "[1, 1, " + std::to_string(rows) + ", " + std::to_string(columns) + "]",
                    left = std::to_string(dim == 3 ? rows : columns);
  const auto slice = [](const char* from, const char* to, int d, int low, int high) {
    return std::string(R"({"op": "slice", "in": [")") + from + R"("], "out": [")" + to +
           R"("], "attrs": {"dim": )" + std::to_string(d) + R"(, "start": )" + std::to_string(low) +
           R"(, "stop": )" + std::to_string(high) + "}}";
  };
  const std::string tensors =
      R"("tensors": {"ids": {"shape": [1, )" + size + R"(], "kind": "input", "dtype": "int64"},
        "x": {"shape": )" +
      box + R"(, "kind": "input"},
        "mask": {"shape": )" +
      square + R"(}, "some": {"shape": [1, 1, )" + std::to_string(rows) + ", " + size +
      R"(]}, "part": {"shape": )" + box + R"(}, "scores": {"shape": )" + box +
      R"(}, "open": {"shape": )" + box + R"(}, "best": {"shape": [1, 1, )" + left + R"(]}})";
  const std::string nodes = R"("nodes": [{"op": "create_mask", "in": ["ids"], "out": ["mask"]}, )" +
                            slice("mask", "some", 2, rowLow, rowHigh) + ", " +
                            slice("some", "part", 3, columnLow, columnHigh) +
                            R"(, {"op": "add", "in": ["x", "part"], "out": ["scores"]},
         {"op": "exp", "in": ["part"], "out": ["open"]},
         {"op": "amax", "in": ["scores"], "out": ["best"], "attrs": {"dim": )" +
                            std::to_string(dim) + "}}]";
  const std::string body = tensors + ", " + nodes;
  const std::string model =
      R"({"format": "shardproof-model", "version": 1, )" + body + R"(, "outputs": ["best"]})";
  const std::string whole =
      R"([{"box": [[0, 1], [0, )" + size + R"(]], "parts": [{"local": "ids"}]}])";
  const std::string boxes =
      "[[0, 1], [0, 1], [0, " + std::to_string(rows) + "], [0, " + std::to_string(columns) + "]]";
  const std::string plan =
      R"({"format": "shardproof-plan", "version": 1, "mesh": [["a", 1]], "programs": [{)" + body +
      R"(}], "lineage": [{"tensor": "ids", "role": "input", "shards": )" + whole +
      R"(}, {"tensor": "x", "role": "input", "shards": [{"box": )" + boxes +
      R"(, "parts": [{"local": "x"}]}]}, {"tensor": "best", "role": "output",
          "shards": [{"box": [[0, 1], [0, 1], [0, )" +
      left + R"(]], "parts": [{"local": "best"}]}]}]})";
  const auto problem = readProblemText(model, plan);
  const ModelFacts facts = modelFacts(*problem);
  for (std::size_t t = 0; t < facts.size(); ++t)
    if (problem->names.text(problem->model.graph.tensors[t].name) == tensor) return facts[t];
  ADD_FAILURE() << "no such tensor";
  return {};
}

TensorFacts greatest(int n, int rowLow, int rowHigh, int columnLow, int columnHigh, int dim) {
  return factsOf("best", n, rowLow, rowHigh, columnLow, columnHigh, dim);
}

TEST(ModelFacts, EachRowOfACausalMaskHasANumber) {
  // Of a long sequence one position stands for most: it says nothing by itself, as those that are
  // kept have all that it has.
  for (const int n : {2, 5, 64, 5000}) {
    EXPECT_FALSE(greatest(n, 0, n, 0, n, 3).mayBeInfinite) << n;
    EXPECT_FALSE(greatest(n, 0, n, 0, n, 2).mayBeInfinite) << n;
    EXPECT_FALSE(greatest(n, 1, n, 0, n, 3).mayBeInfinite) << n;
    EXPECT_FALSE(greatest(n, n / 2, n, 0, n / 2, 3).mayBeInfinite) << n;
  }
}

TEST(ModelFacts, ARowWithoutAnEntryMayBeInfinite) {
  for (const int n : {4, 9, 64, 300}) {
    // Below the diagonal only: the first row has none.
    EXPECT_TRUE(greatest(n, 0, n - 1, 1, n, 3).mayBeInfinite) << n;
    // The last columns only, and rows above them; of columns: rows above all of them.
    EXPECT_TRUE(greatest(n, 0, n, n / 2, n, 3).mayBeInfinite) << n;
    EXPECT_TRUE(greatest(n, 0, n / 2, 0, n, 2).mayBeInfinite) << n;
    // The rows before the last one do not see the last column.
    EXPECT_TRUE(greatest(n, n - 2, n, n - 1, n, 3).mayBeInfinite) << n;
  }
}

// Off the diagonal, too: of two indices in one piece, one position that is kept is not enough.
TEST(ModelFacts, WhatIsZeroSomewhereIsNotPositive) {
  for (const int n : {2, 5, 64, 5000}) {
    EXPECT_TRUE(factsOf("mask", n, 0, n, 0, n, 3).mayBeInfinite) << n;
    EXPECT_TRUE(factsOf("scores", n, 0, n, 0, n, 3).mayBeInfinite) << n;
    const TensorFacts open = factsOf("open", n, 0, n, 0, n, 3);
    EXPECT_FALSE(open.mayBeInfinite) << n;
    EXPECT_EQ(open.sign, Sign::kNonNegative) << n;
  }
}

}  // namespace
}  // namespace shardproof
