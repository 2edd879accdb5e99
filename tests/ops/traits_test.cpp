// SPDX-License-Identifier: Apache-2.0
// Every fact that an operator declares about itself (ops/traits.h), by numbers on its calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cases.h"

namespace shardproof::ops::testing {
namespace {

using Tensor = TensorValue<RealNumbers>;

constexpr int kDraws = 5;
constexpr double kVeryNegative = -1e30;  // what tends to minus infinity

const OperatorInfo& infoOf(const std::string& name) {
  return Registry::instance().at(Registry::instance().find(name));
}

// Calls of all operators, gradients included.
std::vector<Call> allCalls(Random& random) {
  std::vector<Call> calls = forwardCalls(random);
  const std::size_t forward = calls.size();
  for (std::size_t i = 0; i < forward; ++i)
    if (hasBackward(calls[i])) calls.push_back(backwardCall(calls[i]));
  return calls;
}

bool isReal(const OperandSpec& o) { return o.present && o.element == ElementKind::kReal; }
bool hasComplex(const Call& call) {
  return std::any_of(call.in.begin(), call.in.end(), [](const OperandSpec& o) {
    return o.present && o.element == ElementKind::kComplex;
  });
}

// Any real numbers, zero included, also where the call's other tests need positive ones.
std::vector<Tensor> anyOperands(const Call& call, Random& random) {
  std::vector<Tensor> operands = randomOperands(call, random);
  std::uniform_real_distribution<double> spread(-3, 3);
  for (std::size_t i = 0; i < call.in.size(); ++i)
    if (isReal(call.in[i]))
      for (double& x : operands[i].data) x = random() % 8 == 0 ? 0 : spread(random);
  return operands;
}

std::vector<Tensor> positiveOperands(const Call& call, Random& random, bool zeros) {
  std::vector<Tensor> operands = randomOperands(call, random);
  std::uniform_real_distribution<double> spread(0.1, 3);
  for (std::size_t i = 0; i < call.in.size(); ++i)
    if (isReal(call.in[i]))
      for (double& x : operands[i].data) x = zeros && random() % 4 == 0 ? 0 : spread(random);
  return operands;
}

template <class F>
void eachCall(const F& f) {
  Random random(31);
  for (int draw = 0; draw < kDraws; ++draw)
    for (const Call& call : allCalls(random)) {
      if (hasComplex(call)) continue;
      SCOPED_TRACE(describe(call));
      f(call, infoOf(call.op), random);
    }
}

std::vector<Tensor> results(const Call& call, const std::vector<Tensor>& operands) {
  DoubleAlgebra a;
  return run(a, call, operands);
}

// Of the first result.
std::vector<double> firstOf(const Call& call, const std::vector<Tensor>& operands) {
  return results(call, operands)[0].data;
}

TEST(Traits, WhatIsTotalHasAValueForAllNumbers) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.total) return;
    looked.insert(call.op);
    for (const Tensor& t : results(call, anyOperands(call, random)))
      for (const double y : t.data) ASSERT_TRUE(std::isfinite(y));
  });
  EXPECT_GE(looked.size(), 50u);
  // These have no value for some numbers.
  for (const char* op : {"div", "log", "sqrt", "rsqrt", "pow", "layer_norm", "rms_norm", "adamw"})
    EXPECT_FALSE(infoOf(op).traits.total) << op;
}

TEST(Traits, WhatIsFiniteIsBoundedBesideMinusInfinity) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.finite) return;
    looked.insert(call.op);
    std::vector<Tensor> operands = anyOperands(call, random);
    // Of a gradient, the operand of the forward operator: the last real one.
    std::size_t scores = call.in.size();
    while (!isReal(call.in[--scores])) {
    }
    // One element: no row is without a number, whichever dimension it is along.
    std::vector<double>& x = operands[scores].data;
    if (x.size() < 2) return;
    x[random() % x.size()] = kVeryNegative;
    for (const Tensor& t : results(call, operands))
      for (const double y : t.data) ASSERT_LT(std::abs(y), 1e3);
  });
  EXPECT_TRUE(looked.contains("softmax") && looked.contains("cross_entropy_backward"));
}

TEST(Traits, TheSignIsAsDeclared) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (info.traits.sign == Sign::kAny) return;
    looked.insert(call.op);
    const bool everywhere = info.traits.total;
    const auto operands =
        everywhere ? anyOperands(call, random) : positiveOperands(call, random, false);
    for (const double y : firstOf(call, operands)) {
      if (info.traits.sign == Sign::kPositive) {
        ASSERT_GT(y, 0);
      } else {
        ASSERT_GE(y, 0);
      }
    }
  });
  EXPECT_GE(looked.size(), 8u);
}

