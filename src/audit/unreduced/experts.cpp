// SPDX-License-Identifier: Apache-2.0
// Mixture of experts (docs/operators.md, "Mixture of experts").
#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

using ops::Function;

enum SharedByExperts {
  kLogit,
  kChoice,
  kExponentials,
  kChosenSum,
  kTowardChosen,
  kTowardScores,
  kScoreSlopes,
  kGate,
  kUp,
  kHidden
};

// x [n, d], w [e, d], [bias [e]] from operand `first` on.
template <class A>
class Gate {
 public:
  using N = Number<A>;
  Gate(const NodeView<A>& n, std::size_t first)
      : n_(n),
        first_(first),
        d_(n.shape(first)[1]),
        experts_(n.shape(first + 1)[0]),
        topk_(ops::integer(n.attributes(), "topk")),
        sigmoid_(ops::text(n.attributes(), "score_func") == "sigmoid"),
        scale_(ops::number(n.attributes(), "route_scale", Rational(1))) {}

  N weight(Index token, Index slot) const {
    const N s = score(token, chosen(token, slot));
    return (sigmoid_ ? s * chosenSum(token).power(-2) : s).times(scale_);
  }
  N index(Index token, Index slot) const { return choice(token, slot); }

  // With operand 0 as the gradient of the weights. Of x[token, c] and of w[expert, c].
  N ofInput(Index flat) const {
    Sum<A> sum = n_.sum();
    for (Index e = 0; e < experts_; ++e)
      sum.add(ofLogit(flat / d_, e) * n_.in(first_ + 1, e * d_ + flat % d_));
    return sum.value();
  }
  N ofWeight(Index flat) const {
    Sum<A> sum = n_.sum();
    for (Index token = 0; token < n_.shape(first_)[0]; ++token)
      sum.add(ofLogit(token, flat / d_) * n_.in(first_, token * d_ + flat % d_));
    return sum.value();
  }

 private:
  N logit(Index token, Index e) const {
    return n_.shared(kLogit, token * experts_ + e, [&] {
      Sum<A> sum = n_.sum();
      for (Index c = 0; c < d_; ++c)
        sum.add(n_.in(first_, token * d_ + c) * n_.in(first_ + 1, e * d_ + c));
      return sum.value();
    });
  }
  N score(Index token, Index e) const {
    if (sigmoid_) return logit(token, e).apply(Function::kSigmoid);
    const N total = n_.shared(kExponentials, token, [&] {
      Sum<A> sum = n_.sum();
      for (Index i = 0; i < experts_; ++i) sum.add(logit(token, i).exp());
      return sum.value();
    });
    return logit(token, e).exp() * total.power(-2);
  }
  // One function of the row of scores plus bias. Where the groups restrict nothing it is told so:
  // as many groups as slots, or all, hold the best.
  N choice(Index token, Index slot) const {
    return n_.shared(kChoice, token * topk_ + slot, [&] { return choose(token, slot); });
  }
  N choose(Index token, Index slot) const {
    const bool bias = n_.has(first_ + 2);
    const Index groups = ops::integer(n_.attributes(), "n_groups", 1),
                best = ops::integer(n_.attributes(), "topk_groups", 1);
    const bool restricted = best < groups && (bias || best < topk_);
    std::vector<typename A::Element> row;
    for (Index e = 0; e < experts_; ++e) {
      const N s = score(token, e);
      row.push_back(bias ? (s + n_.in(first_ + 2, e)).value : s.value);
    }
    const std::int64_t parameters[] = {slot, topk_, restricted ? groups : 1, restricted ? best : 1,
                                       restricted && bias ? 1 : 0};
    return {&n_.algebra(), n_.algebra().apply(Function::kGateChoice, parameters, row)};
  }
  Index chosen(Index token, Index slot) const {
    const auto e = NodeView<A>::integerOf(choice(token, slot).value);
    if (!e || *e < 0 || *e >= experts_) throw Unsupported("a choice that is no expert");
    return *e;
  }
  N chosenSum(Index token) const {
    return n_.shared(kChosenSum, token, [&] {
      Sum<A> sum = n_.sum();
      for (Index slot = 0; slot < topk_; ++slot) sum.add(score(token, chosen(token, slot)));
      return sum.value();
    });
  }

