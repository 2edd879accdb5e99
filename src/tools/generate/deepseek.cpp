// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 (arXiv 2405.04434) and DeepSeek-V3 (arXiv 2412.19437): multi-head latent attention,
// leading dense layers, then mixtures of shared and routed experts, and a module that predicts a
// further token.
//
// Experts are one operator a layer, whatever their number is. Each rank routes all tokens of its
// microbatch: it applies those of the chosen experts that it holds, and the partial results are
// added up.
#include "generate/architecture.h"
#include "generate/blocks.h"

namespace shardproof::generate {
namespace {

const char* const kTable = "tok_embeddings.weight";
const char* const kHead = "output.weight";
// Of arXiv 2412.19437, section 4.2, for the first 10T tokens.
const char* const kFurtherTokenWeight = "0.3";

class DeepSeek : Blocks {
 public:
  using Blocks::Blocks;

  void forward() {
    const auto enterChunk = [&](int chunk) {
      b_.setChunk(chunk);
      tokens_ = tokens();
      freqs_ = b_.input("freqs", {o_.sequence, o_.rotaryDim / 2}, "complex64", {});
      mask_ = causalMask(tokens_);
    };
    go("tok_embeddings");
    enterChunk(0);
    ValueId x = stream(tokens_, "tok_embeddings");
    b_.markBoundary(x);
    std::int64_t next = 0;
    x = layers(x, enterChunk, [&](ValueId in, const std::string& name) {
      return layer(in, name, next++ >= o_.denseLayers);
    });
    go("norm");
    Targets targets;
    if (o_.mtp > 0 || (o_.balanceLoss != "0" && o_.denseLayers < o_.layers))
      targets.loss = "cross_entropy";  // one of several
    loss(norm(x, "norm"), kHead, targets);
    if (o_.mtp > 0) predictFurther(x);
  }

 private:
  ValueId norm(ValueId x, const std::string& name) { return rmsNorm(x, name, "1e-06"); }

  // Rows of the table, where norms and residuals are: replicated or cut along the sequence.
  ValueId stream(ValueId ids, const std::string& name) {
    const ValueId rows = embedding(ids, kTable, name);
    return o_.vocabularyParallel ? b_.reduceOverTp(rows) : b_.scatterSequence(rows);
  }

  // A projection that every rank computes, of tokens that are replicated or cut along the sequence.
  ValueId replicated(ValueId x, const std::string& name, std::int64_t to) {
    Shape shape = b_.shape(x);
    const ValueId w = b_.parameter(name + ".weight", {to, shape.back()}, {}, o_.sequenceParallel);
    shape.back() = to;
    return b_.apply("linear", {x, w}, {}, {name, shape, b_.layout(x)});
  }

  ValueId sliced(ValueId x, std::int64_t from, std::int64_t to, const std::string& name) {
    Shape shape = b_.shape(x);
    const int last = static_cast<int>(shape.size()) - 1;
    shape.back() = to - from;
    return b_.apply("slice", {x},
                    {attribute("dim", last), attribute("start", from), attribute("stop", to)},
                    {name, shape, b_.layout(x)});
  }

  ValueId joined(ValueId a, ValueId b, const std::string& name) {
    Shape shape = b_.shape(a);
    const int last = static_cast<int>(shape.size()) - 1;
    shape.back() += b_.shape(b).back();
    return b_.apply("cat", {a, b}, {attribute("dim", last)}, {name, shape, b_.layout(a)});
  }

  ValueId layer(ValueId x, const std::string& name, bool experts) {
    go(name + ".attention_norm");
    const ValueId normed = norm(x, name + ".attention_norm");
    go(name + ".attention");
    x = like("add", {x, attention(normed, name + ".attention")}, name + ".attended");
    go(name + ".ffn_norm");
    const ValueId tokens = norm(x, name + ".ffn_norm");
    const std::string ffn = name + ".feed_forward";
    go(ffn);
    const ValueId y = experts ? mixture(tokens, ffn) : dense(b_.enterTp(tokens), ffn);
    return like("add", {x, b_.reduceOverTp(y)}, name + ".out");
  }

