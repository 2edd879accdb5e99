// SPDX-License-Identifier: Apache-2.0
// The training step against what torch.optim and torch.nn.utils compute, written out here with
// PyTorch's own order of operations.
#include <gtest/gtest.h>

#include <cmath>

#include "cases.h"

namespace shardproof::ops::testing {
namespace {

using Values = std::vector<double>;

const Values kParameter{0.5, -1.25, 2, 0.125}, kGradient{1.5, 0.25, -0.75, 2},
    kFirst{0.1, -0.2, 0.3, 0}, kSecond{0.5, 0.25, 0.125, 1};

std::vector<Values> step(const std::string& op, const Attributes& attributes,
                         const std::vector<Values>& operands, std::size_t results) {
  Call call{op, attributes, {}, results};
  std::vector<TensorValue<RealNumbers>> in;
  for (const Values& v : operands) {
    const Shape shape = v.size() == 1 ? Shape{} : Shape{static_cast<std::int64_t>(v.size())};
    call.in.push_back({shape});
    TensorValue<RealNumbers> t;
    for (const std::int64_t n : shape) t.dims.push_back(ReducedDim::whole(n));
    t.data = v;
    in.push_back(std::move(t));
  }
  DoubleAlgebra algebra;
  std::vector<Values> out;
  for (const auto& t : run(algebra, call, in)) out.push_back(t.data);
  return out;
}

void expectNear(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
}

std::string refusal(const std::string& op, const Attributes& attributes, std::size_t operands,
                    std::size_t results) {
  try {
    Registry::instance().at(Registry::instance().find(op)).validate(attributes, operands, results);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

TEST(Optimizer, GradNormIsTheEuclideanNorm) {
  double sum = 0;
  for (const double g : kGradient) sum += g * g;
  expectNear(step("grad_norm", {}, {kGradient}, 1)[0], {std::sqrt(sum)});
}

TEST(Optimizer, ClipGradScalesOnlyWhatIsTooLong) {
  const Attributes half{{"max_norm", Rational(1, 2)}}, ten{{"max_norm", Rational(10)}};
  Values clipped = kGradient;
  for (double& g : clipped) g *= 0.5 / (2.5 + 1e-6);
  expectNear(step("clip_grad", half, {kGradient, {2.5}}, 1)[0], clipped);
  expectNear(step("clip_grad", ten, {kGradient, {2.5}}, 1)[0], kGradient);
}

TEST(Optimizer, SgdWithMomentum) {
  for (const bool nesterov : {false, true}) {
    Attributes a{
        {"lr", Rational(1, 10)}, {"momentum", Rational(9, 10)}, {"weight_decay", Rational(1, 4)}};
    if (nesterov) a["nesterov"] = true;
    else a["dampening"] = Rational(1, 2);
    Values updated, buffer;
    for (std::size_t i = 0; i < 4; ++i) {
      double d = kGradient[i] + 0.25 * kParameter[i];
      buffer.push_back(0.9 * kFirst[i] + (nesterov ? 1.0 : 0.5) * d);
      d = nesterov ? d + 0.9 * buffer[i] : buffer[i];
      updated.push_back(kParameter[i] - 0.1 * d);
    }
    const auto out = step("sgd", a, {kParameter, kGradient, kFirst}, 2);
    expectNear(out[0], updated);
    expectNear(out[1], buffer);
  }
}

TEST(Optimizer, AdamW) {
  const int t = 3;
  const Attributes a{
      {"lr", Rational(1, 10)}, {"step", Rational(t)}, {"weight_decay", Rational(1, 5)}};
  Values updated, first, second;
  for (std::size_t i = 0; i < 4; ++i) {
    const double decayed = kParameter[i] * (1 - 0.1 * 0.2);
    first.push_back(kFirst[i] + (kGradient[i] - kFirst[i]) * (1 - 0.9));
    second.push_back(kSecond[i] * 0.999 + (1 - 0.999) * kGradient[i] * kGradient[i]);
    const double denominator = std::sqrt(second[i]) / std::sqrt(1 - std::pow(0.999, t)) + 1e-8;
    updated.push_back(decayed - 0.1 / (1 - std::pow(0.9, t)) * first[i] / denominator);
  }
  const auto out = step("adamw", a, {kParameter, kGradient, kFirst, kSecond}, 3);
  expectNear(out[0], updated);
  expectNear(out[1], first);
  expectNear(out[2], second);
}

TEST(OneHot, MarksTheLabelsOfItsWindow) {
  Call call{
      "one_hot", numbers({{"start", 2}, {"stop", 5}}), {{{3}, ElementKind::kInteger, false, 6}}};
  TensorValue<RealNumbers> ids;
  ids.element = ElementKind::kInteger;
  ids.dims = {ReducedDim::whole(3)};
  ids.data = {4, 0, 2};
  DoubleAlgebra algebra;
  expectNear(run(algebra, call, {ids})[0].data, {0, 0, 1, 0, 0, 0, 1, 0, 0});
  EXPECT_NE(refusal("one_hot", numbers({{"start", 3}, {"stop", 3}}), 1, 1)
                .find("expected more than 'start'"),
            std::string::npos);
}

TEST(Optimizer, AttributesAndShapesAreChecked) {
  const Attributes lr{{"lr", Rational(1)}};
  const auto with = [](Attributes a, const char* key, AttributeValue v) {
    a[key] = std::move(v);
    return a;
  };
  EXPECT_EQ(refusal("adamw", with(lr, "step", Rational(1)), 4, 3), "no error");
  EXPECT_NE(refusal("adamw", lr, 4, 3).find("'step' is missing"), std::string::npos);
  EXPECT_NE(refusal("adamw", with(lr, "step", Rational(0)), 4, 3).find("'step'"),
            std::string::npos);
  EXPECT_NE(refusal("adamw", with(with(lr, "step", Rational(1)), "beta2", Rational(1)), 4, 3)
                .find("less than 1"),
            std::string::npos);
  EXPECT_NE(refusal("sgd", with(lr, "momentum", Rational(1, 2)), 2, 1).find("momentum buffer"),
            std::string::npos);
  EXPECT_NE(refusal("sgd", lr, 3, 2).find("parameter and gradient"), std::string::npos);
  EXPECT_NE(refusal("sgd", with(lr, "nesterov", true), 2, 1).find("nesterov"), std::string::npos);
  EXPECT_NE(refusal("clip_grad", {}, 2, 1).find("'max_norm' is missing"), std::string::npos);
  EXPECT_THROW(
      inferResults(
          {"adamw", with(lr, "step", Rational(1)), {{{2, 3}}, {{2, 3}}, {{2, 3}}, {{3, 2}}}, 3}),
      ShapeError);
  EXPECT_THROW(inferResults({"clip_grad", {{"max_norm", Rational(1)}}, {{{2, 3}}, {{2}}}}),
               ShapeError);
}

}  // namespace
}  // namespace shardproof::ops::testing
