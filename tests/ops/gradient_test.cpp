// SPDX-License-Identifier: Apache-2.0
// Every backward operator against central differences of its forward operator, in doubles.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cases.h"

namespace shardproof::ops::testing {
namespace {

using Tensor = TensorValue<RealNumbers>;

double loss(const Call& call, const std::vector<Tensor>& operands,
            const std::vector<Tensor>& gradients) {
  DoubleAlgebra a;
  const std::vector<Tensor> results = run(a, call, operands);
  double sum = 0;
  for (std::size_t r = 0; r < results.size(); ++r)
    for (std::size_t k = 0; k < results[r].data.size() && results[r].element == ElementKind::kReal;
         ++k)
      sum += gradients[r].data[k] * results[r].data[k];
  return sum;
}

TEST(Gradient, EveryOperatorAgreesWithCentralDifferences) {
  Random random(11);
  std::set<std::string> tested;
  for (int round = 0; round < 3; ++round) {
    for (const Call& forward : forwardCalls(random)) {
      if (!hasBackward(forward)) continue;
      const Call backward = backwardCall(forward);
      SCOPED_TRACE(describe(backward));
      tested.insert(backward.op);
      const std::size_t results = backward.in.size() - forward.in.size();
      const std::vector<Tensor> all = randomOperands(backward, random);
      const std::vector<Tensor> gradients(all.begin(),
                                          all.begin() + static_cast<std::ptrdiff_t>(results));
      std::vector<Tensor> operands(all.begin() + static_cast<std::ptrdiff_t>(results), all.end());
      DoubleAlgebra a;
      const std::vector<Tensor> found = run(a, backward, all);
      const std::vector<TensorInfo> infos = inferResults(backward);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        if (infos[i].absent) continue;
        for (std::size_t k = 0; k < operands[i].data.size(); ++k) {
          const double x = operands[i].data[k], h = 1e-5;
          operands[i].data[k] = x + h;
          const double up = loss(forward, operands, gradients);
          operands[i].data[k] = x - h;
          const double down = loss(forward, operands, gradients);
          operands[i].data[k] = x;
          const double expected = (up - down) / (2 * h);
          ASSERT_NEAR(found[i].data[k], expected, 1e-6 * (1 + std::abs(expected)))
              << "operand " << i << " element " << k;
        }
      }
    }
  }
  // A differentiable operator without a call in cases.cpp would go untested. The copies' backward
  // operators are no derivatives of an eval.
  std::set<std::string> untested;
  for (std::size_t i = 0; i < Registry::instance().size(); ++i) {
    const std::string& name =
        Registry::instance().at(OperatorId(static_cast<std::int64_t>(i))).name;
    if (name.ends_with("_backward") && !tested.contains(name)) untested.insert(name);
  }
  EXPECT_EQ(untested, (std::set<std::string>{"multiref_backward"}));
}

TEST(Gradient, AbsentGradientsContributeNothing) {
  Random random(3);
  Call rope{"apply_rotary_emb_backward",
            {},
            {{{2, 3, 2, 4}},
             {{2, 3, 1, 4}},
             {{2, 3, 2, 4}},
             {{2, 3, 1, 4}},
             {{3, 2}, ElementKind::kComplex}},
            3};
  const std::vector<Tensor> operands = randomOperands(rope, random);
  DoubleAlgebra a;
  const std::vector<Tensor> both = run(a, rope, operands);
  rope.in[1].present = false;
  const std::vector<Tensor> one = run(a, rope, operands);
  EXPECT_EQ(one[0].data, both[0].data);
  for (const double v : one[1].data) EXPECT_EQ(v, 0);
}

// Large tensors are differentiated place by place of their first dimensions: the same as each
// place by itself, also where places have weights.
TEST(Gradient, OfLargeTensorsIsThatOfTheirPieces) {
  Random random(13);
  const auto last = numbers({{"dim", -1}});
  const Shape large{40, 30, 50}, piece{1, 30, 50};
  const Shape deep{10, 2, 40, 100}, one{1, 2, 40, 100};
  struct Case {
    Call whole, piece;
  };
  const Case cases[] = {
      {{"softmax_backward", last, {{large}, {large}}, 1},
       {"softmax_backward", last, {{piece}, {piece}}, 1}},
      {{"softmax_backward", numbers({{"dim", 1}}), {{large}, {large}}, 1},
       {"softmax_backward", numbers({{"dim", 1}}), {{piece}, {piece}}, 1}},
      {{"log_softmax_backward", last, {{large}, {large}}, 1},
       {"log_softmax_backward", last, {{piece}, {piece}}, 1}},
      {{"silu_backward", {}, {{large}, {large}}, 1}, {"silu_backward", {}, {{piece}, {piece}}, 1}},
      {{"mul_backward", {}, {{large}, {large}, {large}}, 2},
       {"mul_backward", {}, {{piece}, {piece}, {piece}}, 2}},
      {{"apply_mask_backward", {}, {{deep}, {deep}, {{1, 1, 40, 100}}}, 2},
       {"apply_mask_backward", {}, {{one}, {one}, {{1, 1, 40, 100}}}, 2}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(describe(c.whole));
    const std::vector<Tensor> operands = randomOperands(c.whole, random);
    for (const bool weighted : {false, true}) {
      const std::int64_t places = c.whole.in[0].shape[0];
      std::vector<Tensor> given = operands;
      std::vector<std::vector<ReducedDim>> dims;
      const auto stood = [&](std::vector<ReducedDim>& of) {
        if (!weighted || of.size() < 2 || of[0].size() != places) return;
        of[0].full = 0;
        for (std::int64_t i = 0; i < places; ++i)
          of[0].full += of[0].weight[static_cast<std::size_t>(i)] = 1 + i % 3;
        for (std::int64_t i = 1; i < places; ++i)
          of[0].position[static_cast<std::size_t>(i)] =
              of[0].position[static_cast<std::size_t>(i - 1)] +
              of[0].weight[static_cast<std::size_t>(i - 1)];
      };
      for (Tensor& t : given) stood(t.dims);
      for (std::size_t r = 0; r < c.whole.results; ++r) dims.push_back(given[r + 1].dims);
      DoubleAlgebra a;
      const std::vector<Tensor> found = run(a, c.whole, given, dims);
      for (std::int64_t place = 0; place < places; ++place) {
        std::vector<Tensor> part = operands;
        for (Tensor& t : part) {
          if (t.dims[0].size() != places) continue;
          const std::int64_t length = static_cast<std::int64_t>(t.data.size()) / places;
          t.dims[0] = ReducedDim::whole(1);
          t.data = {t.data.begin() + place * length, t.data.begin() + (place + 1) * length};
        }
        const std::vector<Tensor> expected = run(a, c.piece, part);
        for (std::size_t r = 0; r < expected.size(); ++r) {
          const std::size_t length = expected[r].data.size();
          for (std::size_t k = 0; k < length; ++k)
            ASSERT_EQ(found[r].data[static_cast<std::size_t>(place) * length + k],
                      expected[r].data[k])
                << "place " << place << " element " << k;
        }
      }
    }
  }
}

TEST(Gradient, ScalarGradientMayBeDeclaredWithOneDimension) {
  Random random(5);
  const Call call{"sum_backward", {}, {{{1}}, {{2, 3}}}, 1};
  const std::vector<Tensor> operands = randomOperands(call, random);
  DoubleAlgebra a;
  const std::vector<Tensor> results = run(a, call, operands);
  for (const double v : results[0].data) EXPECT_EQ(v, operands[0].data[0]);
}

TEST(Gradient, WhatHasNoGradientIsSaid) {
  const auto absent = [](const Call& call) {
    std::vector<bool> flags;
    for (const TensorInfo& t : inferResults(call)) flags.push_back(t.absent);
    return flags;
  };
  const OperandSpec ids{{2, 3}, ElementKind::kInteger, false, 5};
  EXPECT_EQ(absent({"embedding_backward", {}, {{{2, 3, 4}}, ids, {{5, 4}}}, 2}),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(
      absent({"apply_mask_backward", {}, {{{2, 2, 3, 3}}, {{2, 2, 3, 3}}, {{1, 1, 3, 3}}}, 2}),
      (std::vector<bool>{false, true}));
  const Call wrongShape{"exp_backward", {}, {{{2, 3}}, {{3, 2}}}, 1};
  EXPECT_THROW(inferResults(wrongShape), ShapeError);
  Call none{"exp_backward", {}, {{{2, 3}}, {{2, 3}}}, 1};
  none.in[0].present = false;
  EXPECT_THROW(inferResults(none), ShapeError);
}

}  // namespace
}  // namespace shardproof::ops::testing
