// SPDX-License-Identifier: Apache-2.0
// The operators' values at full size, in doubles, against loops written out here from the
// definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cases.h"

namespace shardproof::ops::testing {
namespace {

using Tensor = TensorValue<RealNumbers>;
using Values = std::vector<double>;

Tensor tensor(const Shape& shape, Values data, ElementKind element = ElementKind::kReal) {
  Tensor t;
  for (const std::int64_t n : shape) t.dims.push_back(ReducedDim::whole(n));
  t.element = element;
  t.data = std::move(data);
  EXPECT_EQ(static_cast<std::int64_t>(t.data.size()), t.positions() * t.planes());
  return t;
}

Values counting(std::int64_t n, double start = 0) {
  Values v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), start);
  return v;
}

struct Result {
  Shape shape;
  Values data;
};

// Runs an operator on the given tensors.
std::vector<Result> apply(const std::string& op, const Attributes& attributes,
                          const std::vector<Tensor>& operands, std::size_t results = 1) {
  Call call{op, attributes, {}, results};
  for (const Tensor& t : operands) {
    OperandSpec spec;
    for (const ReducedDim& d : t.dims) spec.shape.push_back(d.full);
    spec.element = t.element;
    call.in.push_back(spec);
  }
  DoubleAlgebra a;
  std::vector<Result> all;
  for (const Tensor& t : run(a, call, operands)) {
    Result r;
    for (const ReducedDim& d : t.dims) r.shape.push_back(d.full);
    r.data = t.data;
    all.push_back(r);
  }
  return all;
}

void near(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-12 * (1 + std::abs(expected[i]))) << i;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class OperatorValues : public ::testing::Test {
 protected:
  Random random{29};
  Tensor any(const Shape& shape, bool positive = false) {
    return randomTensor({shape, ElementKind::kReal, positive}, random);
  }
  Tensor ids(const Shape& shape, std::int64_t values) {
    return randomTensor({shape, ElementKind::kInteger, false, values}, random);
  }
};

TEST_F(OperatorValues, Elementwise) {
  const Tensor x = any({7}), p = any({7}, true);
  const auto each = [&](const char* op, const Attributes& a, const Tensor& t, double (*f)(double)) {
    Values expected;
    for (const double v : t.data) expected.push_back(f(v));
    SCOPED_TRACE(op);
    near(apply(op, a, {t})[0].data, expected);
  };
  each("identity", {}, x, [](double v) { return v; });
  each("neg", {}, x, [](double v) { return -v; });
  each("exp", {}, x, [](double v) { return std::exp(v); });
  each("log", {}, p, [](double v) { return std::log(v); });
  each("sqrt", {}, p, [](double v) { return std::sqrt(v); });
  each("rsqrt", {}, p, [](double v) { return 1 / std::sqrt(v); });
  each("square", {}, x, [](double v) { return v * v; });
  each("sigmoid", {}, x, sigmoid);
  each("tanh", {}, x, [](double v) { return std::tanh(v); });
  each("silu", {}, x, [](double v) { return v * sigmoid(v); });
  each("relu", {}, x, [](double v) { return std::max(v, 0.0); });
  each("gelu", {}, x, [](double v) { return v * 0.5 * (1 + std::erf(v / std::sqrt(2.0))); });
  each("gelu", {{"approximate", std::string("tanh")}}, x, [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  });
  each("pow", {{"scalar", Rational(3)}}, x, [](double v) { return v * v * v; });
  each("pow", {{"scalar", Rational(-3, 2)}}, p, [](double v) { return std::pow(v, -1.5); });
  each("pow", {{"scalar", Rational(0)}}, x, [](double) { return 1.0; });
  each("add", {{"scalar", Rational(1, 4)}, {"alpha", Rational(3)}}, x,
       [](double v) { return v + 0.75; });
  each("sub", {{"scalar", Rational(1, 4)}}, x, [](double v) { return v - 0.25; });
  each("mul", {{"scalar", Rational(-1, 4)}}, x, [](double v) { return v / -4; });
  each("div", {{"scalar", Rational(1, 4)}}, x, [](double v) { return v * 4; });
}

