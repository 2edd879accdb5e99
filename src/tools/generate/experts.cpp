// SPDX-License-Identifier: Apache-2.0
#include "generate/experts.h"

namespace shardproof::generate {
namespace {

// GPT-OSS (its model card, and the reference implementation): bounds of an expert's two
// projections, and the slope of its gate.
constexpr std::int64_t kProjectionBound = 7;
const char* const kGateSlope = "1.702";

// Tokens of all sequences, one after the other.
constexpr Layout kTokens{.batch = 0, .cp = 0};

}  // namespace

ValueId ExpertBlocks::flattened(ValueId x, const std::string& name) {
  const Shape shape = b_.shape(x);
  return b_.apply("view", {x}, {attributeShape("size")},
                  {name, {shape[0] * shape[1], shape[2]}, kTokens});
}

// A choice has no gradient. The router's comes through the scores of the chosen experts.
ValueId ExpertBlocks::choice(ValueId tokens, ValueId weight, ValueId scores,
                             const std::string& name) {
  const Result indices{
      name + ".indices", {b_.shape(tokens)[0], o_.activeExperts}, kTokens, "int64"};
  if (!o_.isDeepSeek())
    return b_.applyFixed("topk", {scores}, {attribute("topk", o_.activeExperts)}, indices, 1);
  std::vector<ValueId> operands{tokens, weight};
  // An input: it is changed between steps by the experts' load.
  if (o_.sigmoidScores) operands.push_back(b_.input(name + ".bias", {o_.experts}, "", {}));
  return b_.applyFixed(
      "moe_gate", operands,
      {attributeText("score_func", o_.sigmoidScores ? "sigmoid" : "softmax"),
       attribute("n_groups", o_.expertGroups), attribute("topk_groups", o_.activeGroups),
       attribute("topk", o_.activeExperts)},
      indices, 1);
}

ExpertBlocks::Routing ExpertBlocks::route(ValueId x, const std::string& name) {
  const ValueId tokens = flattened(x, name + ".tokens");
  const std::int64_t n = b_.shape(tokens)[0], k = o_.activeExperts;
  const ValueId w = b_.parameter(name + ".weight", {o_.experts, o_.dim}, {});
  std::vector<ValueId> operands{tokens, w};
  if (o_.routerBias()) operands.push_back(b_.parameter(name + ".bias", {o_.experts}, {}));
  Routing r;
  r.scores = b_.apply("linear", operands, {}, {name + ".logits", {n, o_.experts}, kTokens});
  r.scores = o_.sigmoidScores
                 ? like("sigmoid", {r.scores}, name + ".scores")
                 : like("softmax", {r.scores}, name + ".scores", {attribute("dim", -1)});
  r.indices = choice(tokens, w, r.scores, name);
  r.chosen =
      b_.applyFixed("one_hot", {r.indices}, {attribute("start", 0), attribute("stop", o_.experts)},
                    {name + ".chosen", {n, k, o_.experts}, kTokens});
  r.weights = b_.apply("einsum", {r.chosen, r.scores}, {attributeText("equation", "nke,ne->nk")},
                       {name + ".chosen_scores", {n, k}, kTokens});
  if (o_.dividedWeights()) r.weights = shares(r.weights, name + ".shares");
  if (o_.routingScale != "1")
    r.weights =
        like("mul", {r.weights}, name + ".weights", {attributeNumber("scalar", o_.routingScale)});
  return r;
}

ValueId ExpertBlocks::shares(ValueId x, const std::string& name) {
  const ValueId sum = b_.apply("sum", {x}, {attribute("dim", 1), attributeFlag("keepdim", true)},
                               {name + ".sum", {b_.shape(x)[0], 1}, b_.layout(x)});
  return like("div", {x, sum}, name);
}

ValueId ExpertBlocks::mixture(ValueId x, const std::string& name) {
  const ValueId entered = b_.enterTp(x), whole = b_.gatherSequence(x);
  const Routing routing = route(whole, name + ".gate");
  b_.markGradient(routing.weights);
  ValueId y = experts(b_.enterEp(flattened(entered, name + ".tokens")), b_.enterEp(routing.indices),
                      b_.enterEp(b_.enterTp(routing.weights)), name + ".experts");
  const Layout partial{.batch = 0, .cp = 1, .sumTp = true};
  y = b_.apply("view", {b_.reduceOverEp(y)}, {attributeShape("size")},
               {name + ".routed", b_.shape(x), partial});
  if (o_.sharedExperts > 0) {
    const std::string shared = name + ".shared_experts";
    const ValueId product = gatedColumns(entered, shared, o_.sharedExperts * o_.expertHidden);
    y = like("add", {y, partialRows(product, shared + ".w2", o_.dim)}, name + ".mixed");
  }
  if (o_.balanceLoss != "0") balance(routing, name + ".balance");
  return y;
}

Layout ExpertBlocks::ofHeldExperts(ValueId x) const {
  Layout layout = b_.layout(x);
  layout.gathered = layout.sumTp = layout.sumEp = true;
  return layout;
}

// Cut over the ranks of `ep` by number, and where these do not use up tp, along the hidden width.
ValueId ExpertBlocks::experts(ValueId x, ValueId indices, ValueId weights,
                              const std::string& name) {
  return o_.clampedExperts() ? clampedExperts(x, indices, weights, name)
                             : gatedExperts(x, indices, weights, name);
}

// One operator, whatever the number of experts is.
ValueId ExpertBlocks::gatedExperts(ValueId x, ValueId indices, ValueId weights,
                                   const std::string& name) {
  const auto weight = [&](const char* what, std::int64_t to, std::int64_t from, int hidden) {
    return b_.parameter(name + what, {o_.experts, to, from},
                        {.tp = o_.expertTp == 1 ? 0 : hidden, .ep = 0});
  };
  const std::vector<ValueId> operands{x,
                                      indices,
                                      weights,
                                      weight(".w1", o_.expertHidden, o_.dim, 1),
                                      weight(".w3", o_.expertHidden, o_.dim, 1),
                                      weight(".w2", o_.dim, o_.expertHidden, 2)};
  return b_.apply("moe_experts", operands,
                  {attribute("n_routed_experts", o_.experts),
                   attributePerTp("local_expert_start", 0, perTp(), perEp()),
                   attributePerTp("local_expert_end", held(), perTp(), perEp())},
                  {name, b_.shape(x), ofHeldExperts(x)});
}

// GPT-OSS: with g = min(w1 x + b1, 7) and u = w3 x + b3 held within 7, an expert is
// w2 (g sigmoid(1.702 g) (u + 1)) + b2. Each rank applies all experts that it holds to all tokens;
// the weight of one that a token did not choose is 0.
ValueId ExpertBlocks::clampedExperts(ValueId x, ValueId indices, ValueId weights,
                                     const std::string& name) {
  const std::int64_t n = b_.shape(x)[0], k = o_.activeExperts;
  const auto cut = [&](int experts) {
    Layout layout = b_.layout(x);
    layout.gathered = true;
    layout.tp = layout.ep = experts;
    return layout;
  };
  const auto weight = [&](const std::string& what, const Shape& shape) {
    return b_.parameter(name + what, shape, {.tp = 0, .ep = 0});
  };
  const auto projected = [&](ValueId from, const std::string& what, const char* equation,
                             std::int64_t to, std::int64_t width) {
    const ValueId w = weight(what, {o_.experts, to, width});
    const ValueId y = b_.apply("einsum", {from, w}, {attributeText("equation", equation)},
                               {name + what + ".product", {n, o_.experts, to}, cut(1)});
    return like("add", {y, weight(what + "_bias", {o_.experts, to})}, name + what + ".biased");
  };
  const auto plus = [&](ValueId v, std::int64_t number, const std::string& what) {
    return like("add", {v}, name + what, {attribute("scalar", number)});
  };
  // min(v, bound) = bound - relu(bound - v), and the converse for the maximum.
  const auto atMost = [&](ValueId v, const std::string& what) {
    const ValueId rest =
        plus(like("neg", {v}, name + what + ".negative"), kProjectionBound, what + ".below_bound");
    const ValueId kept = like("relu", {rest}, name + what + ".distance");
    return plus(like("neg", {kept}, name + what + ".distance.negative"), kProjectionBound,
                what + ".at_most");
  };
  const auto atLeast = [&](ValueId v, const std::string& what) {
    const ValueId above = plus(v, kProjectionBound, what + ".above_bound");
    return plus(like("relu", {above}, name + what + ".height"), -kProjectionBound,
                what + ".at_least");
  };
  const ValueId gate = atMost(projected(x, ".w1", "nd,efd->nef", o_.expertHidden, o_.dim), ".w1");
  const ValueId up =
      atLeast(atMost(projected(x, ".w3", "nd,efd->nef", o_.expertHidden, o_.dim), ".w3"), ".w3");
  const ValueId slope =
      like("mul", {gate}, name + ".slope", {attributeNumber("scalar", kGateSlope)});
  const ValueId open =
      like("mul", {gate, like("sigmoid", {slope}, name + ".sigmoid")}, name + ".gate");
  const ValueId hidden = like("mul", {plus(up, 1, ".w3.plus_one"), open}, name + ".hidden");
  const ValueId results = projected(hidden, ".w2", "nef,edf->ned", o_.dim, o_.expertHidden);
  const ValueId chosen = b_.applyFixed("one_hot", {indices},
                                       {attributePerTp("start", 0, perTp(), perEp()),
                                        attributePerTp("stop", held(), perTp(), perEp())},
                                       {name + ".chosen", {n, k, o_.experts}, cut(2)});
  const ValueId each =
      b_.apply("einsum", {chosen, weights}, {attributeText("equation", "nke,nk->ne")},
               {name + ".weights", {n, o_.experts}, cut(1)});
  return b_.apply("einsum", {each, results}, {attributeText("equation", "ne,ned->nd")},
                  {name, b_.shape(x), ofHeldExperts(x)});
}

// Mean over sequences of sum_i f_i P_i: f_i is the share of tokens that chose expert i, in parts
// of what each expert has on average, P_i the mean of its scores, which sum up to 1. (arXiv
// 2405.04434, section 2.2.3, arXiv 2412.19437, section 2.1.2: equations 17 to 20.) f has no
// gradient.
void ExpertBlocks::balance(const Routing& routing, const std::string& own) {
  const Shape each{o_.batch, o_.experts};
  const Layout rows{.batch = 0};
  const auto meanOverTokens = [&](ValueId x, const std::string& name) {
    const ValueId sequences =
        b_.apply("view", {x}, {attributeShape("size")},
                 {name + ".sequences", {o_.batch, o_.sequence, o_.experts}, rows});
    return b_.apply("mean", {sequences}, {attribute("dim", 1)}, {name + ".mean", each, rows});
  };
  const ValueId scores =
      o_.sigmoidScores ? shares(routing.scores, own + ".scores") : routing.scores;
  const ValueId mean = meanOverTokens(scores, own + ".scores");
  const ValueId counts = b_.apply("sum", {routing.chosen}, {attribute("dim", 1)},
                                  {own + ".counts", b_.shape(routing.scores), rows});
  ValueId load = meanOverTokens(counts, own + ".counts");
  load = like("mul", {load}, own + ".load.scaled", {attribute("scalar", o_.experts)});
  load = like("div", {load}, own + ".load", {attribute("scalar", o_.activeExperts)});
  const ValueId products = like("mul", {mean, load}, own + ".products");
  const ValueId sums =
      b_.apply("sum", {products}, {attribute("dim", 1)}, {own + ".sums", {o_.batch}, rows});
  b_.meanLoss("mean", {sums}, {}, own, o_.balanceLoss);
}

}  // namespace shardproof::generate
