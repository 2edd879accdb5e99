// SPDX-License-Identifier: Apache-2.0
#include "executor/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/problems.h"

namespace shardproof::executor {
namespace {

std::vector<double> numbers(const Value<double>& v) { return {v.data(), v.data() + v.size()}; }

class Drawing : public ::testing::Test {
 protected:
  std::vector<double> draw(const Shape& shape, ElementKind element, const Use& use, bool parameter,
                           const Draw& d = {}, std::uint64_t key = 5) {
    return numbers(drawn<double>(memory_, {shape, element, use, parameter, key}, d));
  }
  Memory memory_;
};

TEST_F(Drawing, IndicesCoverTheirRange) {
  const auto ids = draw({40}, ElementKind::kInteger, {.ranged = true, .low = 3, .high = 13}, false);
  std::set<double> seen(ids.begin(), ids.end());
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(*seen.begin(), 3);
  EXPECT_EQ(*seen.rbegin(), 12);
  const auto few =
      draw({10}, ElementKind::kInteger, {.ranged = true, .low = 0, .high = 100000}, false);
  EXPECT_EQ(std::set<double>(few.begin(), few.end()).size(), 10u) << "no value comes twice";
}

TEST_F(Drawing, IntegersOfTwoValuesAreMasksOfPaddingWhereFreeOnesGiveNoValue) {
  const Use use{.ranged = true, .low = 0, .high = 2};
  const auto padded = draw({6, 5}, ElementKind::kInteger, use, false, {.style = 1});
  std::set<int> lengths;
  for (std::size_t row = 0; row < 6; ++row) {
    int ones = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      const double x = padded[row * 5 + i];
      if (i > 0) {
        EXPECT_LE(x, padded[row * 5 + i - 1]) << "no one comes after a zero";
      }
      ones += x == 1 ? 1 : 0;
    }
    EXPECT_GE(ones, 1);
    lengths.insert(ones);
  }
  EXPECT_GT(lengths.size(), 1u);
  const std::vector<double> ones(30, 1), zeros(30, 0);
  EXPECT_EQ(draw({6, 5}, ElementKind::kInteger, use, false, {.style = 2}), ones);
  EXPECT_EQ(draw({6, 5}, ElementKind::kInteger, use, false, {.style = 3}), zeros);
  EXPECT_EQ(draw({6, 5}, ElementKind::kInteger, use, false, {.style = 4}),
            draw({6, 5}, ElementKind::kInteger, use, false));
}

TEST_F(Drawing, ParametersKeepTheSizeOfWhatTheyMultiply) {
  double squares = 0;
  const auto w = draw({50, 400}, ElementKind::kReal, {}, true);
  for (const double x : w) squares += x * x;
  EXPECT_NEAR(squares / static_cast<double>(w.size()) * 400, 1, 0.05);
}

TEST_F(Drawing, FrequenciesLieOnTheUnitCircle) {
  const auto f = draw({30}, ElementKind::kComplex, {}, false);
  ASSERT_EQ(f.size(), 60u);
  for (std::size_t i = 0; i < f.size(); i += 2)
    EXPECT_NEAR(f[i] * f[i] + f[i + 1] * f[i + 1], 1, 1e-14);
}

TEST_F(Drawing, StylesChooseSigns) {
  const auto sign = [](const std::vector<double>& v) {
    int s = 0;
    for (const double x : v) s |= x > 0 ? 1 : 2;
    return s;
  };
  EXPECT_EQ(sign(draw({50}, ElementKind::kReal, {}, false)), 3);
  EXPECT_EQ(sign(draw({50}, ElementKind::kReal, {.positive = true}, false)), 1);
  EXPECT_EQ(sign(draw({50}, ElementKind::kReal, {}, false, {.style = 1})), 1);
  std::set<int> signs;
  for (std::uint64_t key = 0; key < 20; ++key)
    signs.insert(sign(draw({50}, ElementKind::kReal, {}, false, {.style = 2}, key)));
  EXPECT_EQ(signs, (std::set<int>{1, 2}));
}

TEST_F(Drawing, MovedALittleAndOnlyReals) {
  const auto x = draw({100}, ElementKind::kReal, {}, false),
             y = draw({100}, ElementKind::kReal, {}, false, {.moved = 7});
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NE(x[i], y[i]);
    EXPECT_LE(std::abs(x[i] - y[i]), 1e-3 * std::abs(x[i]) * (1 + 1e-9));
  }
  EXPECT_EQ(draw({100}, ElementKind::kInteger, {}, false),
            draw({100}, ElementKind::kInteger, {}, false, {.moved = 7}));
}