TEST_F(OperatorValues, BroadcastingBinary) {
  const Tensor x = any({2, 1, 3}), y = any({4, 1}, true);
  for (const std::string op : {"add", "sub", "mul", "div"}) {
    const auto r = apply(op, {}, {x, y})[0];
    EXPECT_EQ(r.shape, (Shape{2, 4, 3}));
    Values expected;
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = 0; j < 4; ++j)
        for (std::size_t k = 0; k < 3; ++k) {
          const double a = x.data[i * 3 + k], b = y.data[j];
          expected.push_back(op == "add"   ? a + b
                             : op == "sub" ? a - b
                             : op == "mul" ? a * b
                                           : a / b);
        }
    near(r.data, expected);
  }
  near(apply("sub", {{"alpha", Rational(3)}}, {tensor({2}, {1, 2}), tensor({2}, {5, 7})})[0].data,
       {-14, -19});
}

TEST_F(OperatorValues, Dropout) {
  const Tensor x = any({50}, true);
  const Attributes a{{"p", Rational(1, 5)}, {"seed", Rational(3)}};
  const Values y = apply("dropout", a, {x})[0].data;
  int dropped = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] == 0) ++dropped;
    else EXPECT_NEAR(y[i], x.data[i] * 1.25, 1e-12);
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(apply("dropout", {{"p", Rational(0)}}, {x})[0].data, x.data);
  EXPECT_EQ(apply("dropout", {{"p", Rational(1)}}, {x})[0].data, Values(50, 0));
}

TEST_F(OperatorValues, Layout) {
  const Tensor x = tensor({2, 3}, counting(6));
  using List = std::vector<std::int64_t>;
  const auto expect = [](const std::vector<Result>& r, const Shape& shape, const Values& data) {
    EXPECT_EQ(r[0].shape, shape);
    EXPECT_EQ(r[0].data, data);
  };
  expect(apply("view", {{"size", List{3, -1}}}, {x}), {3, 2}, {0, 1, 2, 3, 4, 5});
  expect(apply("transpose", numbers({{"dim0", 0}, {"dim1", -1}}), {x}), {3, 2}, {0, 3, 1, 4, 2, 5});
  expect(apply("permute", {{"dims", List{1, 2, 0}}}, {tensor({2, 1, 3}, counting(6))}), {1, 3, 2},
         {0, 3, 1, 4, 2, 5});
  expect(apply("expand", {{"size", List{2, 3, -1}}}, {tensor({1, 2}, {5, 6})}), {2, 3, 2},
         {5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6});
  expect(apply("unsqueeze", numbers({{"dim", -2}}), {x}), {2, 1, 3}, counting(6));
  expect(apply("squeeze", numbers({{"dim", 0}}), {tensor({1, 1, 2}, {1, 2})}), {1, 2}, {1, 2});
  expect(apply("slice", numbers({{"dim", 1}, {"start", 1}}), {x}), {2, 2}, {1, 2, 4, 5});
  expect(apply("slice", numbers({{"dim", 1}, {"start", -3}, {"stop", 99}, {"step", 2}}), {x}),
         {2, 2}, {0, 2, 3, 5});
  expect(apply("select", numbers({{"dim", 1}, {"index", -1}}), {x}), {2}, {2, 5});
  expect(apply("cat", numbers({{"dim", 1}}), {x, tensor({2, 1}, {8, 9})}), {2, 4},
         {0, 1, 2, 8, 3, 4, 5, 9});
  expect(apply("pad", {{"pad", List{1, 0, 0, 1}}}, {x}), {3, 4},
         {0, 0, 1, 2, 0, 3, 4, 5, 0, 0, 0, 0});
  expect(apply("pad", {{"pad", List{0, 1}}, {"value", Rational(7)}}, {x}), {2, 4},
         {0, 1, 2, 7, 3, 4, 5, 7});
  expect(apply("chunk", numbers({{"dim", 1}, {"parts", 3}, {"index", 2}}), {x}), {2, 1}, {2, 5});
  expect(apply("transpose", numbers({{"dim0", 0}, {"dim1", 1}}),
               {tensor({2, 2}, counting(8), ElementKind::kComplex)}),
         {2, 2}, {0, 1, 4, 5, 2, 3, 6, 7});
  const auto copies = apply("multiref", {}, {x}, 3);
  ASSERT_EQ(copies.size(), 3u);
  for (const Result& c : copies) EXPECT_EQ(c.data, x.data);
}