  // Queries, keys and values are projections of latents. Keys have a part with positions, which is
  // one for all heads.
  ValueId attention(ValueId x, const std::string& name) {
    const std::int64_t plain = o_.noPositionDim, rotary = o_.rotaryDim;
    const auto heads = [&](ValueId latent, const std::string& what, std::int64_t width) {
      const ValueId y = columns(latent, name + what, o_.heads * width, name + what);
      return reshaped("view", y, {o_.batch, o_.sequence, o_.heads, width}, 2,
                      name + what + ".heads");
    };
    ValueId q = -1;
    if (o_.queryRank == 0) {
      q = heads(b_.enterTp(x), ".wq", plain + rotary);
    } else {
      const ValueId latent = norm(replicated(x, name + ".wq_a", o_.queryRank), name + ".q_norm");
      q = heads(b_.enterTp(latent), ".wq_b", plain + rotary);
    }
    const ValueId latents = replicated(x, name + ".wkv_a", o_.kvRank + rotary);
    const ValueId latent = norm(sliced(latents, 0, o_.kvRank, name + ".kv"), name + ".kv_norm");
    const ValueId kv = heads(b_.enterTp(latent), ".wkv_b", plain + o_.valueDim);
    const ValueId part = sliced(latents, o_.kvRank, o_.kvRank + rotary, name + ".k_rotary");
    const ValueId shared = b_.enterTp(part);
    const ValueId key =
        b_.apply("unsqueeze", {shared}, {attribute("dim", 2)},
                 {name + ".k_rotary.single", {o_.batch, o_.sequence, 1, rotary}, {.batch = 0}});
    const ValueId query = sliced(q, plain, plain + rotary, name + ".q_rotary");
    const std::vector<ValueId> rotated = b_.apply(
        "apply_rotary_emb", {query, key, freqs_}, {},
        std::vector<Result>{{name + ".q_rotary.rotated", b_.shape(query), b_.layout(query)},
                            {name + ".k_rotary.rotated", b_.shape(key), b_.layout(key)}});
    b_.markGradient(part);
    b_.markGradient(rotated[1]);
    const ValueId repeated =
        b_.apply("expand", {rotated[1]}, {attributeShape("size")},
                 {name + ".k_rotary.repeated", b_.shape(query), b_.layout(query)});
    q = joined(sliced(q, 0, plain, name + ".q_plain"), rotated[0], name + ".q");
    const ValueId k = joined(sliced(kv, 0, plain, name + ".k_plain"), repeated, name + ".k");
    const ValueId v = sliced(kv, plain, plain + o_.valueDim, name + ".v");
    const ValueId mixed =
        attend(swapped(q, 1, 2, name + ".q.by_head"), swapped(k, 1, 2, name + ".k.by_head"),
               swapped(v, 1, 2, name + ".v.by_head"), mask_, name);
    return rows(mixed, name + ".wo", o_.dim);
  }

  ValueId dense(ValueId x, const std::string& name) {
    return partialRows(gatedColumns(x, name, o_.hidden), name + ".w2", o_.dim);
  }

  ValueId flattened(ValueId x, const std::string& name) {
    const Shape shape = b_.shape(x);
    return b_.apply("view", {x}, {attributeShape("size")},
                    {name, {shape[0] * shape[1], shape[2]}, {.batch = 0}});
  }

  // Of all tokens of a rank: each one's experts and their weights; `chosen` is 1 where a slot has
  // an expert.
  struct Routing {
    ValueId scores = -1, indices = -1, chosen = -1, weights = -1;
  };

  // The choice is made by `moe_gate`, which has no gradient. That of the router comes through the
  // scores of the chosen experts.
  Routing route(ValueId x, const std::string& name) {
    const ValueId tokens = flattened(x, name + ".tokens");
    const std::int64_t n = b_.shape(tokens)[0], k = o_.activeExperts;
    const Layout rows{.batch = 0};
    const ValueId w = b_.parameter(name + ".weight", {o_.experts, o_.dim}, {});
    Routing r;
    r.scores = b_.apply("linear", {tokens, w}, {}, {name + ".logits", {n, o_.experts}, rows});
    r.scores = o_.sigmoidScores
                   ? like("sigmoid", {r.scores}, name + ".scores")
                   : like("softmax", {r.scores}, name + ".scores", {attribute("dim", -1)});
    std::vector<ValueId> operands{tokens, w};
    // An input: it is changed between steps by the experts' load.
    if (o_.sigmoidScores) operands.push_back(b_.input(name + ".bias", {o_.experts}, "", {}));
    r.indices =
        b_.applyFixed("moe_gate", operands,
                      {attributeText("score_func", o_.sigmoidScores ? "sigmoid" : "softmax"),
                       attribute("n_groups", o_.expertGroups),
                       attribute("topk_groups", o_.activeGroups), attribute("topk", k)},
                      {name + ".indices", {n, k}, rows, "int64"}, 1);
    r.chosen = b_.applyFixed("one_hot", {r.indices},
                             {attribute("start", 0), attribute("stop", o_.experts)},
                             {name + ".chosen", {n, k, o_.experts}, rows});
    r.weights = b_.apply("einsum", {r.chosen, r.scores}, {attributeText("equation", "nke,ne->nk")},
                         {name + ".chosen_scores", {n, k}, rows});
    if (o_.sigmoidScores) r.weights = shares(r.weights, name + ".shares");
    if (o_.routingScale != "1")
      r.weights =
          like("mul", {r.weights}, name + ".weights", {attributeNumber("scalar", o_.routingScale)});
    return r;
  }

