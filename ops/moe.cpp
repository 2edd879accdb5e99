// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: routing and the experts' feed-forward networks (DeepSeek-V3, arXiv
// 2412.19437, sections 2.1.2 and 4; its reference inference code).
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// moe_gate: x [n, d], w [e, d], optional bias [e] -> weights [n, topk], indices [n, topk]
// (integers).
//
// s = score_func(x w^T). The choice is made on s + bias: with n_groups > 1 only experts of the best
// topk_groups groups compete (a group's score is its maximum, with a bias the sum of its two best),
// then the best topk. weights = s at the chosen, for sigmoid divided by their sum, times
// route_scale. The chosen index of a slot is one opaque function of the whole row of choice scores;
// s at it is sum_e [index = e] s_e. The choice is constant almost everywhere, so gradients flow
// through s only and the bias gets none.
struct MoeGate {
  static Interface interface() {
    return {
        .name = "moe_gate",
        .attributes = {{.key = "score_func",
                        .type = AttributeType::kText,
                        .required = true,
                        .choices = {"softmax", "sigmoid"}},
                       {.key = "n_groups", .min = Rational(1)},
                       {.key = "topk_groups", .min = Rational(1)},
                       {.key = "topk", .required = true, .min = Rational(1)},
                       {.key = "route_scale", .type = AttributeType::kNumber}},
        .minOperands = 2,
        .maxOperands = 3,
        .minResults = 2,
        .maxResults = 2,
        .optionalOperands = {2},
        .withoutGradient = {2},
        .check = [](const Attributes& attributes, std::size_t, std::size_t) {
          const std::int64_t groups = integer(attributes, "n_groups", 1),
                             best = integer(attributes, "topk_groups", 1);
          if (best > groups)
            throw std::invalid_argument("attribute 'topk_groups': found " + std::to_string(best) +
                                        ", expected at most 'n_groups', " + std::to_string(groups));
        }};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    needReal(s, 1);
    needRank(s, 0, 2, "[n, d]");
    needRank(s, 1, 2, "[e, d]");
    const Shape &x = shapeOf(s, 0), &w = shapeOf(s, 1);
    if (x[1] != w[1])
      throw ShapeError("operand 0 has shape " + toText(x) + ", expected [n, " +
                       std::to_string(w[1]) + "] to fit weight " + toText(w));
    const std::int64_t groups = integer(s.attributes, "n_groups", 1),
                       topk = integer(s.attributes, "topk");
    if (present(s, 2)) {
      needReal(s, 2);
      if (shapeOf(s, 2) != Shape{w[0]})
        throw ShapeError("the bias has shape " + toText(shapeOf(s, 2)) + ", expected " +
                         toText({w[0]}));
      if (groups > 1 && w[0] / groups < 2)
        throw ShapeError("found " + std::to_string(w[0]) + " experts in " + std::to_string(groups) +
                         " groups, expected at least two in each (with a bias)");
    }
    if (w[0] % groups != 0)
      throw ShapeError("found " + std::to_string(w[0]) +
                       " experts, expected a multiple of n_groups, " + std::to_string(groups));
    const std::int64_t competing =
        groups > 1 ? w[0] / groups * integer(s.attributes, "topk_groups", 1) : w[0];
    if (topk > competing)
      throw ShapeError("found topk " + std::to_string(topk) + ", expected at most the " +
                       std::to_string(competing) + " experts that compete");
    return {TensorInfo{Shape{x[0], topk}}, TensorInfo{Shape{x[0], topk}, ElementKind::kInteger}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const int weights = slotOfResult(s, 0), indices = slotOfResult(s, 1);
    for (const int result : {weights, indices}) {
      relations.equal(ref(0, 0), ref(result, 0));
      relations.keep(ref(result, 1));  // slots are ranks in the choice
      relations.summed(ref(result, 1));
    }
    relations.equal(ref(weights, 1), ref(indices, 1));
    relations.equal(ref(0, 1), ref(1, 1));
    relations.summed(ref(0, 1));
    relations.keep(ref(1, 0));  // the choice reads the experts as an ordered row
    relations.summed(ref(1, 0));
    if (present(s, 2)) relations.equal(ref(2, 0), ref(1, 0));
    relations.range({indices, kValues}, 0, ref(1, 0));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    using Element = typename A::Element;
    A& a = e.algebra;
    const TensorValue<A>&x = *e.in[0], &w = *e.in[1];
    const TensorValue<A>* bias = e.in.size() > 2 ? e.in[2] : nullptr;
    TensorValue<A>*weights = e.out[0], *indices = e.out[1];
    const bool sigmoid = text(e.attributes, "score_func") == "sigmoid";
    const std::int64_t topk = integer(e.attributes, "topk"),
                       best = integer(e.attributes, "topk_groups", 1);
    // Without a bias a group's score is its best expert's, so the k best experts lie in the k best
    // groups: an expert whose group is not among these has the best experts of k groups before it
    // (ties go to the lower index, of groups as of experts). As many groups restrict nothing, nor
    // do all of them.
    const bool restricted =
        best < integer(e.attributes, "n_groups", 1) && (bias != nullptr || best < topk);
    const std::int64_t groups = restricted ? integer(e.attributes, "n_groups") : 1;
    const Rational scale = number(e.attributes, "route_scale", Rational(1));
    const ReducedDim &tokens = x.dims.at(0), &experts = w.dims.at(0);
    if (experts.reduced()) inconsistent("the experts of moe_gate are reduced");
    if (bias != nullptr) expectDims(bias->dims, std::span(&experts, 1));
    const std::array<ReducedDim, 2> expected{tokens, ReducedDim::whole(topk)};
    for (const TensorValue<A>* out : {weights, indices})
      if (out != nullptr) expectDims(out->dims, expected);

    TensorValue<A> logits;
    logits.dims = {tokens, experts};
    contract<A>(a, {{&x, {0, 1}}, {&w, {2, 1}}}, {0, 2}, logits);
    const auto row = static_cast<std::size_t>(experts.size());
    if (weights != nullptr) weights->data.clear();
    if (indices != nullptr) indices->data.clear();
    std::vector<Element> scores(row), choice(row), terms(row);
    for (Index n = 0; n < tokens.size(); ++n) {
      const std::size_t first = at(n) * row;
      if (sigmoid) {
        for (std::size_t i = 0; i < row; ++i) {
          const std::array<Element, 1> argument{logits.data[first + i]};
          scores[i] = a.apply(Function::kSigmoid, {}, std::span<const Element>(argument));
        }
      } else {
        for (std::size_t i = 0; i < row; ++i) terms[i] = a.exp(logits.data[first + i]);
        const Element inverse = a.power(weightedSum(a, terms, {}), -2);
        for (std::size_t i = 0; i < row; ++i) scores[i] = a.mul(terms[i], inverse);
      }
      for (std::size_t i = 0; i < row; ++i)
        choice[i] = bias == nullptr ? scores[i] : a.add(scores[i], bias->data[i]);
      std::vector<Element> chosen;
      for (std::int64_t slot = 0; slot < topk; ++slot) {
        const std::array<std::int64_t, 5> params{slot, topk, groups, restricted ? best : 1,
                                                 restricted && bias != nullptr ? 1 : 0};
        const Element index =
            a.apply(Function::kGateChoice, params, std::span<const Element>(choice));
        if (indices != nullptr) indices->data.push_back(index);
        if (weights == nullptr) continue;
        for (std::size_t i = 0; i < row; ++i)
          terms[i] = a.select(a.indicator(index, static_cast<std::int64_t>(i)), scores[i]);
        chosen.push_back(weightedSum(a, terms, {}));
      }
      if (weights == nullptr) continue;
      if (sigmoid) {
        const Element inverse = a.power(weightedSum(a, chosen, {}), -2);
        for (Element& c : chosen) c = a.mul(c, inverse);
      }
      for (const Element& c : chosen)
        weights->data.push_back(scale.isOne() ? c : a.scale(scale, c));
    }
  }
};

// moe_experts: x [n, d], indices [n, k] (integers), weights [n, k], gate [E, f, d], up [E, f, d],
// down [E, d, f], holding experts [local_expert_start, local_expert_end) of n_routed_experts -> y
// [n, d]:
//   y_n = sum over slots j and local experts e of [indices[n, j] = e] weights[n, j] down_e
//   (silu(gate_e x_n) * (up_e x_n)).
// One flat sum over slots, experts and the hidden dimension: a plan that splits any of them splits
// the sum.
struct MoeExperts {
  static Interface interface() {
    return {.name = "moe_experts",
            .attributes = {{.key = "n_routed_experts", .required = true, .min = Rational(1)},
                           {.key = "local_expert_start", .required = true, .min = Rational(0)},
                           {.key = "local_expert_end", .required = true, .min = Rational(1)}},
            .minOperands = 6,
            .maxOperands = 6,
            .check = [](const Attributes& attributes, std::size_t, std::size_t) {
              const std::int64_t start = integer(attributes, "local_expert_start"),
                                 end = integer(attributes, "local_expert_end"),
                                 all = integer(attributes, "n_routed_experts");
              if (start >= end || end > all)
                throw std::invalid_argument("found experts [" + std::to_string(start) + ", " +
                                            std::to_string(end) +
                                            "), expected a non-empty range within the " +
                                            std::to_string(all) + " of 'n_routed_experts'");
            }};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    const std::int64_t experts =
        integer(s.attributes, "local_expert_end") - integer(s.attributes, "local_expert_start");
    for (const std::size_t i : {0, 2, 3, 4, 5}) needReal(s, i);
    needInteger(s, 1);
    needRank(s, 0, 2, "[n, d]");
    needRank(s, 1, 2, "[n, k]");
    needRank(s, 3, 3, "[E, f, d]");
    const Shape& x = shapeOf(s, 0);
    const std::int64_t hidden = shapeOf(s, 3)[1];
    const auto expect = [&](std::size_t i, const Shape& expected) {
      if (shapeOf(s, i) != expected)
        throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                         ", expected " + toText(expected));
    };
    expect(1, {x[0], shapeOf(s, 1)[1]});
    expect(2, shapeOf(s, 1));
    expect(3, {experts, hidden, x[1]});
    expect(4, {experts, hidden, x[1]});
    expect(5, {experts, x[1], hidden});
    return {TensorInfo{x}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const int y = slotOfResult(s, 0);
    for (const std::size_t i : {1, 2}) relations.equal(ref(0, 0), ref(i, 0));
    relations.equal(ref(0, 0), ref(y, 0));
    relations.equal(ref(1, 1), ref(2, 1));
    relations.equal(ref(3, 0), ref(4, 0));
    relations.equal(ref(3, 0), ref(5, 0));
    relations.equal(ref(3, 1), ref(4, 1));
    relations.equal(ref(3, 1), ref(5, 2));
    relations.equal(ref(3, 2), ref(4, 2));
    relations.equal(ref(3, 2), ref(0, 1));
    relations.equal(
        ref(5, 1),
        ref(y, 1));  // the output's dimension is not the input's: it only has the same size
    relations.range({1, kValues}, integer(s.attributes, "local_expert_start"), ref(3, 0));
    const std::array<DimRef, 4> sums{ref(0, 1), ref(1, 1), ref(3, 0), ref(3, 1)};
    for (const DimRef d : sums) relations.summed(d);
    const std::array<DimRef, 6> all{ref(0, 0), ref(0, 1), ref(1, 1),
                                    ref(3, 0), ref(3, 1), ref(5, 1)};
    relations.iterates(all);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    using Element = typename A::Element;
    A& a = e.algebra;
    const TensorValue<A>&x = *e.in[0], &indices = *e.in[1], &weights = *e.in[2], &gate = *e.in[3],
          &up = *e.in[4], &down = *e.in[5];
    TensorValue<A>& y = *e.out[0];
    const ReducedDim &tokens = x.dims.at(0), &slots = indices.dims.at(1),
                     &experts = gate.dims.at(0), &hidden = gate.dims.at(1);
    expectDims(indices.dims, std::array<ReducedDim, 2>{tokens, slots});
    expectDims(weights.dims, std::array<ReducedDim, 2>{tokens, slots});
    expectDims(up.dims, gate.dims);
    expectDims(down.dims, std::array<ReducedDim, 3>{experts, down.dims.at(1), hidden});
    expectDims(y.dims, std::array<ReducedDim, 2>{tokens, down.dims[1]});
    // h[n, e, f] = silu(gate_e x_n)_f (up_e x_n)_f
    TensorValue<A> h, h2;
    h.dims = h2.dims = {tokens, experts, hidden};
    contract<A>(a, {{&x, {0, 1}}, {&gate, {2, 3, 1}}}, {0, 2, 3}, h);
    contract<A>(a, {{&x, {0, 1}}, {&up, {2, 3, 1}}}, {0, 2, 3}, h2);
    for (std::size_t i = 0; i < h.data.size(); ++i) {
      const std::array<Element, 1> argument{h.data[i]};
      const Element silu =
          a.mul(h.data[i], a.apply(Function::kSigmoid, {}, std::span<const Element>(argument)));
      h.data[i] = a.mul(silu, h2.data[i]);
    }
    const std::int64_t start = integer(e.attributes, "local_expert_start");
    const Index k = slots.size(), experts_ = experts.size(), f = hidden.size(),
                d = down.dims[1].size();
    y.data.clear();
    std::vector<Element> chosen(at(k * experts_)), terms;
    std::vector<std::int64_t> counts;
    for (Index n = 0; n < tokens.size(); ++n) {
      for (Index j = 0; j < k; ++j)
        for (Index i = 0; i < experts_; ++i)
          chosen[at(j * experts_ + i)] =
              a.indicator(indices.data[at(n * k + j)], start + experts.position[at(i)]);
      for (Index c = 0; c < d; ++c) {
        terms.clear();
        counts.clear();
        for (Index j = 0; j < k; ++j)
          for (Index i = 0; i < experts_; ++i) {
            const Element& expert = chosen[at(j * experts_ + i)];
            if (a.isZero(expert)) continue;
            for (Index q = 0; q < f; ++q) {
              const Element out =
                  a.mul(down.data[at((i * d + c) * f + q)], h.data[at((n * experts_ + i) * f + q)]);
              terms.push_back(a.select(expert, a.mul(weights.data[at(n * k + j)], out)));
              counts.push_back(
                  checkedProduct(checkedProduct(slots.weight[at(j)], experts.weight[at(i)]),
                                 hidden.weight[at(q)]));
            }
          }
        y.data.push_back(terms.empty() ? a.constant(Rational(0))
                                       : a.sum(std::span<const Element>(terms), counts));
      }
    }
  }
};

}  // namespace

void defineMoe(Catalog& catalog) {
  define<MoeGate>(catalog);
  define<MoeExperts>(catalog);
}

}  // namespace shardproof::ops