  // Of the score of one expert; the choice itself does not move.
  N ofScore(Index token, Index e) const {
    return n_.shared(kTowardScores, token * experts_ + e, [&] {
      Sum<A> sum = n_.sum();
      for (Index slot = 0; slot < topk_; ++slot) {
        if (chosen(token, slot) == e) sum.add(n_.in(0, token * topk_ + slot));
      }
      if (!sigmoid_) return sum.value().times(scale_);
      // s_c / S: every chosen score is in S as well.
      bool among = false;
      for (Index slot = 0; slot < topk_; ++slot) among = among || chosen(token, slot) == e;
      if (!among) return n_.zero();
      const N inverse = chosenSum(token).power(-2);
      const N toward = n_.shared(kTowardChosen, token, [&] {
        Sum<A> all = n_.sum();
        for (Index slot = 0; slot < topk_; ++slot)
          all.add(n_.in(0, token * topk_ + slot) * score(token, chosen(token, slot)));
        return all.value();
      });
      return ((sum.value() - toward * inverse) * inverse).times(scale_);
    });
  }
  N ofLogit(Index token, Index e) const {
    const N s = score(token, e);
    if (sigmoid_) return s * (s.of(1) - s) * ofScore(token, e);
    const N average = n_.shared(kScoreSlopes, token, [&] {
      Sum<A> sum = n_.sum();
      for (Index i = 0; i < experts_; ++i) sum.add(ofScore(token, i) * score(token, i));
      return sum.value();
    });
    return s * (ofScore(token, e) - average);
  }

  const NodeView<A>& n_;
  std::size_t first_;
  Index d_, experts_, topk_;
  bool sigmoid_;
  Rational scale_;
};

// x [n, d], indices [n, k], weights [n, k], gate [E, f, d], up [E, f, d], down [E, d, f] from
// operand `first` on; with a gradient y's is operand 0.
template <class A>
class Experts {
 public:
  using N = Number<A>;
  Experts(const NodeView<A>& n, std::size_t first)
      : n_(n),
        first_(first),
        tokens_(n.shape(first)[0]),
        d_(n.shape(first)[1]),
        k_(n.shape(first + 1)[1]),
        experts_(n.shape(first + 3)[0]),
        f_(n.shape(first + 3)[1]),
        start_(ops::integer(n.attributes(), "local_expert_start")) {}

  N value(Index flat) const {
    const Index token = flat / d_, c = flat % d_;
    Sum<A> sum = n_.sum();
    for (Index j = 0; j < k_; ++j) {
      const auto e = expert(token, j);
      if (!e) continue;
      for (Index q = 0; q < f_; ++q)
        sum.add(n_.in(first_ + 2, token * k_ + j) * n_.in(first_ + 5, (*e * d_ + c) * f_ + q) *
                hidden(token, *e, q));
    }
    return sum.value();
  }
  N gradient(std::size_t operand, Index flat) const {
    switch (operand) {
      case 0:
        return ofInput(flat / d_, flat % d_);
      case 2:
        return ofRoute(flat / k_, flat % k_);
      case 3:
        return ofProjection(flat, true);
      case 4:
        return ofProjection(flat, false);
      case 5:
        return ofDown(flat / (d_ * f_), flat / f_ % d_, flat % f_);
      default:
        throw Unsupported("a gradient of integers");
    }
  }