TEST_F(OperatorValues, Reductions) {
  const Tensor x = tensor({2, 3}, {1, 5, 3, 2, -4, 8});
  const auto dim = [](std::int64_t d) { return numbers({{"dim", d}}); };
  near(apply("sum", dim(1), {x})[0].data, {9, 6});
  near(apply("mean", dim(0), {x})[0].data, {1.5, 0.5, 5.5});
  near(apply("amax", dim(1), {x})[0].data, {5, 8});
  near(apply("amin", dim(0), {x})[0].data, {1, -4, 3});
  near(apply("logsumexp", dim(0), {x})[0].data,
       {std::log(std::exp(1.) + std::exp(2.)), std::log(std::exp(5.) + std::exp(-4.)),
        std::log(std::exp(3.) + std::exp(8.))});
  const auto all = apply("mean", {}, {x})[0];
  EXPECT_EQ(all.shape, Shape{});
  near(all.data, {2.5});
  EXPECT_EQ(
      apply("sum", {{"dim", std::vector<std::int64_t>{0, 1}}, {"keepdim", true}}, {x})[0].shape,
      (Shape{1, 1}));
}

TEST_F(OperatorValues, LinearAlgebra) {
  const Tensor x = any({2, 3, 4}), w = any({5, 4}), b = any({5});
  Values expected;
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t o = 0; o < 5; ++o) {
      double s = b.data[o];
      for (std::size_t k = 0; k < 4; ++k) s += x.data[i * 4 + k] * w.data[o * 4 + k];
      expected.push_back(s);
    }
  near(apply("linear", {}, {x, w, b})[0].data, expected);

  const Tensor a = any({2, 1, 3, 4}), c = any({5, 4, 2});
  const auto product = apply("matmul", {}, {a, c})[0];
  EXPECT_EQ(product.shape, (Shape{2, 5, 3, 2}));
  expected.clear();
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 5; ++j)
      for (std::size_t m = 0; m < 3; ++m)
        for (std::size_t n = 0; n < 2; ++n) {
          double s = 0;
          for (std::size_t k = 0; k < 4; ++k)
            s += a.data[(i * 3 + m) * 4 + k] * c.data[(j * 4 + k) * 2 + n];
          expected.push_back(s);
        }
  near(product.data, expected);

  const Tensor u = any({2, 3}), v = any({2, 4});
  expected.clear();
  for (std::size_t j = 0; j < 4; ++j)
    for (std::size_t i = 0; i < 3; ++i)
      expected.push_back(u.data[i] * v.data[j] + u.data[3 + i] * v.data[4 + j]);
  near(apply("einsum", {{"equation", std::string("bi,bj->ji")}}, {u, v})[0].data, expected);
}

TEST_F(OperatorValues, Normalization) {
  const Tensor x = any({2, 4}), w = any({4}), b = any({4});
  Values soft, logsoft, layer, rms;
  for (std::size_t n = 0; n < 2; ++n) {
    double total = 0, mean = 0, variance = 0, square = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      total += std::exp(x.data[n * 4 + i]);
      mean += x.data[n * 4 + i] / 4;
      square += x.data[n * 4 + i] * x.data[n * 4 + i] / 4;
    }
    for (std::size_t i = 0; i < 4; ++i) variance += std::pow(x.data[n * 4 + i] - mean, 2) / 4;
    for (std::size_t i = 0; i < 4; ++i) {
      const double v = x.data[n * 4 + i];
      soft.push_back(std::exp(v) / total);
      logsoft.push_back(v - std::log(total));
      layer.push_back((v - mean) / std::sqrt(variance + 0.01) * w.data[i] + b.data[i]);
      rms.push_back(v / std::sqrt(square + 0.01) * w.data[i]);
    }
  }
  near(apply("softmax", numbers({{"dim", 1}}), {x})[0].data, soft);
  near(apply("log_softmax", numbers({{"dim", -1}}), {x})[0].data, logsoft);
  near(apply("layer_norm", {{"eps", Rational(1, 100)}}, {x, w, b})[0].data, layer);
  near(apply("rms_norm", {{"eps", Rational(1, 100)}}, {x, w})[0].data, rms);
}

