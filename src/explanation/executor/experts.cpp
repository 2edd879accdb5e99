// SPDX-License-Identifier: Apache-2.0
// moe_gate, moe_experts and their gradients, topk (docs/operators.md, "Mixture of experts").
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "executor/call.h"
#include "executor/lines.h"
#include "executor/product.h"

namespace shardproof::executor {
namespace {

template <class T>
void run(const Call<T>& c, const Product<T>& p) {
  c.context.flops +=
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  multiply(p);
}

struct Gate {
  std::int64_t tokens = 0, experts = 0, width = 0, topk = 0, groups = 1, best = 1;
  bool sigmoid = false;
};

template <class T>
Gate gateOf(const Call<T>& c, std::size_t first) {
  const Shape &x = c.real(first).shape, &w = c.real(first + 1).shape;
  if (x.size() != 2)
    throw Misfit("operand " + std::to_string(first) + " has shape " + text(x) +
                 ", expected [n, d]");
  c.expect(first + 1, {w.empty() ? 1 : w[0], x[1]}, w.size() == 2 && w[1] == x[1]);
  Gate g{.tokens = x[0],
         .experts = w[0],
         .width = x[1],
         .topk = integerOf(c.attributes, "topk"),
         .groups = integerOf(c.attributes, "n_groups", 1),
         .best = integerOf(c.attributes, "topk_groups", 1),
         .sigmoid = textOf(c.attributes, "score_func", "") == "sigmoid"};
  const bool bias = c.present(first + 2);
  if (bias) {
    c.real(first + 2);
    c.expect(first + 2, {g.experts});
  }
  if (g.experts % g.groups != 0)
    throw Misfit("found " + std::to_string(g.experts) +
                 " experts, expected a multiple of n_groups, " + std::to_string(g.groups));
  if (bias && g.groups > 1 && g.experts / g.groups < 2)
    throw Misfit("found groups of one expert, expected at least two in each (with a bias)");
  const std::int64_t competing = g.groups > 1 ? g.experts / g.groups * g.best : g.experts;
  if (g.topk > competing)
    throw Misfit("found topk " + std::to_string(g.topk) + ", expected at most the " +
                 std::to_string(competing) + " experts that compete");
  return g;
}

// The positions of the k largest, best first; the smaller index wins a tie. `close`: counts
// decisions that rounding may have made.
template <class T>
std::vector<std::int64_t> largest(const std::vector<T>& x, const std::vector<std::int64_t>& among,
                                  std::int64_t k, std::int64_t& close) {
  std::vector<std::int64_t> order = among;
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const T &u = x[a], &v = x[b];
    return lessThan(v, u) || (!lessThan(u, v) && a < b);
  });
  if constexpr (!kIsField<T>) {
    for (std::int64_t i = 0; i < k && i + 1 < static_cast<std::int64_t>(order.size()); ++i) {
      const T u = x[order[i]], v = x[order[i + 1]];
      close += u != v && std::abs(u - v) <= static_cast<T>(1e-12) * (std::abs(u) + std::abs(v));
    }
  }
  order.resize(static_cast<std::size_t>(k));
  return order;
}

// The experts of one token by their choice scores, best first; empty where the scores have no
// value.
template <class T>
std::vector<std::int64_t> choose(const Gate& g, const std::vector<T>& choice, bool bias,
                                 std::int64_t& close) {
  if (std::any_of(choice.begin(), choice.end(), [](const T& s) { return isUndefined(s); }))
    return {};
  std::vector<std::int64_t> competing(static_cast<std::size_t>(g.experts));
  std::iota(competing.begin(), competing.end(), 0);
  if (g.groups > 1) {
    const std::int64_t size = g.experts / g.groups;
    std::vector<T> scores;
    std::vector<std::int64_t> groups(static_cast<std::size_t>(g.groups)), ignored;
    std::iota(groups.begin(), groups.end(), 0);
    for (std::int64_t i = 0; i < g.groups; ++i) {
      std::vector<T> members(choice.begin() + i * size, choice.begin() + (i + 1) * size);
      std::sort(members.begin(), members.end(),
                [](const T& a, const T& b) { return lessThan(b, a); });
      scores.push_back(bias ? members[0] + members[1] : members[0]);
    }
    const std::vector<std::int64_t> chosen = largest(scores, groups, g.best, close);
    std::erase_if(competing, [&](std::int64_t e) {
      return std::find(chosen.begin(), chosen.end(), e / size) == chosen.end();
    });
  }
  return largest(choice, competing, g.topk, close);
}