 private:
  // Which of the experts here slot j sends the token to.
  std::optional<Index> expert(Index token, Index j) const {
    const auto e = n_.integer(first_ + 1, token * k_ + j);
    return e && *e >= start_ && *e < start_ + experts_ ? std::optional(*e - start_) : std::nullopt;
  }
  N projected(std::size_t operand, int what, Index token, Index e, Index q) const {
    return n_.shared(what, (token * experts_ + e) * f_ + q, [&] {
      Sum<A> sum = n_.sum();
      for (Index c = 0; c < d_; ++c)
        sum.add(n_.in(first_, token * d_ + c) * n_.in(operand, (e * f_ + q) * d_ + c));
      return sum.value();
    });
  }
  N gate(Index token, Index e, Index q) const { return projected(first_ + 3, kGate, token, e, q); }
  N up(Index token, Index e, Index q) const { return projected(first_ + 4, kUp, token, e, q); }
  N hidden(Index token, Index e, Index q) const {
    const N a = gate(token, e, q);
    return a * a.apply(Function::kSigmoid) * up(token, e, q);
  }
  // The weight with which expert e has a part in the token's result; nullopt: none.
  std::optional<N> route(Index token, Index e) const {
    std::optional<N> total;
    for (Index j = 0; j < k_; ++j) {
      if (expert(token, j) != e) continue;
      const N w = n_.in(first_ + 2, token * k_ + j);
      total = total ? *total + w : w;
    }
    return total;
  }
  // Of hidden(token, e, q), without the route's weight.
  N towardHidden(Index token, Index e, Index q) const {
    return n_.shared(kHidden, (token * experts_ + e) * f_ + q, [&] {
      Sum<A> sum = n_.sum();
      for (Index c = 0; c < d_; ++c)
        sum.add(n_.in(0, token * d_ + c) * n_.in(first_ + 5, (e * d_ + c) * f_ + q));
      return sum.value();
    });
  }
  N ofRoute(Index token, Index j) const {
    const auto e = expert(token, j);
    Sum<A> sum = n_.sum();
    for (Index q = 0; e && q < f_; ++q) sum.add(towardHidden(token, *e, q) * hidden(token, *e, q));
    return sum.value();
  }
  N ofDown(Index e, Index c, Index q) const {
    Sum<A> sum = n_.sum();
    for (Index token = 0; token < tokens_; ++token) {
      if (const auto r = route(token, e))
        sum.add(*r * n_.in(0, token * d_ + c) * hidden(token, e, q));
    }
    return sum.value();
  }
  // Of gate or up at (token, e, q): h = silu(gate) up.
  N ofProjected(Index token, Index e, Index q, const N& routed, bool ofGate) const {
    const N a = gate(token, e, q), s = a.apply(Function::kSigmoid),
            toward = routed * towardHidden(token, e, q);
    return ofGate ? toward * up(token, e, q) * (s + a * s * (s.of(1) - s)) : toward * a * s;
  }
  N ofProjection(Index flat, bool ofGate) const {
    const Index e = flat / (f_ * d_), q = flat / d_ % f_, c = flat % d_;
    Sum<A> sum = n_.sum();
    for (Index token = 0; token < tokens_; ++token) {
      if (const auto r = route(token, e))
        sum.add(ofProjected(token, e, q, *r, ofGate) * n_.in(first_, token * d_ + c));
    }
    return sum.value();
  }
  N ofInput(Index token, Index c) const {
    Sum<A> sum = n_.sum();
    for (Index e = 0; e < experts_; ++e) {
      const auto r = route(token, e);
      for (Index q = 0; r && q < f_; ++q) {
        sum.add(ofProjected(token, e, q, *r, true) * n_.in(first_ + 3, (e * f_ + q) * d_ + c));
        sum.add(ofProjected(token, e, q, *r, false) * n_.in(first_ + 4, (e * f_ + q) * d_ + c));
      }
    }
    return sum.value();
  }

  const NodeView<A>& n_;
  std::size_t first_;
  Index tokens_, d_, k_, experts_, f_, start_;
};

}  // namespace

void defineExperts(DefinitionTable& table) {
  table.add("topk", [](const auto& n, std::size_t r, Index i) {
    const Index width = n.shape(0).back(), slots = n.resultShape(r).back();
    const bool largest = ops::flag(n.attributes(), "largest", true);
    using N = decltype(n.in(0, 0));
    const N index = n.shared(0, i, [&] {
      const std::int64_t parameters[] = {i % slots, width, 1, 1, 0};
      std::vector<decltype(n.in(0, 0).value)> row;
      for (Index k = 0; k < width; ++k) {
        const N x = n.in(0, i / slots * width + k);
        row.push_back((largest ? x : x.times(Rational(-1))).value);
      }
      return N{&n.algebra(), n.algebra().apply(Function::kGateChoice, parameters, row)};
    });
    if (r == 1) return index;
    const auto chosen = n.integerOf(index.value);
    if (!chosen || *chosen < 0 || *chosen >= width) throw Unsupported("a choice that is no place");
    return n.in(0, i / slots * width + *chosen);
  });
  table.add("moe_gate", [](const auto& n, std::size_t r, Index i) {
    const Gate gate(n, 0);
    const Index topk = ops::integer(n.attributes(), "topk");
    return r == 0 ? gate.weight(i / topk, i % topk) : gate.index(i / topk, i % topk);
  });
  // Operands: the gradients of weights and of indices (absent), x, w, [bias].
  table.add("moe_gate_backward", [](const auto& n, std::size_t r, Index i) {
    const Gate gate(n, 2);
    return r == 0 ? gate.ofInput(i) : gate.ofWeight(i);
  });
  table.add("moe_experts",
            [](const auto& n, std::size_t, Index i) { return Experts(n, 0).value(i); });
  table.add("moe_experts_backward",
            [](const auto& n, std::size_t r, Index i) { return Experts(n, 1).gradient(r, i); });
}

}  // namespace shardproof::unreduced