TEST_F(OperatorValues, EmbeddingLooksUpItsOwnRowsOnly) {
  const Tensor table = tensor({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor i = tensor({4}, {5, 3, 2, 6}, ElementKind::kInteger);
  near(apply("embedding", numbers({{"start", 3}, {"stop", 6}}), {i, table})[0].data,
       {5, 6, 1, 2, 0, 0, 0, 0});
  near(apply("embedding", {}, {tensor({2}, {2, 0}, ElementKind::kInteger), table})[0].data,
       {5, 6, 1, 2});
  // The gradient is scattered back: row 4 was read by nobody, row 3 twice.
  Call call{"embedding_backward",
            numbers({{"start", 3}, {"stop", 6}}),
            {{{4, 2}}, {{4}, ElementKind::kInteger}, {{3, 2}}},
            2};
  DoubleAlgebra a;
  const auto g = run(
      a, call,
      {tensor({4, 2}, counting(8, 1)), tensor({4}, {5, 3, 3, 7}, ElementKind::kInteger), table});
  near(g[1].data, {3 + 5, 4 + 6, 0, 0, 1, 2});
}

TEST_F(OperatorValues, Attention) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor tokens = ids({2, 3}, 5);
  const auto mask = apply("create_mask", {}, {tokens})[0];
  EXPECT_EQ(mask.shape, (Shape{1, 1, 3, 3}));
  EXPECT_EQ(mask.data, (Values{0, -inf, -inf, 0, 0, -inf, 0, 0, 0}));
  const Tensor x = any({1, 2, 3, 3});
  const Values masked = apply("apply_mask", {}, {x, tensor({1, 1, 3, 3}, mask.data)})[0].data;
  for (std::size_t i = 0; i < masked.size(); ++i)
    EXPECT_EQ(masked[i], x.data[i] + mask.data[i % 9]);
  const Values soft =
      apply("softmax", numbers({{"dim", -1}}), {tensor({1, 2, 3, 3}, masked)})[0].data;
  EXPECT_EQ(soft[0], 1);
  EXPECT_EQ(soft[1], 0);

  const Tensor q = any({2, 3, 2, 4}), k = any({2, 3, 1, 4}),
               f = randomTensor({{3, 2}, ElementKind::kComplex}, random);
  const auto r = apply("apply_rotary_emb", {}, {q, k, f}, 2);
  const auto rotate = [&](const Tensor& t, std::size_t heads) {
    Values expected(t.data.size());
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t s = 0; s < 3; ++s)
        for (std::size_t h = 0; h < heads; ++h)
          for (std::size_t j = 0; j < 2; ++j) {
            const std::size_t i = ((b * 3 + s) * heads + h) * 4 + 2 * j, w = (s * 2 + j) * 2;
            expected[i] = t.data[i] * f.data[w] - t.data[i + 1] * f.data[w + 1];
            expected[i + 1] = t.data[i] * f.data[w + 1] + t.data[i + 1] * f.data[w];
          }
    return expected;
  };
  near(r[0].data, rotate(q, 2));
  near(r[1].data, rotate(k, 1));
}