template <class T>
Value<T> logitsOf(const Call<T>& c, const Gate& g, std::size_t first) {
  Value<T> logits = c.make({g.tokens, g.experts});
  run(c, Product<T>{.m = g.tokens,
                    .n = g.experts,
                    .k = g.width,
                    .a = c.operand(first).data(),
                    .b = c.operand(first + 1).data(),
                    .c = logits.writable(),
                    .transposeB = true});
  return logits;
}

// Of one token: its scores and the chosen experts.
template <class T>
std::vector<std::int64_t> route(const Call<T>& c, const Gate& g, const T* logits, const T* bias,
                                std::vector<T>& scores, std::vector<T>& choice) {
  if (g.sigmoid) {
    for (std::int64_t e = 0; e < g.experts; ++e) scores[e] = sigmoidOf(logits[e]);
  } else {
    T sum;
    exponentials(logits, g.experts, 1, scores.data(), sum);
    const T factor = divide(T(1), sum);
    for (T& s : scores) s *= factor;
  }
  for (std::size_t e = 0; e < scores.size(); ++e)
    choice[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
  return choose(g, choice, bias != nullptr, c.context.closeDecisions);
}

template <class T>
void moeGate(Call<T>& c) {
  const Gate g = gateOf(c, 0);
  const T scale = fromRational<T>(numberOf(c.attributes, "route_scale", Rational(1)));
  const Value<T> logits = logitsOf(c, g, 0);
  Value<T> weights = c.make({g.tokens, g.topk}),
           indices = c.make({g.tokens, g.topk}, ElementKind::kInteger);
  T *w = weights.writable(), *index = indices.writable();
  std::vector<T> scores(static_cast<std::size_t>(g.experts)), choice(scores);
  for (std::int64_t n = 0; n < g.tokens; ++n) {
    const auto chosen = route(c, g, logits.data() + n * g.experts,
                              c.present(2) ? c.operand(2).data() : nullptr, scores, choice);
    T sum = T(0);
    for (const std::int64_t e : chosen) sum += scores[e];
    for (std::int64_t j = 0; j < g.topk; ++j) {
      if (chosen.empty()) {
        w[n * g.topk + j] = index[n * g.topk + j] = undefined<T>();
        continue;
      }
      const std::int64_t e = chosen[j];
      const T s = scores[e];
      w[n * g.topk + j] = (g.sigmoid ? divide(s, sum) : s) * scale;
      index[n * g.topk + j] = fromInteger<T>(e);
    }
  }
  if (c.wants(0)) c.out[0] = std::move(weights);
  if (c.wants(1)) c.out[1] = std::move(indices);
}

// The greatest of each row of the last dimension, or the least, in order.
template <class T>
void topk(Call<T>& c) {
  const Value<T>& x = c.real(0);
  if (x.shape.empty()) throw Misfit("operand 0 has shape [], expected a row at least");
  const std::int64_t n = x.shape.back(), k = integerOf(c.attributes, "topk");
  if (k > n)
    throw Misfit("found topk " + std::to_string(k) + ", expected at most " + std::to_string(n));
  const bool most = flagOf(c.attributes, "largest", true);
  Shape shape = x.shape;
  shape.back() = k;
  Value<T> values = c.make(shape), indices = c.make(shape, ElementKind::kInteger);
  T *value = values.writable(), *index = indices.writable();
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  std::vector<T> row(all.size());
  for (std::int64_t line = 0; line < values.positions() / k; ++line) {
    const T* from = x.data() + line * n;
    bool defined = true;
    for (std::int64_t i = 0; i < n; ++i) {
      row[i] = most ? from[i] : -from[i];
      defined = defined && !isUndefined(from[i]);
    }
    const auto order = defined ? largest(row, all, k, c.context.closeDecisions) : all;
    for (std::int64_t j = 0; j < k; ++j) {
      value[line * k + j] = defined ? from[order[j]] : undefined<T>();
      index[line * k + j] = defined ? fromInteger<T>(order[j]) : undefined<T>();
    }
  }
  if (c.wants(0)) c.out[0] = std::move(values);
  if (c.wants(1)) c.out[1] = std::move(indices);
}

// Operands: the gradient of the weights, the absent one of the indices, x, w, [bias].
template <class T>
void moeGateBackward(Call<T>& c) {
  const Gate g = gateOf(c, 2);
  if (c.wants(2)) throw NoMeaning("the bias of moe_gate has no gradient");
  const Value<T>& gradient = c.gradient(0, {g.tokens, g.topk});
  const T scale = fromRational<T>(numberOf(c.attributes, "route_scale", Rational(1)));
  const Value<T> logits = logitsOf(c, g, 2);
  Value<T> dLogits = c.make({g.tokens, g.experts});
  std::vector<T> scores(static_cast<std::size_t>(g.experts)), choice(scores), ds(scores);
  for (std::int64_t n = 0; n < g.tokens; ++n) {
    const auto chosen = route(c, g, logits.data() + n * g.experts,
                              c.present(4) ? c.operand(4).data() : nullptr, scores, choice);
    const T* dw = gradient.data() + n * g.topk;
    T* to = dLogits.writable() + n * g.experts;
    if (chosen.empty()) {
      std::fill(to, to + g.experts, undefined<T>());
      continue;
    }
    std::fill(ds.begin(), ds.end(), T(0));
    T sum = T(0), along = T(0);
    for (std::int64_t j = 0; j < g.topk; ++j) {
      const T s = scores[chosen[j]];
      sum += s;
      along += dw[j] * s;
    }
    for (std::int64_t j = 0; j < g.topk;
         ++j) {  // of s_j / sum: (dw_j - sum_i dw_i s_i / sum) / sum
      T& d = ds[chosen[j]];
      d = (g.sigmoid ? divide(dw[j] - divide(along, sum), sum) : dw[j]) * scale;
    }
    if (g.sigmoid) {
      for (std::size_t e = 0; e < ds.size(); ++e) to[e] = ds[e] * scores[e] * (T(1) - scores[e]);
    } else {
      T dot = T(0);
      for (std::size_t e = 0; e < ds.size(); ++e) dot += ds[e] * scores[e];
      for (std::size_t e = 0; e < ds.size(); ++e) to[e] = scores[e] * (ds[e] - dot);
    }
  }
  if (c.wants(0)) {
    c.out[0] = c.make({g.tokens, g.width});
    run(c, Product<T>{.m = g.tokens,
                      .n = g.width,
                      .k = g.experts,
                      .a = dLogits.data(),
                      .b = c.operand(3).data(),
                      .c = c.out[0].writable()});
  }
  if (c.wants(1)) {
    c.out[1] = c.make({g.experts, g.width});
    run(c, Product<T>{.m = g.experts,
                      .n = g.width,
                      .k = g.tokens,
                      .a = dLogits.data(),
                      .b = c.operand(2).data(),
                      .c = c.out[1].writable(),
                      .transposeA = true});
  }
}

// --- experts: only the tokens that are routed to an expert are multiplied by it ---

struct ExpertSizes {
  std::int64_t tokens, width, slots, experts, hidden, first;
};

template <class T>
ExpertSizes expertSizes(const Call<T>& c, std::size_t at) {
  const Shape &x = c.real(at).shape, &indices = c.integer(at + 1).shape,
              &gate = c.real(at + 3).shape;
  if (x.size() != 2)
    throw Misfit("operand " + std::to_string(at) + " has shape " + text(x) + ", expected [n, d]");
  if (indices.size() != 2 || indices[0] != x[0])
    throw Misfit("the indices have shape " + text(indices) + ", expected [" + std::to_string(x[0]) +
                 ", k]");
  if (gate.size() != 3)
    throw Misfit("operand " + std::to_string(at + 3) + " has shape " + text(gate) +
                 ", expected [E, f, d]");
  ExpertSizes s{.tokens = x[0],
                .width = x[1],
                .slots = indices[1],
                .experts = 0,
                .hidden = gate[1],
                .first = integerOf(c.attributes, "local_expert_start")};
  s.experts = integerOf(c.attributes, "local_expert_end") - s.first;
  for (const std::size_t i : {2, 4, 5}) c.real(at + i);
  c.expect(at + 2, indices);
  c.expect(at + 3, {s.experts, s.hidden, s.width});
  c.expect(at + 4, {s.experts, s.hidden, s.width});
  c.expect(at + 5, {s.experts, s.width, s.hidden});
  return s;
}

struct Routed {
  std::int64_t token, slot;
};

template <class T>
std::vector<std::vector<Routed>> routed(const ExpertSizes& s, const T* indices,
                                        std::vector<char>& lost) {
  std::vector<std::vector<Routed>> list(static_cast<std::size_t>(s.experts));
  lost.assign(static_cast<std::size_t>(s.tokens), 0);
  for (std::int64_t n = 0; n < s.tokens; ++n)
    for (std::int64_t j = 0; j < s.slots; ++j) {
      const T i = indices[n * s.slots + j];
      if (isUndefined(i)) lost[n] = 1;
      const std::int64_t e = toIndex(i);
      if (e != kNoIndex && e >= s.first && e - s.first < s.experts)
        list[e - s.first].push_back({n, j});
    }
  return list;
}

template <class T>
Value<T> rowsOf(const Call<T>& c, const T* x, const std::vector<Routed>& tokens,
                std::int64_t width) {
  Value<T> rows = c.make({static_cast<std::int64_t>(tokens.size()), width});
  T* to = rows.writable();
  for (const Routed& r : tokens) {
    std::copy(x + r.token * width, x + (r.token + 1) * width, to);
    to += width;
  }
  return rows;
}

// A [m, k] times B [k, n], or the transpose of either.
template <class T>
Value<T> times(const Call<T>& c, const T* a, const T* b, std::int64_t m, std::int64_t n,
               std::int64_t k, bool transposeA, bool transposeB) {
  Value<T> y = c.make({m, n});
  run(c, Product<T>{.m = m,
                    .n = n,
                    .k = k,
                    .a = a,
                    .b = b,
                    .c = y.writable(),
                    .transposeA = transposeA,
                    .transposeB = transposeB});
  return y;
}

template <class T>
void moeExperts(Call<T>& c) {
  const ExpertSizes s = expertSizes(c, 0);
  const T *x = c.operand(0).data(), *weights = c.operand(2).data(), *gate = c.operand(3).data(),
          *up = c.operand(4).data(), *down = c.operand(5).data();
  Value<T> y = filled(c, {s.tokens, s.width}, T(0));
  T* to = y.writable();
  std::vector<char> lost;
  const auto lists = routed(s, c.operand(1).data(), lost);
  for (std::int64_t e = 0; e < s.experts; ++e) {
    const std::vector<Routed>& tokens = lists[e];
    const auto n = static_cast<std::int64_t>(tokens.size());
    if (n == 0) continue;
    const Value<T> rows = rowsOf(c, x, tokens, s.width);
    const Value<T> a =
        times(c, rows.data(), gate + e * s.hidden * s.width, n, s.hidden, s.width, false, true);
    const Value<T> u =
        times(c, rows.data(), up + e * s.hidden * s.width, n, s.hidden, s.width, false, true);
    const Value<T> h = mapped(c, a, u, [](T p, T q) { return p * sigmoidOf(p) * q; });
    const Value<T> out =
        times(c, h.data(), down + e * s.width * s.hidden, n, s.width, s.hidden, false, true);
    for (std::int64_t i = 0; i < n; ++i) {
      const Routed& r = tokens[i];
      const T weight = weights[r.token * s.slots + r.slot];
      for (std::int64_t d = 0; d < s.width; ++d)
        to[r.token * s.width + d] += weight * out.data()[i * s.width + d];
    }
  }
  for (std::int64_t n = 0; n < s.tokens; ++n)
    if (lost[n]) std::fill(to + n * s.width, to + (n + 1) * s.width, undefined<T>());
  c.out[0] = std::move(y);
}

// Operands: gradient of y, then x, indices, weights, gate, up, down; results for the latter six.
// With h = silu(a) u and o = down h, y += weight o.
template <class T>
void moeExpertsBackward(Call<T>& c) {
  const ExpertSizes s = expertSizes(c, 1);
  if (c.wants(1)) throw NoMeaning("indices have no gradient");
  const Value<T>& g = c.gradient(0, {s.tokens, s.width});
  const T *dy = g.data(), *x = c.operand(1).data(), *weights = c.operand(3).data(),
          *gate = c.operand(4).data(), *up = c.operand(5).data(), *down = c.operand(6).data();
  Value<T> dx = filled(c, {s.tokens, s.width}, T(0)),
           dWeights = filled(c, {s.tokens, s.slots}, T(0)),
           dGate = filled(c, c.operand(4).shape, T(0)), dUp = filled(c, c.operand(5).shape, T(0)),
           dDown = filled(c, c.operand(6).shape, T(0));
  std::vector<char> lost;
  const auto lists = routed(s, c.operand(2).data(), lost);
  if (std::any_of(lost.begin(), lost.end(), [](char l) { return l != 0; }))
    throw NoMeaning("an index has no value");
  for (std::int64_t e = 0; e < s.experts; ++e) {
    const std::vector<Routed>& tokens = lists[e];
    const auto n = static_cast<std::int64_t>(tokens.size());
    if (n == 0) continue;
    const std::int64_t size = s.hidden * s.width;
    const Value<T> rows = rowsOf(c, x, tokens, s.width), gradients = rowsOf(c, dy, tokens, s.width);
    const Value<T> a = times(c, rows.data(), gate + e * size, n, s.hidden, s.width, false, true);
    const Value<T> u = times(c, rows.data(), up + e * size, n, s.hidden, s.width, false, true);
    const Value<T> h = mapped(c, a, u, [](T p, T q) { return p * sigmoidOf(p) * q; });
    const Value<T> back =
        times(c, gradients.data(), down + e * size, n, s.hidden, s.width, false, false);  // dy down
    Value<T> weighted = c.make({n, s.width}), da = c.make({n, s.hidden}),
             du = c.make({n, s.hidden});
    for (std::int64_t i = 0; i < n; ++i) {
      const Routed& r = tokens[i];
      const T weight = weights[r.token * s.slots + r.slot];
      T dot = T(0);
      for (std::int64_t f = 0; f < s.hidden; ++f) {
        const std::int64_t at = i * s.hidden + f;
        dot += back.data()[at] * h.data()[at];
        const T dh = weight * back.data()[at], p = a.data()[at], sigma = sigmoidOf(p);
        du.writable()[at] = dh * p * sigma;
        da.writable()[at] = dh * u.data()[at] * sigma * (T(1) + p * (T(1) - sigma));
      }
      dWeights.writable()[r.token * s.slots + r.slot] += dot;
      for (std::int64_t d = 0; d < s.width; ++d)
        weighted.writable()[i * s.width + d] = weight * gradients.data()[i * s.width + d];
    }
    const auto put = [&](Value<T>& whole, const Value<T>& part) {
      std::copy(part.data(), part.data() + size, whole.writable() + e * size);
    };
    if (c.wants(5))
      put(dDown, times(c, weighted.data(), h.data(), s.width, s.hidden, n, true, false));
    if (c.wants(3)) put(dGate, times(c, da.data(), rows.data(), s.hidden, s.width, n, true, false));
    if (c.wants(4)) put(dUp, times(c, du.data(), rows.data(), s.hidden, s.width, n, true, false));
    if (c.wants(0)) {
      const Value<T> viaGate =
                         times(c, da.data(), gate + e * size, n, s.width, s.hidden, false, false),
                     viaUp = times(c, du.data(), up + e * size, n, s.width, s.hidden, false, false);
      for (std::int64_t i = 0; i < n; ++i) {
        T* to = dx.writable() + tokens[i].token * s.width;
        for (std::int64_t d = 0; d < s.width; ++d)
          to[d] += viaGate.data()[i * s.width + d] + viaUp.data()[i * s.width + d];
      }
    }
  }
  Value<T>* results[] = {&dx, nullptr, &dWeights, &dGate, &dUp, &dDown};
  for (std::size_t r = 0; r < 6; ++r)
    if (c.wants(r)) c.out[r] = std::move(*results[r]);
}

}  // namespace

template <class T>
void addExperts(std::vector<NamedKernel<T>>& k) {
  k.push_back({"topk", topk<T>});
  k.push_back({"moe_gate", moeGate<T>});
  k.push_back({"moe_gate_backward", moeGateBackward<T>});
  k.push_back({"moe_experts", moeExperts<T>});
  k.push_back({"moe_experts_backward", moeExpertsBackward<T>});
}

template void addExperts(std::vector<NamedKernel<double>>&);
template void addExperts(std::vector<NamedKernel<long double>>&);
template void addExperts(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
