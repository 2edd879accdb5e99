// SPDX-License-Identifier: Apache-2.0
// Every operator's definition by elements, written from docs/operators.md, against its evaluation
// over whole tensors (ops/), which the proofs are made with: two definitions, each call of
// tests/ops/cases.cpp at random shapes, forward and backward, in doubles.
#include "unreduced/evaluator.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "ops/cases.h"
#include "ops/registry.h"

namespace shardproof::unreduced {
namespace {

using ops::testing::Call;

// A stage of one node: operands are free, results computed.
struct OneNode {
  explicit OneNode(const Call& call) {
    StageNode node;
    node.op = ops::Registry::instance().find(call.op);
    node.attributes = std::make_shared<const Attributes>(call.attributes);
    const auto in = ops::testing::infosOf(call), out = ops::testing::inferResults(call);
    for (std::size_t i = 0; i < call.in.size(); ++i) {
      node.in.push_back(
          StageTensorId(call.in[i].present ? static_cast<std::int32_t>(stage.tensors.size()) : -1));
      if (call.in[i].present) add(in[i], Origin::kUnbound);
    }
    for (const ops::TensorInfo& info : out) {
      node.out.push_back(
          StageTensorId(info.absent ? -1 : static_cast<std::int32_t>(stage.tensors.size())));
      if (!info.absent) add(info, Origin::kComputed);
    }
    stage.nodes.push_back(node);
  }
  void add(const ops::TensorInfo& info, Origin origin) {
    StageTensor tensor;
    tensor.info = info;
    tensor.origin = origin;
    stage.tensors.push_back(tensor);
  }
  Stage stage;
};

bool agree(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

// False where the call has no definition by elements, for the reason that is expected of it.
void compare(const Call& call, ops::testing::Random& random) {
  SCOPED_TRACE(describe(call));
  const auto operands = ops::testing::randomOperands(call, random);
  DoubleAlgebra algebra;
  const auto expected = ops::testing::run(algebra, call, operands);
  const OneNode one(call);
  const StageNode& node = one.stage.nodes[0];
  std::vector<std::size_t> operandOf(one.stage.tensors.size(), 0);
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] >= 0) operandOf[at(node.in[i])] = i;
  }
  Binding binding(one.stage);
  Evaluator<DoubleAlgebra> evaluator(one.stage, binding, algebra, [&](ElementOf e) {
    return operands[operandOf[at(e.tensor)]].data.at(at(e.flat));
  });
  evaluator.allow(100'000'000, 1e12);
  for (std::size_t r = 0; r < node.out.size(); ++r) {
    if (node.out[r] < 0) continue;
    for (std::size_t i = 0; i < expected[r].data.size(); ++i) {
      const double found = evaluator.element(node.out[r], static_cast<Index>(i));
      ASSERT_TRUE(agree(found, expected[r].data[i]))
          << "result " << r << " element " << i << ": " << found << " and " << expected[r].data[i];
    }
  }
}

bool drawsItsMask(const Call& call) {
  const bool gradient = call.op == "dropout_backward";
  if (call.op != "dropout" && !gradient) return false;
  const std::size_t mask = gradient ? 2 : 1;
  const Rational p = ops::number(call.attributes, "p");
  return !p.isZero() && !p.isOne() && (call.in.size() <= mask || !call.in[mask].present);
}

TEST(Definitions, AreThoseThatProofsAreMadeWith) {
  ops::testing::Random random(20260101);
  std::set<std::string> seen;
  for (int round = 0; round < 6; ++round) {
    for (const Call& call : ops::testing::forwardCalls(random)) {
      std::vector<Call> calls{call};
      if (ops::testing::hasBackward(call)) calls.push_back(ops::testing::backwardCall(call));
      for (const Call& c : calls) {
        if (drawsItsMask(c))
          continue;  // masks are inputs before a stage is cut (src/core/ir/dropout_masks.h)
        ASSERT_NO_FATAL_FAILURE(compare(c, random));
        seen.insert(c.op);
      }
    }
  }
  for (std::size_t i = 0; i < ops::Registry::instance().size(); ++i) {
    const std::string& name =
        ops::Registry::instance().at(OperatorId(static_cast<std::uint32_t>(i))).name;
    EXPECT_TRUE(seen.contains(name)) << name << " is not compared";
    EXPECT_NE(definitionsOf(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace shardproof::unreduced