TEST_F(Drawing, AMaskBelongsToLogicalPositions) {
  const Shape whole{6, 8};
  const auto all = numbers(drawnMask<double>(memory_, 9, whole, {0, 0}, whole, {})),
             part = numbers(drawnMask<double>(memory_, 9, whole, {2, 4}, {3, 4}, {}));
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 4; ++j) EXPECT_EQ(part[i * 4 + j], all[(i + 2) * 8 + j + 4]);
  EXPECT_EQ(std::set<double>(all.begin(), all.end()), (std::set<double>{0, 1}));
  EXPECT_NE(all, numbers(drawnMask<double>(memory_, 10, whole, {0, 0}, whole, {})));
}

// What is looked up is drawn so that it can be: through moves, communication and lineage, on both
// sides.
TEST(Uses, RangesFollowMoves) {
  const auto problem = test::read(
      R"({"tensors": {"ids": {"shape": [4, 2], "kind": "input", "dtype": "int64"},
          "w": {"shape": [10, 3], "kind": "parameter"}, "t": {"shape": [2, 4]},
          "o": {"shape": [2, 4, 3]},
                      "labels": {"shape": [2, 4], "kind": "input", "dtype": "int64"},
                       "loss": {"shape": []}, "v": {"shape": [3], "kind": "input"},
                       "r": {"shape": [3]}},
          "nodes": [{"op": "transpose", "in": ["ids"], "out": ["t"],
           "attrs": {"dim0": 0, "dim1": 1}}, {"op": "embedding", "in": ["t", "w"], "out": ["o"]},
                    {"op": "cross_entropy", "in": ["o", "labels"], "out": ["loss"]},
                     {"op": "sqrt", "in": ["v"], "out": ["r"]}], "outputs": ["loss"]})",
      R"({"mesh": [["tp", 2]], "programs": [{"tensors": {"ids": {"shape": [4, 1], "kind": "input",
          "dtype": "int64"}, "all": {"shape": [4, 2], "dtype": "int64"},
          "w": {"shape": [10, 3], "kind": "parameter"},
                      "free": {"shape": [5], "kind": "input", "dtype": "int64"},
                       "hot": {"shape": [5, 4]}, "v": {"shape": [3], "kind": "input"},
                       "labels": {"shape": [2, 4], "kind": "input", "dtype": "int64"},
                       "loss": {"shape": []},
                      "o": {"shape": [2, 4, 3]}, "t": {"shape": [2, 4], "dtype": "int64"}},
          "nodes": [{"op": "all_gather", "in": ["ids"], "out": ["all"], "comm": "a",
           "group": ["tp"], "attrs": {"dim": 1}}, {"op": "transpose", "in": ["all"], "out": ["t"],
           "attrs": {"dim0": 0, "dim1": 1}},
                    {"op": "embedding", "in": ["t", "w"], "out": ["o"]},
                     {"op": "one_hot", "in": ["free"], "out": ["hot"],
                     "attrs": {"start": 20, "stop": 24}},
                    {"op": "cross_entropy", "in": ["o", "labels"], "out": ["loss"]}]}],
          "lineage": [{"tensor": "ids", "role": "input",
           "shards": [{"box": [[0, 4], [0, 1]], "step": {"tp": [0, 1]},
           "parts": [{"local": "ids"}]}]},
                      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 10], [0, 3]],
                       "parts": [{"local": "w"}]}]},
                      {"tensor": "labels", "role": "input",
                       "shards": [{"box": [[0, 2], [0, 4]], "parts": [{"local": "labels"}]}]},
                      {"tensor": "v", "role": "input", "shards": [{"box": [[0, 3]],
                       "parts": [{"local": "v"}]}]},
                      {"tensor": "loss", "role": "output",
                       "shards": [{"box": [], "parts": [{"local": "loss"}]}]}]})");
  const Uses uses(*problem);
  const auto model = [&](const char* name) {
    return uses.ofModel(TensorId(test::modelTensor(*problem, name)));
  };
  const auto local = [&](const char* name) {
    return uses.ofLocal(ProgramId(0), TensorId(test::localTensor(*problem, 0, name)));
  };
  EXPECT_EQ(model("ids").high, 10);
  EXPECT_EQ(local("ids").high, 10);
  EXPECT_EQ(local("all").high, 10);
  EXPECT_EQ(model("labels").high, 3);
  EXPECT_EQ(local("free").low, 19);  // one on each side of what is looked up
  EXPECT_EQ(local("free").high, 25);
  EXPECT_TRUE(model("v").positive);
  EXPECT_TRUE(local("v").positive);
  EXPECT_FALSE(model("w").positive);
}

}  // namespace
}  // namespace shardproof::executor
