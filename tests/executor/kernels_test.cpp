// SPDX-License-Identifier: Apache-2.0
// Kernels by themselves: values that were computed by hand, and gradients against differences of
// the forward kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "executor/product.h"
#include "kernels.h"
#include "ops/cases.h"

namespace shardproof::executor {
namespace {

using testing::array;
using testing::Given;
using testing::runKernel;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr ElementKind kInt = ElementKind::kInteger;
using List = std::vector<std::int64_t>;

struct ByHand {
  const char* op;
  Attributes attributes;
  std::vector<Given> in;
  std::vector<Array> out;
};

Given of(Shape shape, std::vector<double> data, ElementKind element = ElementKind::kReal) {
  return {array(std::move(shape), std::move(data), element)};
}
Given absent() { return {{}, false}; }
Array is(Shape shape, std::vector<double> data, ElementKind element = ElementKind::kReal) {
  return array(std::move(shape), std::move(data), element);
}

std::vector<ByHand> byHand() {
  const double e = std::exp(1.0), log2 = std::log(2.0);
  const auto num = [](std::initializer_list<std::pair<const char*, Rational>> list) {
    Attributes a;
    for (const auto& [k, v] : list) a[k] = v;
    return a;
  };
  return {
      {"add",
       num({{"alpha", Rational(2)}}),
       {of({2, 1}, {1, 2}), of({2}, {10, 20})},
       {is({2, 2}, {21, 41, 22, 42})}},
      {"add",
       num({{"alpha", Rational(3)}, {"scalar", Rational(1, 4)}}),
       {of({2}, {1, 2})},
       {is({2}, {1.75, 2.75})}},
      {"sub", {}, {of({2}, {1, 2}), of({}, {5})}, {is({2}, {-4, -3})}},
      {"mul", num({{"scalar", Rational(1, 2)}}), {of({2}, {3, 5})}, {is({2}, {1.5, 2.5})}},
      {"div", {}, {of({2}, {3, 5}), of({2}, {2, -4})}, {is({2}, {1.5, -1.25})}},
      {"relu", {}, {of({3}, {-1, 0, 2})}, {is({3}, {0, 0, 2})}},
      {"relu_backward", {}, {of({3}, {5, 6, 7}), of({3}, {-1, 0, 2})}, {is({3}, {0, 0, 7})}},
      {"sigmoid", {}, {of({2}, {0, log2})}, {is({2}, {0.5, 2.0 / 3})}},
      {"silu", {}, {of({1}, {log2})}, {is({1}, {log2 * 2 / 3})}},
      {"gelu", {}, {of({2}, {0, 1})}, {is({2}, {0, 0.8413447460685429})}},
      {"gelu",
       {{"approximate", std::string("tanh")}},
       {of({1}, {1})},
       {is({1}, {0.8411919906082768})}},
      {"pow", num({{"scalar", Rational(-3, 2)}}), {of({2}, {4, 1})}, {is({2}, {0.125, 1})}},
      {"pow", num({{"scalar", Rational(0)}}), {of({2}, {0, -3})}, {is({2}, {1, 1})}},
      {"dropout",
       num({{"p", Rational(1, 5)}}),
       {of({3}, {4, 8, 12}), of({3}, {1, 0, 2}, kInt)},
       {is({3}, {5, 0, 0})}},
      {"dropout", num({{"p", Rational(1)}}), {of({2}, {4, 8})}, {is({2}, {0, 0})}},
      {"where",
       {},
       {of({4}, {1, 0, 2, 1}, kInt), of({4}, {1, std::nan(""), 3, 4}), of({}, {9})},
       {is({4}, {1, 9, 9, 4})}},
      {"where",
       {},
       {of({3}, {1, 0, 0.5}), of({3}, {1, std::nan(""), 3}), of({3}, {std::nan(""), 8, 9})},
       {is({3}, {1, 8, 9})}},
      {"multiref_backward",
       {},
       {of({2}, {1, 2}), absent(), of({2}, {10, 20})},
       {is({2}, {11, 22})}},
      {"view",
       {{"size", List{3, -1}}},
       {of({2, 3}, {1, 2, 3, 4, 5, 6})},
       {is({3, 2}, {1, 2, 3, 4, 5, 6})}},
      {"transpose",
       num({{"dim0", Rational(0)}, {"dim1", Rational(-1)}}),
       {of({2, 3}, {1, 2, 3, 4, 5, 6})},
       {is({3, 2}, {1, 4, 2, 5, 3, 6})}},
      {"permute",
       {{"dims", List{2, 0, 1}}},
       {of({1, 2, 2}, {1, 2, 3, 4}, kInt)},
       {is({2, 1, 2}, {1, 3, 2, 4}, kInt)}},
      {"expand",
       {{"size", List{2, -1, 2}}},
       {of({2, 1}, {1, 2})},
       {is({2, 2, 2}, {1, 1, 2, 2, 1, 1, 2, 2})}},
      {"expand_backward",
       {{"size", List{2, -1, 2}}},
       {of({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), of({2, 1}, {0, 0})},
       {is({2, 1}, {14, 22})}},
      {"slice",
       num({{"dim", Rational(0)},
            {"start", Rational(-4)},
            {"stop", Rational(100)},
            {"step", Rational(2)}}),
       {of({5}, {1, 2, 3, 4, 5})},
       {is({2}, {2, 4})}},
      {"slice_backward",
       num({{"dim", Rational(0)}, {"start", Rational(1)}, {"step", Rational(2)}}),
       {of({2}, {7, 8}), of({5}, {0, 0, 0, 0, 0})},
       {is({5}, {0, 7, 0, 8, 0})}},
      {"select",
       num({{"dim", Rational(1)}, {"index", Rational(-1)}}),
       {of({2, 2}, {1, 2, 3, 4})},
       {is({2}, {2, 4})}},
      {"cat",
       num({{"dim", Rational(1)}}),
       {of({2, 1}, {1, 2}), of({2, 2}, {3, 4, 5, 6})},
       {is({2, 3}, {1, 3, 4, 2, 5, 6})}},
      {"chunk",
       num({{"dim", Rational(0)}, {"parts", Rational(2)}, {"index", Rational(1)}}),
       {of({4}, {1, 2, 3, 4})},
       {is({2}, {3, 4})}},
      {"pad",
       {{"pad", List{1, 0, 0, 1}}, {"value", Rational(9)}},
       {of({1, 2}, {1, 2})},
       {is({2, 3}, {9, 1, 2, 9, 9, 9})}},
      {"pad_backward",
       {{"pad", List{1, 0, 0, 1}}},
       {of({2, 3}, {1, 2, 3, 4, 5, 6}), of({1, 2}, {0, 0})},
       {is({1, 2}, {2, 3})}},
      {"sum",
       {{"dim", List{0, 2}}},
       {of({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})},
       {is({2}, {14, 22})}},
      {"mean",
       {{"dim", List{-1}}, {"keepdim", true}},
       {of({2, 2}, {1, 2, 3, 6})},
       {is({2, 1}, {1.5, 4.5})}},
      {"amax", {}, {of({2, 2}, {1, -7, 3, 2})}, {is({}, {3})}},
      {"amin", {{"dim", List{0}}}, {of({2, 2}, {1, -7, 3, 2})}, {is({2}, {1, -7})}},
      {"logsumexp", {{"dim", List{0}}}, {of({2, 1}, {1000, 1000})}, {is({1}, {1000 + log2})}},
      {"logsumexp", {{"dim", List{0}}}, {of({2}, {3, -kInf})}, {is({}, {3})}},
      {"linear",
       {},
       {of({2, 2}, {1, 2, 3, 4}), of({1, 2}, {10, 1}), of({1}, {100})},
       {is({2, 1}, {112, 134})}},
      {"matmul", {}, {of({2}, {1, 2}), of({2, 2}, {1, 2, 3, 4})}, {is({2}, {7, 10})}},
      {"matmul", {}, {of({2, 1, 2}, {1, 2, 3, 4}), of({2}, {10, 1})}, {is({2, 1}, {12, 34})}},
      {"einsum",
       {{"equation", std::string("ij, jk -> ki")}},
       {of({1, 2}, {1, 2}), of({2, 2}, {1, 2, 3, 4})},
       {is({2, 1}, {7, 10})}},
      {"einsum", {{"equation", std::string("ij->")}}, {of({2, 2}, {1, 2, 3, 4})}, {is({}, {10})}},
      {"softmax", num({{"dim", Rational(0)}}), {of({3}, {5, -kInf, 5})}, {is({3}, {0.5, 0, 0.5})}},
      {"log_softmax", num({{"dim", Rational(0)}}), {of({2}, {1, 1})}, {is({2}, {-log2, -log2})}},
      {"layer_norm",
       num({{"eps", Rational(0)}}),
       {of({1, 2}, {1, 3}), of({2}, {2, 3}), of({2}, {10, 20})},
       {is({1, 2}, {8, 23})}},
      {"rms_norm",
       num({{"eps", Rational(11, 2)}}),
       {of({2}, {3, 4}), of({2}, {1, 2})},
       {is({2}, {3 / std::sqrt(18.0), 8 / std::sqrt(18.0)})}},
      {"cross_entropy",
       {},
       {of({2, 2}, {0, 0, 0, 1}), of({2}, {0, 1}, kInt)},
       {is({}, {(log2 + std::log(1 + e) - 1) / 2})}},
      {"cross_entropy",
       {{"reduction", std::string("none")}},
       {of({1, 2}, {0, 0}), of({1}, {1}, kInt)},
       {is({1}, {log2})}},
      {"cross_entropy_backward",
       {{"reduction", std::string("sum")}},
       {of({}, {2}), of({1, 2}, {0, 0}), of({1}, {1}, kInt)},
       {is({1, 2}, {1, -1})}},
      {"one_hot",
       num({{"start", Rational(1)}, {"stop", Rational(3)}}),
       {of({2}, {2, 0}, kInt)},
       {is({2, 2}, {0, 1, 0, 0})}},
      {"embedding",
       num({{"start", Rational(5)}, {"stop", Rational(7)}}),
       {of({3}, {6, 4, 5}, kInt), of({2, 2}, {1, 2, 3, 4})},
       {is({3, 2}, {3, 4, 0, 0, 1, 2})}},
      {"create_mask", {}, {of({1, 2}, {0, 0}, kInt)}, {is({1, 1, 2, 2}, {0, -kInf, 0, 0})}},
      {"apply_mask", {}, {of({2}, {1, 2}), of({2}, {0, -kInf})}, {is({2}, {1, -kInf})}},
      {"apply_rotary_emb",
       {},
       {of({1, 1, 1, 2}, {1, 2}), of({1, 1, 1, 2}, {3, 4}),
        of({1, 1}, {0, 1}, ElementKind::kComplex)},
       {is({1, 1, 1, 2}, {-2, 1}), is({1, 1, 1, 2}, {-4, 3})}},
      {"moe_gate",
       {{"score_func", std::string("sigmoid")},
        {"topk", Rational(2)},
        {"route_scale", Rational(3)}},
       {of({1, 1}, {1}), of({3, 1}, {0, -kInf, 0})},
       {is({1, 2}, {1.5, 1.5}), is({1, 2}, {0, 2}, kInt)}},  // a tie: the smaller index first
      {"moe_experts",
       num({{"n_routed_experts", Rational(3)},
            {"local_expert_start", Rational(1)},
            {"local_expert_end", Rational(2)}}),
       {of({2, 1}, {1, 1}), of({2, 2}, {1, 0, 2, 2}, kInt), of({2, 2}, {10, 1, 1, 1}),
        of({1, 1, 1}, {log2}), of({1, 1, 1}, {3}), of({1, 1, 1}, {5})},
       {is({2, 1}, {10 * 5 * (log2 * 2 / 3) * 3, 0})}},
      {"grad_norm", {}, {of({2}, {3, 4})}, {is({}, {5})}},
      {"clip_grad",
       num({{"max_norm", Rational(1)}, {"eps", Rational(0)}}),
       {of({2}, {3, 4}), of({1}, {5})},
       {is({2}, {0.6, 0.8})}},
      {"clip_grad",
       num({{"max_norm", Rational(10)}}),
       {of({2}, {3, 4}), of({}, {5})},
       {is({2}, {3, 4})}},
      {"sgd",
       num({{"lr", Rational(1, 2)},
            {"momentum", Rational(1, 2)},
            {"weight_decay", Rational(1, 10)},
            {"dampening", Rational(1, 4)}}),
       {of({1}, {10}), of({1}, {3}), of({1}, {2})},
       {is({1}, {8}), is({1}, {4})}},
      {"adamw",
       num({{"lr", Rational(1, 10)},
            {"step", Rational(1)},
            {"beta1", Rational(1, 2)},
            {"beta2", Rational(3, 4)},
            {"eps", Rational(0)},
            {"weight_decay", Rational(1, 2)}}),
       {of({1}, {10}), of({1}, {4}), of({1}, {0}), of({1}, {0})},
       {is({1}, {9.4}), is({1}, {2}), is({1}, {4})}},
  };
}

TEST(Kernels, ByHand) {
  for (const ByHand& c : byHand()) {
    const auto found =
        runKernel<double>(c.op, c.attributes, c.in, std::vector<char>(c.out.size(), 1));
    const auto longer =
        runKernel<long double>(c.op, c.attributes, c.in, std::vector<char>(c.out.size(), 1));
    for (std::size_t r = 0; r < c.out.size(); ++r) {
      EXPECT_EQ(found[r].shape, c.out[r].shape) << c.op;
      EXPECT_EQ(found[r].element, c.out[r].element) << c.op;
      ASSERT_EQ(found[r].data.size(), c.out[r].data.size()) << c.op;
      for (std::size_t i = 0; i < found[r].data.size(); ++i) {
        if (found[r].data[i] == c.out[r].data[i]) continue;
        EXPECT_NEAR(found[r].data[i], c.out[r].data[i], 1e-13)
            << c.op << " result " << r << " element " << i;
        EXPECT_NEAR(longer[r].data[i], c.out[r].data[i], 1e-13)
            << c.op << " result " << r << " element " << i;
      }
    }
  }
}

TEST(Kernels, NoValueIsNotSwallowed) {
  const auto value = [](const char* op, std::vector<Given> in, Attributes a = {}) {
    return runKernel<double>(op, a, in, {1})[0].data[0];
  };
  EXPECT_TRUE(std::isnan(value("div", {of({}, {1}), of({}, {0})})));
  EXPECT_TRUE(std::isnan(value("log", {of({}, {0})})));
  EXPECT_TRUE(std::isnan(value("sqrt", {of({}, {-1})})));
  EXPECT_TRUE(std::isnan(value("rsqrt", {of({}, {0})})));
  EXPECT_TRUE(std::isnan(value("relu", {of({}, {std::nan("")})})));
  EXPECT_TRUE(std::isnan(value("amax", {of({2}, {std::nan(""), 3})})));
  EXPECT_TRUE(std::isnan(value("amax", {of({2}, {3, std::nan("")})})));
  EXPECT_TRUE(std::isnan(value("pow", {of({}, {0})}, {{"scalar", Rational(-1)}})));
  EXPECT_TRUE(std::isnan(value("softmax", {of({2}, {-kInf, -kInf})}, {{"dim", Rational(0)}})));
  EXPECT_TRUE(std::isnan(value("cross_entropy", {of({2}, {1, 2}), of({}, {2}, kInt)})));
  EXPECT_TRUE(std::isnan(value("mul", {of({}, {0}), of({}, {std::nan("")})})));
  EXPECT_TRUE(std::isnan(value("dropout", {of({}, {std::nan("")})}, {{"p", Rational(1)}})));
  EXPECT_TRUE(std::isnan(value("pow", {of({}, {std::nan("")})}, {{"scalar", Rational(0)}})));
  // A gradient that the definition gives without x is there where x is not.
  const Given nowhere = of({}, {std::nan("")});
  EXPECT_EQ(value("pow_backward", {of({}, {3}), nowhere}, {{"scalar", Rational(0)}}), 0);
  EXPECT_EQ(value("pow_backward", {of({}, {3}), nowhere}, {{"scalar", Rational(1)}}), 3);
}

// A mask's entry is no number (docs/operators.md).
TEST(Kernels, ZeroTimesMinusInfinityHasNoValue) {
  const auto value = [](const char* op, std::vector<Given> in, Attributes a = {}) {
    return runKernel<double>(op, a, in, {1})[0].data[0];
  };
  const Given masked = of({}, {-kInf});
  EXPECT_TRUE(std::isnan(value("mul", {of({}, {0}), masked})));
  EXPECT_TRUE(std::isnan(value("mul", {masked}, {{"scalar", Rational(0)}})));
  EXPECT_TRUE(std::isnan(value("matmul", {of({1, 2}, {0, 1}), of({2, 1}, {-kInf, 2})})));
  EXPECT_TRUE(std::isnan(value("relu", {masked})));
  EXPECT_TRUE(std::isnan(value("div", {of({}, {1}), masked})));
  EXPECT_TRUE(std::isnan(value("pow", {masked}, {{"scalar", Rational(0)}})));
  EXPECT_TRUE(std::isnan(value("dropout", {masked}, {{"p", Rational(1)}})));
  EXPECT_TRUE(std::isnan(value("dropout", {masked, of({}, {0}, kInt)}, {{"p", Rational(1, 2)}})));
  EXPECT_EQ(value("dropout", {masked, of({}, {1}, kInt)}, {{"p", Rational(1, 2)}}), -kInf);
  EXPECT_EQ(value("mul", {of({}, {2}), masked}), -kInf);
  EXPECT_EQ(value("exp", {masked}), 0);
}

// What does not fit is refused, whatever a plan declares.
TEST(Kernels, OperandsThatDoNotFitAreRefused) {
  const auto refused = [](const char* op, std::vector<Given> in, Attributes a = {}) {
    EXPECT_THROW(runKernel<double>(op, a, in, {1, 1}), Misfit) << op;
  };
  const Given two = of({2}, {1, 2}), three = of({3}, {1, 2, 3}), ints = of({2}, {0, 1}, kInt),
              matrix = of({2, 2}, {1, 2, 3, 4});
  refused("add", {two, three});
  refused("add", {two, ints});
  refused("mul_backward", {three, two, two});
  refused("exp_backward", {three, two});
  refused("exp", {ints});
  refused("dropout", {two, of({3}, {1, 1, 1}, kInt)}, {{"p", Rational(1, 2)}});
  refused("view", {three}, {{"size", List{2, -1}}});
  refused("view", {three}, {{"size", List{4}}});
  refused("transpose", {two}, {{"dim0", Rational(0)}, {"dim1", Rational(1)}});
  refused("permute", {matrix}, {{"dims", List{0, 0}}});
  refused("expand", {two}, {{"size", List{3}}});
  refused("slice", {two}, {{"dim", Rational(0)}, {"start", Rational(2)}});
  refused("select", {two}, {{"dim", Rational(0)}, {"index", Rational(2)}});
  refused("chunk", {three}, {{"dim", Rational(0)}, {"parts", Rational(2)}, {"index", Rational(0)}});
  refused("cat", {matrix, two}, {{"dim", Rational(0)}});
  refused("pad", {two}, {{"pad", List{1, 1, 1, 1}}});
  refused("sum", {two}, {{"dim", List{1}}});
  for (const char* op : {"sum", "mean", "amax", "amin", "logsumexp"})
    for (const std::int64_t dim : {0, -1}) refused(op, {of({}, {1})}, {{"dim", List{dim}}});
  refused("sum", {two}, {{"dim", List{0, -1}}});
  refused("linear", {two, of({2, 3}, {1, 2, 3, 4, 5, 6})});
  refused("linear", {two, matrix, three});
  refused("matmul", {two, three});
  refused("matmul", {of({}, {1}), two});
  refused("einsum", {matrix, three}, {{"equation", std::string("ij,j->i")}});
  refused("einsum", {matrix}, {{"equation", std::string("i->i")}});
  refused("softmax", {of({}, {1})}, {{"dim", Rational(0)}});
  refused("layer_norm", {two, three}, {{"eps", Rational(1)}});
  refused("cross_entropy", {matrix, of({3}, {0, 0, 0}, kInt)});
  refused("cross_entropy", {matrix, two});
  refused("embedding", {ints, two});
  refused("embedding", {ints, matrix}, {{"start", Rational(0)}, {"stop", Rational(3)}});
  refused("create_mask", {two});
  refused("apply_rotary_emb", {of({1, 1, 1, 2}, {1, 2}), of({1, 1, 1, 2}, {1, 2}),
                               of({1, 2}, {1, 2, 3, 4}, ElementKind::kComplex)});
  refused("moe_gate", {matrix, matrix},
          {{"score_func", std::string("softmax")}, {"topk", Rational(3)}});
  refused(
      "moe_gate", {matrix, of({3, 2}, {1, 2, 3, 4, 5, 6})},
      {{"score_func", std::string("softmax")}, {"topk", Rational(1)}, {"n_groups", Rational(2)}});
  refused("clip_grad", {two, two}, {{"max_norm", Rational(1)}});
  refused("sgd", {two, three}, {{"lr", Rational(1)}});
}

// Every gradient kernel against central differences of the forward kernel, both in long doubles.
TEST(Kernels, GradientsAreDifferencesOfTheForwardKernel) {
  ops::testing::Random random(17);
  int compared = 0;
  for (const ops::testing::Call& call : ops::testing::forwardCalls(random)) {
    if (findKernel<double>(call.op + "_backward") == nullptr || call.op.ends_with("_backward") ||
        call.op == "multiref")
      continue;
    if (call.op == "dropout" && call.in.size() == 1) continue;
    const std::vector<ops::TensorInfo> infos = ops::testing::inferResults(call);
    if (infos[0].element != ElementKind::kReal) continue;
    const auto values = ops::testing::randomOperands(call, random);
    std::vector<Given> in;
    for (std::size_t i = 0; i < call.in.size(); ++i)
      in.push_back({{call.in[i].shape, call.in[i].element, values[i].data}, call.in[i].present});
    std::vector<char> realResults;
    for (const ops::TensorInfo& info : infos)
      realResults.push_back(info.element == ElementKind::kReal);
    std::vector<Given> back;
    for (const ops::TensorInfo& info : infos) {
      Array g{info.shape, ElementKind::kReal, {}};
      for (std::int64_t i = 0; i < positionsOf(info.shape); ++i)
        g.data.push_back(std::uniform_real_distribution<double>(-1, 1)(random));
      back.push_back({g, info.element == ElementKind::kReal});
    }
    const std::size_t results = infos.size();
    back.insert(back.end(), in.begin(), in.end());
    std::vector<char> wanted;
    for (const ops::TensorInfo& info : ops::testing::inferResults(ops::testing::backwardCall(call)))
      wanted.push_back(!info.absent);
    const auto gradients =
        runKernel<long double>(call.op + "_backward", call.attributes, back, wanted);
    const auto total = [&](const std::vector<Given>& operands) {
      long double sum = 0;
      const auto y = runKernel<long double>(call.op, call.attributes, operands, realResults);
      for (std::size_t r = 0; r < results; ++r)
        for (std::size_t i = 0; i < y[r].data.size(); ++i)
          sum += static_cast<long double>(y[r].data[i]) * back[r].array.data[i];
      return sum;
    };
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!wanted[i]) continue;
      for (std::size_t k = 0; k < in[i].array.data.size(); k += 1 + in[i].array.data.size() / 7) {
        constexpr double h = 1e-5;
        std::vector<Given> up = in, down = in;
        up[i].array.data[k] += h;
        down[i].array.data[k] -= h;
        const auto expected = static_cast<double>((total(up) - total(down)) /
                                                  (up[i].array.data[k] - down[i].array.data[k]));
        ASSERT_NEAR(gradients[i].data[k], expected, 2e-7 * (1 + std::abs(expected)))
            << ops::testing::describe(call) << " operand " << i << " element " << k;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 600);
}

// --- products ---

template <class T>
void expectProduct(const auto& multiplyIt, std::int64_t m, std::int64_t n, std::int64_t k, bool ta,
                   bool tb, std::int64_t batches) {
  std::vector<T> a(static_cast<std::size_t>(m * k * batches)), b(static_cast<std::size_t>(k * n)),
      c(static_cast<std::size_t>(m * n * batches), T(99));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = T(static_cast<std::int64_t>(i * 7 % 11) - 5);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = T(static_cast<std::int64_t>(i * 5 % 13) - 6);
  multiplyIt(Product<T>{.m = m,
                        .n = n,
                        .k = k,
                        .a = a.data(),
                        .b = b.data(),
                        .c = c.data(),
                        .transposeA = ta,
                        .transposeB = tb,
                        .batches = batches,
                        .strideA = m * k,
                        .strideB = 0,
                        .strideC = m * n});
  for (std::int64_t q = 0; q < batches; ++q)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        T sum = T(0);
        for (std::int64_t l = 0; l < k; ++l)
          sum += a[static_cast<std::size_t>(q * m * k + (ta ? l * m + i : i * k + l))] *
                 b[static_cast<std::size_t>(tb ? j * k + l : l * n + j)];
        ASSERT_TRUE(c[static_cast<std::size_t>(q * m * n + i * n + j)] == sum)
            << m << "x" << n << "x" << k << " at " << q << ", " << i << ", " << j;
      }
}

TEST(Products, AreThoseOfPlainLoops) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const auto& [m, n, k] : std::vector<std::tuple<int, int, int>>{
               {1, 1, 1}, {3, 5, 7}, {33, 17, 65}, {1, 40, 100}, {64, 64, 64}, {130, 1, 300}}) {
        const auto any = [](const auto& p) { multiply(p); };
        expectProduct<double>(any, m, n, k, ta, tb, 3);
        expectProduct<long double>(any, m, n, k, ta, tb, 2);
        expectProduct<Field>(any, m, n, k, ta, tb, 2);
      }
}

