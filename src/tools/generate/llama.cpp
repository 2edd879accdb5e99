// SPDX-License-Identifier: Apache-2.0
// Llama 3 (arXiv 2407.21783): RMSNorm before each block, rotary positions, grouped-query attention,
// SwiGLU, no biases, a head of its own. And mixtures of experts that differ from it by little:
//
//   mixtral     (arXiv 2401.04088): experts in place of SwiGLU
//   qwen3-moe   (arXiv 2505.09388): and norms of each query and key head
//   gpt-oss     (arXiv 2508.10925): and biases, a learned logit of each head that takes a share of
//               the attention (sink), and a sliding window in every other layer, whose mask is an
//               input: what it hides does not matter to the proof
#include <algorithm>

#include "generate/architecture.h"
#include "generate/experts.h"

namespace shardproof::generate {
namespace {

class Llama : ExpertBlocks {
 public:
  using ExpertBlocks::ExpertBlocks;

  void forward() {
    // What every stage has of its own.
    const auto enterChunk = [&](int chunk) {
      b_.setChunk(chunk);
      tokens_ = tokens();
      freqs_ = b_.input("freqs", {o_.sequence, o_.headDim / 2}, "complex64", {.cp = 0});
      masks_ = {causalMask(tokens_)};
      if (o_.window())
        window_ = b_.input("window", {1, 1, o_.sequence, o_.sequence}, "", {.cp = 2});
    };
    go("tok_embeddings");
    enterChunk(0);
    ValueId x = embedding(tokens_, "tok_embeddings.weight", "tok_embeddings");
    x = o_.vocabularyParallel ? b_.reduceOverTp(x) : b_.scatterSequence(x);
    b_.markBoundary(x);
    std::int64_t next = 0;
    x = layers(x, enterChunk,
               [&](ValueId in, const std::string& name) { return layer(in, name, next++); });
    go("norm");
    Targets targets;
    if (o_.severalLosses()) targets.loss = "cross_entropy";
    loss(norm(x, "norm"), "output.weight", targets);
  }

 private:
  const char* eps() const { return o_.architecture == "qwen3-moe" ? "1e-06" : "1e-05"; }
  ValueId norm(ValueId x, const std::string& name) { return rmsNorm(x, name, eps()); }

  ValueId layer(ValueId x, const std::string& name, std::int64_t number) {
    go(name + ".attention_norm");
    const ValueId normed = norm(x, name + ".attention_norm");
    go(name + ".attention");
    const bool slides = window_ >= 0 && number % 2 == 0;
    x = like("add", {x, attention(normed, name + ".attention", slides)}, name + ".attended");
    go(name + ".ffn_norm");
    const ValueId tokens = norm(x, name + ".ffn_norm");
    const std::string ffn = name + ".feed_forward";
    if (o_.experts > 0 && number >= o_.denseLayers) {
      go(ffn);
      return like("add", {x, b_.reduceOverTp(mixture(tokens, ffn))}, name + ".out");
    }
    const ValueId entered = b_.enterTp(tokens);
    go(ffn);
    return like("add", {x, rows(gatedColumns(entered, ffn, o_.hidden), ffn + ".w2", o_.dim)},
                name + ".out");
  }

  ValueId attention(ValueId x, const std::string& name, bool slides) {
    const std::int64_t head = o_.headDim;
    const bool bias = o_.attentionBias();
    // With fewer key-value heads than ranks, neighbours hold the same one.
    const int copies = static_cast<int>(std::max<std::int64_t>(1, o_.tp / o_.kvHeads));
    const ValueId entered = b_.enterTp(x);
    const auto project = [&](const char* weight, const char* what, std::int64_t heads, int held) {
      const ValueId y = columns(entered, name + weight, heads * head, name + weight, bias, held);
      return reshaped("view", y, {o_.batch, o_.sequence, heads, head}, 2, name + what);
    };
    ValueId q = project(".wq", ".q", o_.heads, 1);
    ValueId k = project(".wk", ".k", o_.kvHeads, copies);
    ValueId v = project(".wv", ".v", o_.kvHeads, copies);
    if (o_.headNorms()) {
      q = rmsNorm(q, name + ".q_norm", eps(), true);
      k = rmsNorm(k, name + ".k_norm", eps(), true);
    }
    const std::vector<ValueId> rotated =
        b_.apply("apply_rotary_emb", {q, k, freqs_}, {},
                 std::vector<Result>{{name + ".q.rotated", b_.shape(q), b_.layout(q)},
                                     {name + ".k.rotated", b_.shape(k), b_.layout(k)}});
    q = swapped(rotated[0], 1, 2, name + ".q.heads");
    k = spread(gathered(rotated[1]), name + ".k");
    v = spread(gathered(v), name + ".v");
    std::vector<ValueId> masks = masks_;
    if (slides) masks.push_back(window_);
    return rows(attend(q, k, v, masks, name, o_.sinks()), name + ".wo", o_.dim, bias);
  }

  // Each key-value head serves `group` query heads; ranks that share one serve their own among
  // these.
  ValueId spread(ValueId kv, const std::string& name) {
    const std::int64_t head = o_.headDim, group = o_.heads / o_.kvHeads;
    kv = swapped(kv, 1, 2, name + ".heads");
    if (group == 1) return kv;
    Layout layout = b_.layout(kv);
    const bool cut = layout.cp >= 0;
    if (cut) layout.cp = 3;
    kv = b_.apply("unsqueeze", {kv}, {attribute("dim", 2)},
                  {name + ".single", {o_.batch, o_.kvHeads, 1, o_.sequence, head}, layout});
    layout.tpInner = 2;
    kv = b_.apply("expand", {kv}, {attributeShape("size")},
                  {name + ".repeated", {o_.batch, o_.kvHeads, group, o_.sequence, head}, layout});
    return b_.apply("reshape", {kv}, {attributeShape("size")},
                    {name + ".spread",
                     {o_.batch, o_.heads, o_.sequence, head},
                     {.batch = 0, .cp = cut ? 2 : -1, .tp = 1}});
  }

  ValueId tokens_ = -1, freqs_ = -1, window_ = -1;
  std::vector<ValueId> masks_;
};

}  // namespace

void buildLlama(Builder& builder, const Options& options) { Llama(builder, options).forward(); }

}  // namespace shardproof::generate