TEST(Traits, WhatKeepsTheSignDoes) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.keepsSign || (info.traits.moves && !isReal(call.in[0]))) return;
    for (const auto& [key, value] : call.attributes)
      if (const auto* number = std::get_if<Rational>(&value); number && *number < Rational(0))
        if (key != "dim" && key != "dim0" && key != "dim1" && key != "index") return;
    looked.insert(call.op);
    for (const double y : firstOf(call, positiveOperands(call, random, false))) ASSERT_GT(y, 0);
    for (const double y : firstOf(call, positiveOperands(call, random, true)))
      if (std::isfinite(y)) {
        ASSERT_GE(y, 0);
      }
  });
  EXPECT_GE(looked.size(), 25u);
}

TEST(Traits, WhatPicksHasElementsOfTheOperands) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.picks) return;
    looked.insert(call.op);
    std::vector<Tensor> operands = randomOperands(call, random);
    std::set<double> elements;
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (call.in[i].present) elements.insert(operands[i].data.begin(), operands[i].data.end());
    for (const double y : firstOf(call, operands)) ASSERT_TRUE(elements.contains(y));
  });
  EXPECT_GE(looked.size(), 12u);
}

// The same permutation of the same elements, whatever they are.
TEST(Traits, WhatMovesDoesNotLookAtReals) {
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.moves) return;
    std::vector<Tensor> operands = randomOperands(call, random), doubled = operands;
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (isReal(call.in[i]))
        for (double& x : doubled[i].data) x = -2 * x;
    const std::vector<Tensor> y = results(call, operands), z = results(call, doubled);
    if (y[0].element != ElementKind::kReal) return;
    for (std::size_t k = 0; k < y[0].data.size(); ++k) ASSERT_EQ(-2 * y[0].data[k], z[0].data[k]);
  });
}

TEST(Traits, WhatRearrangesKeepsAllElements) {
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.rearranges) return;
    std::vector<Tensor> operands = randomOperands(call, random);
    std::vector<double> before = operands[0].data, after = firstOf(call, operands);
    std::sort(before.begin(), before.end());
    std::sort(after.begin(), after.end());
    ASSERT_EQ(before, after);
  });
}

// f(x + t d) is affine in t.
TEST(Traits, WhatIsAffineIs) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.affine) return;
    looked.insert(call.op);
    std::vector<Tensor> one = anyOperands(call, random), two = one;
    for (std::size_t i = 0; i < one.size(); ++i) {
      // Masks and conditions have no gradient: they stay.
      if (!isReal(call.in[i]) || (call.op == "apply_mask" && i == 1) ||
          (call.op == "where" && i == 0))
        continue;
      for (double& x : two[i].data) x += std::uniform_real_distribution<double>(-2, 2)(random);
    }
    std::vector<Tensor> middle = one;
    for (std::size_t i = 0; i < one.size(); ++i)
      if (isReal(call.in[i]))
        for (std::size_t k = 0; k < one[i].data.size(); ++k)
          middle[i].data[k] = (one[i].data[k] + two[i].data[k]) / 2;
    const auto a = results(call, one), b = results(call, two), c = results(call, middle);
    for (std::size_t r = 0; r < a.size(); ++r)
      for (std::size_t k = 0; k < a[r].data.size(); ++k)
        if (std::isfinite(a[r].data[k])) {
          ASSERT_NEAR((a[r].data[k] + b[r].data[k]) / 2, c[r].data[k], 1e-9);
        }
  });
  EXPECT_GE(looked.size(), 20u);
}

TEST(Traits, WhatIsElementwiseReadsItsOwnPosition) {
  std::set<std::string> looked;
  eachCall([&](const Call& call, const OperatorInfo& info, Random& random) {
    if (!info.traits.elementwise || call.in.empty() || !isReal(call.in[0])) return;
    const std::vector<Tensor> operands = randomOperands(call, random);
    const std::vector<Tensor> y = results(call, operands);
    if (y[0].data.size() != operands[0].data.size()) return;  // broadcast
    looked.insert(call.op);
    std::vector<Tensor> changed = operands;
    const std::size_t k = random() % changed[0].data.size();
    changed[0].data[k] = changed[0].data[k] * 1.25 + 0.125;
    const std::vector<Tensor> z = results(call, changed);
    for (std::size_t i = 0; i < y[0].data.size(); ++i)
      if (i != k) {
        ASSERT_EQ(y[0].data[i], z[0].data[i]);
      }
  });
  EXPECT_GE(looked.size(), 20u);
}

TEST(Traits, SumsAreSumsOfTwoOperands) {
  Random random(5);
  for (const Call& call : forwardCalls(random)) {
    if (!infoOf(call.op).traits.sums || call.in.size() != 2 || !call.attributes.empty() ||
        call.in[0].shape != call.in[1].shape)
      continue;
    const std::vector<Tensor> operands = randomOperands(call, random);
    const std::vector<Tensor> y = results(call, operands);
    for (std::size_t i = 0; i < y[0].data.size(); ++i)
      ASSERT_EQ(y[0].data[i], operands[0].data[i] + operands[1].data[i]);
  }
}

}  // namespace
}  // namespace shardproof::ops::testing
