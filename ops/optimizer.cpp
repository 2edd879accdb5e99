// SPDX-License-Identifier: Apache-2.0
// The training step, one parameter at a time: grad_norm, clip_grad, sgd, adamw
// (torch.nn.utils.clip_grad_norm_, torch.optim.SGD, torch.optim.AdamW). Forward only. Everything
// but the norm works element by element, so a parameter, its gradient and its states may be cut in
// any way as long as it is the same way.
#include <stdexcept>

#include "ops/definition.h"
#include "shardproof/error.h"

namespace shardproof::ops {
namespace {

// Operands that are all of the first one's shape and cut alike, and results of that shape.
std::vector<TensorInfo> sameShapes(const Signature& s, std::size_t operands, std::size_t results) {
  for (std::size_t i = 0; i < operands; ++i) {
    needReal(s, i);
    if (shapeOf(s, i) != shapeOf(s, 0))
      throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                       ", expected " + toText(shapeOf(s, 0)));
  }
  return std::vector<TensorInfo>(results, TensorInfo{shapeOf(s, 0)});
}

void relateElementwise(const Signature& s, std::size_t operands, std::size_t results,
                       Relations& relations) {
  for (std::size_t i = 1; i < operands; ++i) equalTensors(s, i, 0, relations);
  for (std::size_t r = 0; r < results; ++r) equalTensors(s, 0, slotOfResult(s, r), relations);
}

template <class A>
void expectAlike(const Evaluation<A>& e, std::size_t operands) {
  for (std::size_t i = 1; i < operands; ++i) expectDims(e.in[i]->dims, e.in[0]->dims);
  for (TensorValue<A>* out : e.out) {
    if (out == nullptr) continue;
    expectDims(out->dims, e.in[0]->dims);
    out->data.clear();
    out->data.reserve(e.in[0]->data.size());
  }
}

AttributeRule numberRule(const char* key, std::int64_t min,
                         std::optional<Rational> max = std::nullopt, bool required = false) {
  return {.key = key,
          .type = AttributeType::kNumber,
          .required = required,
          .min = Rational(min),
          .max = std::move(max)};
}

void belowOne(const Attributes& attributes, const char* key) {
  if (number(attributes, key, Rational(0)).isOne())
    throw std::invalid_argument(std::string("attribute '") + key +
                                "': found 1, expected less than 1");
}

// g -> []: sqrt(sum of squares of all elements), torch.linalg.vector_norm(g, 2). The norm over
// several gradients, or over the shards of one, is the root of the sum of the squares.
struct GradNorm {
  static Interface interface() {
    return {.name = "grad_norm",
            .differentiable = false,
            .scalarMayBeOne = true,
            .traits = {.total = true, .keepsSign = true, .sign = Sign::kNotNegative}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    return {TensorInfo{Shape{}}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    for (std::size_t d = 0; d < shapeOf(s, 0).size(); ++d) relations.summed(ref(0, d));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& g = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    if (out.dims.size() == 1) expectDim(out.dims[0], ReducedDim{});
    else expectDims(out.dims, {});
    std::vector<typename A::Element> squares;
    squares.reserve(g.data.size());
    for (const auto& x : g.data) squares.push_back(e.algebra.power(x, 4));
    out.data.assign(1, e.algebra.power(weightedSum(e.algebra, squares, weightsOf(g.dims)), 1));
  }
};

// g, norm [] -> g min(1, max_norm / (norm + eps)), torch.nn.utils.clip_grads_with_norm_.
struct ClipGrad {
  static Interface interface() {
    Interface i{.name = "clip_grad",
                .attributes = {numberRule("max_norm", 0, std::nullopt, true), numberRule("eps", 0)},
                .minOperands = 2,
                .maxOperands = 2,
                .differentiable = false};
    return i;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    needReal(s, 1);
    if (elements(shapeOf(s, 1)) != 1 || shapeOf(s, 1).size() > 1)
      throw ShapeError("operand 1 has shape " + toText(shapeOf(s, 1)) + ", expected the norm, []");
    return {TensorInfo{shapeOf(s, 0)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    relateElementwise(s, 1, 1, relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    A& a = e.algebra;
    expectAlike(e, 1);
    const Rational eps = number(e.attributes, "eps", Rational(1, 1000000));
    const auto ratio = a.scale(number(e.attributes, "max_norm"),
                               a.power(a.add(e.in[1]->data[0], a.constant(eps)), -2));
    const std::array<typename A::Element, 2> candidates{a.constant(Rational(1)), ratio};
    const auto factor =
        a.apply(Function::kMinimum, {}, std::span<const typename A::Element>(candidates));
    for (const auto& x : e.in[0]->data) e.out[0]->data.push_back(a.mul(x, factor));
  }
};

// p, g [, momentum buffer b] -> p' [, b']: d = g + weight_decay p; with a buffer b' = momentum b +
// (1 - dampening) d, and d becomes b', or d + momentum b' with `nesterov`; p' = p - lr d. The
// buffer is present exactly if momentum is not 0 (PyTorch's first step, which starts the buffer
// with d, is the one with dampening 0 and a buffer of zeros).
struct Sgd {
  static Interface interface() {
    Interface i{.name = "sgd",
                .attributes = {numberRule("lr", 0, std::nullopt, true),
                               numberRule("momentum", 0),
                               {.key = "dampening", .type = AttributeType::kNumber},
                               numberRule("weight_decay", 0),
                               {.key = "nesterov", .type = AttributeType::kFlag}},
                .minOperands = 2,
                .maxOperands = 3,
                .maxResults = 2,
                .differentiable = false};
    i.check = [](const Attributes& attributes, std::size_t operands, std::size_t results) {
      const bool momentum = !number(attributes, "momentum", Rational(0)).isZero();
      const std::size_t expected = momentum ? 3 : 2;
      if (operands != expected || results != expected - 1)
        throw std::invalid_argument(
            "found " + std::to_string(operands) + " operands and " + std::to_string(results) +
            " results, expected " +
            (momentum ? "parameter, gradient and momentum buffer, and two results"
                      : "parameter and gradient, and one result"));
      if (flag(attributes, "nesterov", false) &&
          (!momentum || !number(attributes, "dampening", Rational(0)).isZero()))
        throw std::invalid_argument(
            "attribute 'nesterov': found true, expected it only with a momentum and without "
            "dampening");
    };
    return i;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    return sameShapes(s, s.in.size(), s.in.size() - 1);
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    relateElementwise(s, s.in.size(), s.in.size() - 1, relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    A& a = e.algebra;
    expectAlike(e, e.in.size());
    const Rational lr = number(e.attributes, "lr"),
                   decay = number(e.attributes, "weight_decay", Rational(0));
    const Rational momentum = number(e.attributes, "momentum", Rational(0)),
                   dampening = number(e.attributes, "dampening", Rational(0));
    for (std::size_t i = 0; i < e.in[0]->data.size(); ++i) {
      const auto p = e.in[0]->data[i];
      auto d = a.add(e.in[1]->data[i], a.scale(decay, p));
      if (e.in.size() == 3) {
        const auto buffer =
            a.add(a.scale(momentum, e.in[2]->data[i]), a.scale(Rational(1) - dampening, d));
        if (e.out[1] != nullptr) e.out[1]->data.push_back(buffer);
        d = flag(e.attributes, "nesterov", false) ? a.add(d, a.scale(momentum, buffer)) : buffer;
      }
      if (e.out[0] != nullptr) e.out[0]->data.push_back(a.add(p, a.scale(-lr, d)));
    }
  }
};

// p, g, m, v -> p', m', v' at step t (1 for the first): m' = beta1 m + (1 - beta1) g; v' = beta2 v
// + (1 - beta2) g^2; p' = (1 - lr weight_decay) p - lr (m' / (1 - beta1^t)) / (sqrt(v' / (1 -
// beta2^t)) + eps). Loshchilov and Hutter, arXiv 1711.05101.
struct AdamW {
  // Digits of a power of beta, of numerator and denominator together, roughly: 0.999 at step 10000
  // has 70,000.
  static constexpr std::size_t kMostDigits = 100'000;
  static Rational powerOf(const Rational& beta, std::int64_t step) {
    if (beta.toString().size() > kMostDigits / static_cast<std::size_t>(step))
      throw Unsupported("adamw: beta to the power of step has more than " +
                        std::to_string(kMostDigits) + " digits");
    return beta.pow(step);
  }
  static constexpr std::int64_t kMostSteps =
      10000;  // beta^t is an exact fraction, with digits in proportion to t
  static Interface interface() {
    Interface i{.name = "adamw",
                .attributes = {numberRule("lr", 0, std::nullopt, true),
                               numberRule("beta1", 0, Rational(1)),
                               numberRule("beta2", 0, Rational(1)),
                               numberRule("eps", 0),
                               numberRule("weight_decay", 0),
                               {.key = "step",
                                .required = true,
                                .min = Rational(1),
                                .max = Rational(kMostSteps)}},
                .minOperands = 4,
                .maxOperands = 4,
                .minResults = 3,
                .maxResults = 3,
                .differentiable = false};
    i.check = [](const Attributes& attributes, std::size_t, std::size_t) {
      belowOne(attributes, "beta1");
      belowOne(attributes, "beta2");
    };
    return i;
  }
  static std::vector<TensorInfo> infer(const Signature& s) { return sameShapes(s, 4, 3); }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    relateElementwise(s, 4, 3, relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    A& a = e.algebra;
    expectAlike(e, 4);
    const Rational one(1), lr = number(e.attributes, "lr"),
                           decay = number(e.attributes, "weight_decay", Rational(1, 100));
    const Rational beta1 = number(e.attributes, "beta1", Rational(9, 10)),
                   beta2 = number(e.attributes, "beta2", Rational(999, 1000));
    const Rational eps = number(e.attributes, "eps", Rational(1, 100000000));
    const std::int64_t step = integer(e.attributes, "step");
    const Rational first = (one - powerOf(beta1, step)).inverse(),
                   second = (one - powerOf(beta2, step)).inverse();
    for (std::size_t i = 0; i < e.in[0]->data.size(); ++i) {
      const auto p = e.in[0]->data[i], g = e.in[1]->data[i];
      const auto mean = a.add(a.scale(beta1, e.in[2]->data[i]), a.scale(one - beta1, g));
      const auto square =
          a.add(a.scale(beta2, e.in[3]->data[i]), a.scale(one - beta2, a.power(g, 4)));
      const auto denominator = a.add(a.power(a.scale(second, square), 1), a.constant(eps));
      const auto update = a.mul(a.scale(lr * first, mean), a.power(denominator, -2));
      if (e.out[0] != nullptr)
        e.out[0]->data.push_back(
            a.add(a.scale(one - lr * decay, p), a.scale(Rational(-1), update)));
      if (e.out[1] != nullptr) e.out[1]->data.push_back(mean);
      if (e.out[2] != nullptr) e.out[2]->data.push_back(square);
    }
  }
};

}  // namespace

void defineOptimizer(Catalog& catalog) {
  define<GradNorm>(catalog);
  define<ClipGrad>(catalog);
  define<Sgd>(catalog);
  define<AdamW>(catalog);
}

}  // namespace shardproof::ops