// Routing and experts, after the reference code of DeepSeek-V3.
TEST_F(OperatorValues, MixtureOfExperts) {
  constexpr std::size_t n = 5, d = 3, e = 6, groups = 3, best = 2, f = 4;
  const Tensor x = any({n, d}), w = any({e, d}), bias = any({e});
  // With two experts from two groups the groups restrict nothing unless there is a bias, with three
  // they do.
  for (const auto& [sig, biased, topk] :
       std::vector<std::tuple<bool, bool, std::size_t>>{{false, false, 2},
                                                        {false, true, 2},
                                                        {true, false, 2},
                                                        {true, true, 2},
                                                        {false, false, 3},
                                                        {false, true, 3},
                                                        {true, false, 3},
                                                        {true, true, 3}}) {
    Attributes a = numbers({{"n_groups", groups}, {"topk_groups", best}, {"topk", topk}});
    a["score_func"] = std::string(sig ? "sigmoid" : "softmax");
    a["route_scale"] = Rational(5, 2);
    std::vector<Tensor> operands{x, w};
    if (biased) operands.push_back(bias);
    const auto r = apply("moe_gate", a, operands, 2);
    for (std::size_t t = 0; t < n; ++t) {
      Values s(e), c(e);
      for (std::size_t i = 0; i < e; ++i)
        for (std::size_t k = 0; k < d; ++k) s[i] += x.data[t * d + k] * w.data[i * d + k];
      double total = 0;
      for (const double v : s) total += std::exp(v);
      for (std::size_t i = 0; i < e; ++i) {
        s[i] = sig ? sigmoid(s[i]) : std::exp(s[i]) / total;
        c[i] = s[i] + (biased ? bias.data[i] : 0);
      }
      std::vector<std::size_t> order(groups);
      std::iota(order.begin(), order.end(), std::size_t{0});
      const auto score = [&, biased = biased](std::size_t g) {
        return biased ? c[2 * g] + c[2 * g + 1] : std::max(c[2 * g], c[2 * g + 1]);
      };
      std::sort(order.begin(), order.end(),
                [&](std::size_t g, std::size_t h) { return score(g) > score(h); });
      std::vector<std::size_t> competing;
      for (std::size_t g = 0; g < best; ++g)
        competing.insert(competing.end(), {2 * order[g], 2 * order[g] + 1});
      std::sort(competing.begin(), competing.end(),
                [&](std::size_t i, std::size_t j) { return c[i] > c[j]; });
      double chosen = 0;
      for (std::size_t j = 0; j < topk; ++j) chosen += s[competing[j]];
      for (std::size_t j = 0; j < topk; ++j) {
        EXPECT_EQ(r[1].data[t * topk + j], static_cast<double>(competing[j]));
        EXPECT_NEAR(r[0].data[t * topk + j], s[competing[j]] / (sig ? chosen : 1) * 2.5, 1e-12);
      }
    }
  }

  const Tensor index = ids({n, 2}, 6), weight = any({n, 2}), gate = any({2, f, d}),
               up = any({2, f, d}), down = any({2, d, f});
  const Values y =
      apply("moe_experts",
            numbers({{"n_routed_experts", 6}, {"local_expert_start", 3}, {"local_expert_end", 5}}),
            {x, index, weight, gate, up, down})[0]
          .data;
  Values expected(n * d);
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t j = 0; j < 2; ++j) {
      const auto i = static_cast<std::int64_t>(index.data[t * 2 + j]) - 3;
      if (i < 0 || i >= 2) continue;
      for (std::size_t h = 0; h < f; ++h) {
        const std::size_t row = static_cast<std::size_t>(i) * f + h;
        double g = 0, u = 0;
        for (std::size_t k = 0; k < d; ++k) {
          g += gate.data[row * d + k] * x.data[t * d + k];
          u += up.data[row * d + k] * x.data[t * d + k];
        }
        for (std::size_t k = 0; k < d; ++k)
          expected[t * d + k] += weight.data[t * 2 + j] *
                                 down.data[(static_cast<std::size_t>(i) * d + k) * f + h] * g *
                                 sigmoid(g) * u;
      }
    }
  near(y, expected);
}

TEST_F(OperatorValues, CrossEntropy) {
  const Tensor x = any({2, 3, 4}), labels = ids({2, 3}, 4);
  Values each;
  double sum = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    double total = 0;
    for (std::size_t v = 0; v < 4; ++v) total += std::exp(x.data[i * 4 + v]);
    each.push_back(std::log(total) - x.data[i * 4 + static_cast<std::size_t>(labels.data[i])]);
    sum += each.back();
  }
  near(apply("cross_entropy", {{"reduction", std::string("none")}}, {x, labels})[0].data, each);
  near(apply("cross_entropy", {{"reduction", std::string("sum")}}, {x, labels})[0].data, {sum});
  near(apply("cross_entropy", {}, {x, labels})[0].data, {sum / 6});
}

