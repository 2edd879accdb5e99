// SPDX-License-Identifier: Apache-2.0
#include "executor/collectives.h"

#include <gtest/gtest.h>

#include "kernels.h"

namespace shardproof::executor {
namespace {

template <class T>
std::vector<std::vector<double>> results(const CommunicationSpec& spec,
                                         const std::vector<Array>& operands,
                                         std::vector<Shape>* shapes = nullptr) {
  static Memory memory;
  Context context{memory};
  std::vector<Value<T>> values;
  for (const Array& a : operands) {
    if (a.data.empty()) values.emplace_back();  // none
    else values.emplace_back(memory, a.shape, a.element);
    for (std::size_t i = 0; i < a.data.size(); ++i)
      values.back().writable()[i] = testing::fromDouble<T>(a.data[i]);
  }
  std::vector<const Value<T>*> pointers;
  for (const Value<T>& v : values) pointers.push_back(v ? &v : nullptr);
  std::vector<std::vector<double>> found;
  for (const Value<T>& v : communicated(context, spec, pointers)) {
    found.emplace_back();
    for (std::int64_t i = 0; v && i < v.size(); ++i) found.back().push_back(toDouble(v.data()[i]));
    if (shapes != nullptr) shapes->push_back(v.shape);
  }
  return found;
}

CommunicationSpec spec(Communication kind, Reduction reduction = Reduction::kSum,
                       std::int32_t dim = 0, std::int32_t odim = 0) {
  CommunicationSpec s;
  s.kind = kind;
  s.reduction = reduction;
  s.dim = dim;
  s.odim = odim;
  return s;
}

using Lists = std::vector<std::vector<double>>;
const Array kA = testing::array({2, 2}, {1, 2, 3, 4}),
            kB = testing::array({2, 2}, {10, -20, 30, -40});

TEST(Collectives, Reductions) {
  EXPECT_EQ(results<double>(spec(Communication::kAllReduce), {kA, kB}),
            (Lists{{11, -18, 33, -36}, {11, -18, 33, -36}}));
  EXPECT_EQ(results<double>(spec(Communication::kAllReduce, Reduction::kMean), {kA, kB})[0],
            (std::vector<double>{5.5, -9, 16.5, -18}));
  EXPECT_EQ(results<double>(spec(Communication::kAllReduce, Reduction::kMax), {kA, kB})[0],
            (std::vector<double>{10, 2, 30, 4}));
  EXPECT_EQ(results<double>(spec(Communication::kAllReduce, Reduction::kMin), {kA, kB})[1],
            (std::vector<double>{1, -20, 3, -40}));
  EXPECT_EQ(results<Field>(spec(Communication::kAllReduce), {kA, kA})[0],
            (std::vector<double>{2, 4, 6, 8}));
  EXPECT_EQ(results<long double>(spec(Communication::kAllReduce), {kA, kA})[0],
            (std::vector<double>{2, 4, 6, 8}));
}

TEST(Collectives, PiecesGoWhereTheyBelong) {
  EXPECT_EQ(results<double>(spec(Communication::kAllGather, Reduction::kSum, 0), {kA, kB})[1],
            (std::vector<double>{1, 2, 3, 4, 10, -20, 30, -40}));
  EXPECT_EQ(results<double>(spec(Communication::kAllGather, Reduction::kSum, -1), {kA, kB})[0],
            (std::vector<double>{1, 2, 10, -20, 3, 4, 30, -40}));
  EXPECT_EQ(results<double>(spec(Communication::kReduceScatter, Reduction::kSum, 0), {kA, kB}),
            (Lists{{11, -18}, {33, -36}}));
  EXPECT_EQ(results<double>(spec(Communication::kReduceScatter, Reduction::kMax, 1), {kA, kB}),
            (Lists{{10, 30}, {2, 4}}));
  std::vector<Shape> shapes;
  EXPECT_EQ(
      results<double>(spec(Communication::kAllToAll, Reduction::kSum, 0, 1), {kA, kB}, &shapes),
      (Lists{{1, 2, 10, -20}, {3, 4, 30, -40}}));
  EXPECT_EQ(shapes[0], (Shape{1, 4}));
  EXPECT_EQ(results<double>(spec(Communication::kBroadcast), {kA}), (Lists{{1, 2, 3, 4}}));
}

TEST(Collectives, ComplexNumbersStayPairs) {
  const Array a = testing::array({2, 1}, {1, 2, 3, 4}, ElementKind::kComplex),
              b = testing::array({2, 1}, {5, 6, 7, 8}, ElementKind::kComplex);
  EXPECT_EQ(results<double>(spec(Communication::kAllGather, Reduction::kSum, 1), {a, b})[0],
            (std::vector<double>{1, 2, 5, 6, 3, 4, 7, 8}));
  EXPECT_EQ(results<double>(spec(Communication::kReduceScatter, Reduction::kSum, 0), {a, b}),
            (Lists{{6, 8}, {10, 12}}));
  EXPECT_THROW(results<double>(spec(Communication::kAllReduce, Reduction::kMax), {a, b}),
               NoMeaning);
}

TEST(Collectives, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(
      results<double>(spec(Communication::kAllReduce), {kA, testing::array({4}, {1, 2, 3, 4})}),
      Misfit);
  EXPECT_THROW(results<double>(spec(Communication::kAllReduce),
                               {kA, testing::array({2, 2}, {1, 2, 3, 4}, ElementKind::kInteger)}),
               Misfit);
  EXPECT_THROW(results<double>(spec(Communication::kReduceScatter), {kA, kA, kA}), Misfit);
  EXPECT_THROW(results<double>(spec(Communication::kAllGather, Reduction::kSum, 2), {kA, kA}),
               Misfit);
  const Array integers = testing::array({2}, {1, 2}, ElementKind::kInteger);
  EXPECT_THROW(
      results<double>(spec(Communication::kAllReduce, Reduction::kMean), {integers, integers}),
      NoMeaning);
  EXPECT_EQ(results<double>(spec(Communication::kAllReduce), {integers, integers})[0],
            (std::vector<double>{2, 4}));
}

CommunicationSpec uneven(Communication kind, std::vector<std::int64_t> sizes, std::int32_t dim,
                         std::int32_t odim = 0) {
  CommunicationSpec s = spec(kind, Reduction::kSum, dim, odim);
  s.sizes = std::move(sizes);
  return s;
}

TEST(Collectives, UnevenPieces) {
  const Array one = testing::array({1, 2}, {5, 6}), none{},
              five = testing::array({1, 5}, {1, 2, 3, 4, 5});
  EXPECT_EQ(results<double>(uneven(Communication::kAllGather, {2, 0, 1}, 0), {kA, none, one}),
            Lists(3, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(
      results<double>(uneven(Communication::kReduceScatter, {3, 0, 2}, 1), {five, five, five}),
      (Lists{{3, 6, 9}, {}, {12, 15}}));
  // Rows 0, 1 of a and the row of the other: member 1 gets a's second and both of nobody.
  std::vector<Shape> shapes;
  EXPECT_EQ(results<double>(uneven(Communication::kAllToAll, {0, 1, 1, 0, 0, 0, 0, 0, 1}, 0),
                            {kA, none, one}, &shapes),
            (Lists{{}, {1, 2}, {3, 4, 5, 6}}));
  EXPECT_EQ(shapes[2], (Shape{2, 2}));
  const Array columns = testing::array({2, 3}, {1, 2, 3, 4, 5, 6}),
              row = testing::array({1, 3}, {7, 8, 9});
  EXPECT_EQ(results<double>(uneven(Communication::kAllToAll, {1, 2, 1, 2}, 1), {columns, row}),
            (Lists{{1, 4, 7}, {2, 3, 5, 6, 8, 9}}));
  for (const auto& sizes : {std::vector<std::int64_t>{1, 0, 2}, {2, 1, 0}, {2, 0}, {2, 0, 2}})
    EXPECT_THROW(results<double>(uneven(Communication::kAllGather, sizes, 0), {kA, none, one}),
                 Misfit);
  EXPECT_THROW(results<double>(uneven(Communication::kReduceScatter, {3, 1}, 1), {five, five}),
               Misfit);
  EXPECT_THROW(results<double>(uneven(Communication::kAllToAll, {1, 2, 2, 1}, 1), {columns, row}),
               Misfit);
}

TEST(Collectives, Permutation) {
  CommunicationSpec s = spec(Communication::kPermute);
  s.pairs = {{1, 0}};
  EXPECT_EQ(results<double>(s, {kA, kB}), (Lists{{10, -20, 30, -40}, {0, 0, 0, 0}}));
  s.pairs = {{1, 0}, {0, 1}};
  EXPECT_EQ(results<Field>(s, {kA, kA})[1], (std::vector<double>{1, 2, 3, 4}));
  EXPECT_THROW(results<double>(s, {kA, testing::array({1}, {1})}), Misfit);
}

}  // namespace
}  // namespace shardproof::executor
