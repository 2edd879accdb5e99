// SPDX-License-Identifier: Apache-2.0
// A model that grows operator by operator, with its plan: what the families that use the builder
// have in common.
#pragma once

#include <string>
#include <vector>

#include "adversary/plan_builder.h"

namespace shardproof::adversary {

class RandomGraph {
 public:
  RandomGraph(Random& random, const BuilderOptions& options)
      : random_(random), builder_(random, options) {}
  Case finish() { return builder_.finish(); }
  PlanBuilder& builder() { return builder_; }

  // One of the calls that the tests of operators are made with (tests/ops/cases.cpp: every
  // operator), or its gradient; of this operator only, if one is named.
  void listed(const std::string& name = {});
  void gradient();       // of an operator that is in the model
  void onWhatIsThere();  // an operator chosen for one of the tensors that are there
  void attention();      // scores, a causal mask, softmax
  void experts();        // a gate and the experts that it chooses
  void lookup();         // embedding, one_hot or cross entropy, and something that uses it
  void dropped();        // dropout of something, by seed or with a mask
  void elementwise();    // one operator that keeps shapes
  int apply(const ops::testing::Call& call, const std::vector<int>& operands);  // the first result
  int operand(const ops::testing::OperandSpec& wanted);  // one that is there, or a new one
  ops::testing::OperandSpec spec(int t) const {
    return {builder_.info(t).shape, builder_.info(t).element};
  }

 private:
  struct Applied {
    ops::testing::Call call;
    std::vector<int> operands, results;
  };
  int positive(int t);
  int unary(const std::string& op, int t, Attributes attributes = {});
  void binary(int t);
  int somewhere();  // a tensor that is there, made ones first

  Random& random_;
  PlanBuilder builder_;
  std::vector<int> made_;
  std::vector<Applied> calls_;
};

// A mesh of a few ranks, microbatches, and how much is cut and claimed.
BuilderOptions randomOptions(Random& random);

}  // namespace shardproof::adversary
