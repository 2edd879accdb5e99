// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 (arXiv 2405.04434) and DeepSeek-V3 (arXiv 2412.19437): multi-head latent attention,
// leading dense layers, then mixtures of shared and routed experts, and a module that predicts a
// further token.
#include "generate/architecture.h"
#include "generate/experts.h"

namespace shardproof::generate {
namespace {

const char* const kTable = "tok_embeddings.weight";
const char* const kHead = "output.weight";
// Of arXiv 2412.19437, section 4.2, for the first 10T tokens.
const char* const kFurtherTokenWeight = "0.3";

class DeepSeek : ExpertBlocks {
 public:
  using ExpertBlocks::ExpertBlocks;

  void forward() {
    const auto enterChunk = [&](int chunk) {
      b_.setChunk(chunk);
      tokens_ = tokens();
      freqs_ = b_.input("freqs", {o_.sequence, o_.rotaryDim / 2}, "complex64", {.cp = 0});
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
    if (o_.severalLosses()) targets.loss = "cross_entropy";
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
    const ValueId key = b_.apply(
        "unsqueeze", {shared}, {attribute("dim", 2)},
        {name + ".k_rotary.single", {o_.batch, o_.sequence, 1, rotary}, {.batch = 0, .cp = 1}});
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
    const ValueId k =
        gathered(joined(sliced(kv, 0, plain, name + ".k_plain"), repeated, name + ".k"));
    const ValueId v = gathered(sliced(kv, plain, plain + o_.valueDim, name + ".v"));
    const ValueId mixed =
        attend(swapped(q, 1, 2, name + ".q.by_head"), swapped(k, 1, 2, name + ".k.by_head"),
               swapped(v, 1, 2, name + ".v.by_head"), {mask_}, name);
    return rows(mixed, name + ".wo", o_.dim);
  }

  ValueId dense(ValueId x, const std::string& name) {
    return partialRows(gatedColumns(x, name, o_.hidden), name + ".w2", o_.dim);
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
