// SPDX-License-Identifier: Apache-2.0
// What an id may be taken for, and what not.
#include "shardproof/ids.h"

#include <gtest/gtest.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <type_traits>
#include <vector>

namespace shardproof {
namespace {

template <class A, class B>
concept Compares = requires(A a, B b) {
  a == b;
};
template <class A, class B>
concept Orders = requires(A a, B b) {
  a < b;
};

static_assert(!std::is_convertible_v<NodeId, TensorId>);
static_assert(!std::is_convertible_v<int, TensorId>);
static_assert(std::is_constructible_v<TensorId, int>);
static_assert(!std::is_constructible_v<TensorId, bool>);
static_assert(std::is_convertible_v<TensorId, std::int64_t>);
static_assert(!std::is_convertible_v<TensorId, bool>);  // 0 is a tensor
static_assert(Compares<TensorId, TensorId> && Compares<TensorId, int>);
static_assert(!Compares<TensorId, NodeId>);
static_assert(Orders<TensorId, TensorId> && !Orders<TensorId, NodeId>);

TEST(Ids, NoneIsNotValid) {
  EXPECT_FALSE(TensorId().valid());
  EXPECT_FALSE(TensorId::none());
  EXPECT_TRUE(TensorId(0));
  EXPECT_EQ(TensorId(), -1);
  EXPECT_LT(TensorId(), TensorId(0));
}

TEST(Ids, AreIndices) {
  const std::vector<int> values{5, 6, 7};
  EXPECT_EQ(values[NodeId(1)], 6);
  int sum = 0;
  for (const NodeId n : firstIds<NodeId>(values.size())) sum += values[n];
  EXPECT_EQ(sum, 18);
  std::map<Rank, int> counted;
  ++counted[Rank(3)];
  EXPECT_EQ(counted.at(Rank(3)), 1);
}

// The number of a rank times the number of microbatches does not fit 32 bits.
TEST(Ids, CountIn64Bits) {
  const Rank last((1 << 20) - 1);
  EXPECT_EQ(last * (1 << 20), ((std::int64_t{1} << 20) - 1) << 20);
}

}  // namespace
}  // namespace shardproof
