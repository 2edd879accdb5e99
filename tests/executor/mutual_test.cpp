// SPDX-License-Identifier: Apache-2.0
// The executor's kernels against the operators of ops/, which were written apart from them: every
// call of tests/ops/cases.cpp and its gradient, in doubles.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels.h"
#include "ops/cases.h"
#include "ops/registry.h"

namespace shardproof::executor {
namespace {

using ops::testing::Call;

std::vector<testing::Given> given(const Call& call,
                                  const std::vector<ops::TensorValue<ops::RealNumbers>>& operands) {
  std::vector<testing::Given> list;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    list.push_back({{call.in[i].shape, call.in[i].element, operands[i].data}, call.in[i].present});
  return list;
}

bool draws(const Call& call) {
  return call.op.starts_with("dropout") &&
         call.in.size() == (call.op.ends_with("_backward") ? 2u : 1u) &&
         !ops::number(call.attributes, "p").isZero() && !ops::number(call.attributes, "p").isOne();
}

template <class T>
void compareCall(const Call& call, ops::testing::Random& random, double tolerance) {
  const auto operands = ops::testing::randomOperands(call, random);
  DoubleAlgebra algebra;
  const std::vector<ops::TensorInfo> infos = ops::testing::inferResults(call);
  const auto expected = ops::testing::run(algebra, call, operands);
  std::vector<char> wanted;
  for (const ops::TensorInfo& info : infos) wanted.push_back(!info.absent);
  const std::vector<Array> found =
      testing::runKernel<T>(call.op, call.attributes, given(call, operands), wanted);
  for (std::size_t r = 0; r < found.size(); ++r) {
    if (!wanted[r]) continue;
    ASSERT_TRUE(found[r].shape == infos[r].shape ||
                (infos[r].shape.empty() && found[r].shape == Shape{1}))
        << ops::testing::describe(call) << " result " << r << " has shape " << text(found[r].shape);
    ASSERT_EQ(found[r].element, infos[r].element) << ops::testing::describe(call);
    ASSERT_EQ(found[r].data.size(), expected[r].data.size()) << ops::testing::describe(call);
    double scale = 0;
    for (const double x : expected[r].data)
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
    for (std::size_t i = 0; i < found[r].data.size(); ++i) {
      const double a = found[r].data[i], b = expected[r].data[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      ASSERT_LE(std::abs(a - b), tolerance * std::max(scale, 1e-3))
          << ops::testing::describe(call) << " result " << r << " element " << i << ": " << a
          << ", ops says " << b;
    }
  }
}

TEST(Mutual, EveryOperatorAndGradientMeansTheSame) {
  ops::testing::Random random(5);
  std::set<std::string> seen;
  for (int round = 0; round < 20; ++round) {
    for (const Call& forward : ops::testing::forwardCalls(random, 1 + round % 3)) {
      std::vector<Call> calls{forward};
      if (ops::testing::hasBackward(forward)) calls.push_back(ops::testing::backwardCall(forward));
      for (const Call& call : calls) {
        seen.insert(call.op);
        if (draws(call)) continue;  // whose mask it is, is another matter: dropout_test.cpp
        SCOPED_TRACE(ops::testing::describe(call));
        compareCall<double>(call, random, 1e-11);
        compareCall<long double>(call, random, 1e-11);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  const ops::Registry& registry = ops::Registry::instance();
  for (std::size_t i = 0; i < registry.size(); ++i) {
    const std::string& name = registry.at(OperatorId(static_cast<std::int64_t>(i))).name;
    EXPECT_TRUE(seen.contains(name)) << name << " has no case";
    EXPECT_NE(findKernel<double>(name), nullptr) << name;
    EXPECT_NE(findKernel<long double>(name), nullptr) << name;
    EXPECT_NE(findKernel<Field>(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace shardproof::executor