  // Divided by their sum over the last of two dimensions.
  ValueId shares(ValueId x, const std::string& name) {
    const ValueId sum = b_.apply("sum", {x}, {attribute("dim", 1), attributeFlag("keepdim", true)},
                                 {name + ".sum", {b_.shape(x)[0], 1}, b_.layout(x)});
    return like("div", {x, sum}, name);
  }

  // Shared and routed experts; partial over tp. Every tp rank does the same routing, so its
  // gradient is whole; that of the weights is added up over tp before it.
  ValueId mixture(ValueId x, const std::string& name) {
    const ValueId entered = b_.enterTp(x), whole = b_.gatherSequence(x);
    const Routing routing = route(whole, name + ".gate");
    b_.markGradient(routing.weights);
    ValueId y =
        experts(b_.enterEp(flattened(entered, name + ".tokens")), b_.enterEp(routing.indices),
                b_.enterEp(b_.enterTp(routing.weights)), name + ".experts");
    Layout partial{.batch = 0, .sumTp = true};
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

  // Cut over the ranks of `ep` by number, and where these do not use up tp, along the hidden width.
  ValueId experts(ValueId x, ValueId indices, ValueId weights, const std::string& name) {
    const bool byNumber = o_.expertTp == 1;
    const std::int64_t perEp = o_.experts / o_.epRanks();
    const std::int64_t perTp = byNumber ? perEp / o_.tp : 0, own = byNumber ? perTp : perEp;
    const auto weight = [&](const char* what, std::int64_t to, std::int64_t from, int hidden) {
      return b_.parameter(name + what, {o_.experts, to, from},
                          {.tp = byNumber ? 0 : hidden, .ep = 0});
    };
    const std::vector<ValueId> operands{x,
                                        indices,
                                        weights,
                                        weight(".w1", o_.expertHidden, o_.dim, 1),
                                        weight(".w3", o_.expertHidden, o_.dim, 1),
                                        weight(".w2", o_.dim, o_.expertHidden, 2)};
    return b_.apply(
        "moe_experts", operands,
        {attribute("n_routed_experts", o_.experts),
         attributePerTp("local_expert_start", 0, perTp, perEp),
         attributePerTp("local_expert_end", own, perTp, perEp)},
        {name, b_.shape(x), {.batch = 0, .gathered = true, .sumTp = true, .sumEp = true}});
  }

  // Mean over sequences of sum_i f_i P_i: f_i is the share of tokens that chose expert i, in parts
  // of what each expert has on average, P_i the mean of its scores, which sum up to 1. (arXiv
  // 2405.04434, section 2.2.3, arXiv 2412.19437, section 2.1.2: equations 17 to 20.) f has no
  // gradient.
  void balance(const Routing& routing, const std::string& own) {
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

  // arXiv 2412.19437, section 2.2: from the stream before the last norm and the embedding of the
  // next token to the token after it. Embedding and head are the model's.
  void predictFurther(ValueId x) {
    const std::string name = "mtp";
    go(name + ".embedding");
    const ValueId next = stream(ids("labels"), name + ".embedding");
    x = inLayer(name, [&] {
      go(name + ".projection");
      const ValueId both = joined(norm(x, name + ".stream_norm"),
                                  norm(next, name + ".embedding_norm"), name + ".both");
      return layer(replicated(both, name + ".projection", o_.dim), name,
                   o_.denseLayers < o_.layers);
    });
    go(name + ".norm");
    loss(norm(x, name + ".norm"), kHead,
         {.logits = name + ".output",
          .labels = name + ".labels",
          .loss = name + ".loss",
          .weight = kFurtherTokenWeight});
  }

  ValueId tokens_ = -1, freqs_ = -1, mask_ = -1;
};

}  // namespace

void buildDeepSeek(Builder& builder, const Options& options) {
  DeepSeek(builder, options).forward();
}

}  // namespace shardproof::generate