TEST(Field, ArithmeticAndItsTwoOtherValues) {
  const Field a(-1), b(5), nothing = undefined<Field>(), minus = minusInfinity<Field>();
  EXPECT_EQ((a * b).v, Field::kPrime - 5);
  EXPECT_EQ(a + Field(1), Field(0));
  EXPECT_EQ(divide(Field(6), Field(3)), Field(2));
  EXPECT_EQ(inverse(b) * b, Field(1));
  EXPECT_TRUE(divide(b, Field(0)).undefined());
  EXPECT_TRUE((b + minus).infinite());
  EXPECT_TRUE((minus + nothing).undefined());
  EXPECT_TRUE((minus * Field(0)).undefined());
  EXPECT_EQ(expOf(minus), Field(0));
  EXPECT_EQ(expOf(b), expOf(Field(5)));
  EXPECT_FALSE(expOf(b) == expOf(Field(6)));
  EXPECT_FALSE(expOf(b) == sigmoidOf(b));
  EXPECT_EQ(toIndex(Field(-3)), -3);
  EXPECT_EQ(toIndex(Field::raw(Field::kPrime / 2)), kNoIndex);
  EXPECT_EQ(fromRational<Field>(Rational(3, 4)) * Field(4), Field(3));
  EXPECT_EQ(Field::reduced((static_cast<Wide>(Field::kPrime - 1)) * (Field::kPrime - 1)), 1u);
  EXPECT_TRUE(maximumOf(minus, Field(0)) == Field(0));
}

}  // namespace
}  // namespace shardproof::executor