// Of one position there is one loss whatever the reduction, and it may be declared [1].
TEST_F(OperatorValues, CrossEntropyOfOnePosition) {
  DoubleAlgebra a;
  const Tensor x = tensor({3}, {1, 2, 4});
  Tensor label = tensor({}, {1});
  label.element = ElementKind::kInteger;
  const double expected = std::log(std::exp(1) + std::exp(2) + std::exp(4)) - 2;
  for (const char* reduction : {"mean", "sum", "none"})
    for (const std::vector<ReducedDim>& dims :
         {std::vector<ReducedDim>{}, std::vector<ReducedDim>{ReducedDim::whole(1)}}) {
      const Call call{"cross_entropy",
                      {{"reduction", std::string(reduction)}},
                      {{{3}}, {{}, ElementKind::kInteger, false, 3}}};
      near(run(a, call, {x, label}, {dims})[0].data, {expected});
    }
}

TEST_F(OperatorValues, MultirefBackwardAddsThePresentGradients) {
  Call call{"multiref_backward", {}, {{{3}}, {{3}}, {{3}}}, 1};
  call.in[1].present = false;
  DoubleAlgebra a;
  const auto r = run(a, call, {tensor({3}, {1, 2, 3}), Tensor{}, tensor({3}, {10, 20, 30})});
  EXPECT_EQ(r[0].data, (Values{11, 22, 33}));
}

// The other algebras run the same templates: here only that every call gets through them, and that
// the fingerprint of a split contraction is that of the whole.
TEST_F(OperatorValues, OtherAlgebras) {
  for (const Call& forward : forwardCalls(random)) {
    std::vector<Call> calls{forward};
    if (hasBackward(forward)) calls.push_back(backwardCall(forward));
    for (const Call& call : calls) {
      SCOPED_TRACE(describe(call));
      ModularAlgebra m;
      TermAlgebra t;
      std::vector<TensorValue<Residues>> numbersIn(call.in.size());
      std::vector<TensorValue<TermAlgebra>> termsIn(call.in.size());
      for (std::size_t i = 0; i < call.in.size(); ++i) {
        for (const std::int64_t n : call.in[i].shape)
          numbersIn[i].dims.push_back(ReducedDim::whole(n));
        numbersIn[i].element = termsIn[i].element = call.in[i].element;
        termsIn[i].dims = numbersIn[i].dims;
        const bool integer = call.in[i].element == ElementKind::kInteger;
        for (std::int64_t k = 0; k < numbersIn[i].positions() * numbersIn[i].planes(); ++k) {
          const auto v = static_cast<std::int64_t>(random() % (integer ? 4 : 1000000000));
          numbersIn[i].data.push_back(m.constant(Rational(v)));
          termsIn[i].data.push_back(t.variable(integer));
        }
      }
      EXPECT_NO_THROW(run(m, call, numbersIn));
      EXPECT_NO_THROW(run(t, call, termsIn));
    }
  }
}

TEST_F(OperatorValues, SplitContractionsMeetInTheNormalForm) {
  TermAlgebra t;
  const auto variables = [&](const Shape& shape) {
    TensorValue<TermAlgebra> v;
    for (const std::int64_t n : shape) v.dims.push_back(ReducedDim::whole(n));
    for (std::int64_t k = 0; k < v.positions(); ++k) v.data.push_back(t.variable(false));
    return v;
  };
  const auto x = variables({3, 4}), w = variables({5, 4});
  const auto whole = run(t, {"linear", {}, {{{3, 4}}, {{5, 4}}}}, {x, w});
  std::vector<TensorValue<TermAlgebra>> partial;
  for (const std::int64_t i : {0, 1}) {
    const Attributes piece = numbers({{"dim", 1}, {"parts", 2}, {"index", i}});
    const auto xi = run(t, {"chunk", piece, {{{3, 4}}}}, {x}),
               wi = run(t, {"chunk", piece, {{{5, 4}}}}, {w});
    partial.push_back(run(t, {"linear", {}, {{{3, 2}}, {{5, 2}}}}, {xi[0], wi[0]})[0]);
  }
  EXPECT_EQ(run(t, {"add", {}, {{{3, 5}}, {{3, 5}}}}, partial)[0].data, whole[0].data);
}

}  // namespace
}  // namespace shardproof::ops::testing
