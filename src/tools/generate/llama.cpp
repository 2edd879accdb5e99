// SPDX-License-Identifier: Apache-2.0
// Llama 3 (arXiv 2407.21783): RMSNorm before each block, rotary positions, grouped-query attention,
// SwiGLU, no biases, a head of its own.
#include <algorithm>

#include "generate/architecture.h"
#include "generate/blocks.h"

namespace shardproof::generate {
namespace {

class Llama : Blocks {
 public:
  using Blocks::Blocks;

  void forward() {
    // What every stage has of its own.
    const auto enterChunk = [&](int chunk) {
      b_.setChunk(chunk);
      tokens_ = tokens();
      freqs_ = b_.input("freqs", {o_.sequence, o_.dim / o_.heads / 2}, "complex64", {});
      mask_ = causalMask(tokens_);
    };
    go("tok_embeddings");
    enterChunk(0);
    ValueId x = embedding(tokens_, "tok_embeddings.weight", "tok_embeddings");
    x = o_.vocabularyParallel ? b_.reduceOverTp(x) : b_.scatterSequence(x);
    b_.markBoundary(x);
    x = layers(x, enterChunk, [&](ValueId in, const std::string& name) { return layer(in, name); });
    go("norm");
    loss(norm(x, "norm"), "output.weight");
  }

 private:
  ValueId norm(ValueId x, const std::string& name) { return rmsNorm(x, name, "1e-05"); }

  ValueId layer(ValueId x, const std::string& name) {
    go(name + ".attention_norm");
    const ValueId normed = norm(x, name + ".attention_norm");
    go(name + ".attention");
    x = like("add", {x, attention(normed, name + ".attention")}, name + ".attended");
    go(name + ".ffn_norm");
    const ValueId entered = b_.enterTp(norm(x, name + ".ffn_norm"));
    go(name + ".feed_forward");
    const std::string ffn = name + ".feed_forward";
    return like("add", {x, rows(gatedColumns(entered, ffn, o_.hidden), ffn + ".w2", o_.dim)},
                name + ".out");
  }

  ValueId attention(ValueId x, const std::string& name) {
    const std::int64_t head = o_.dim / o_.heads;
    // With fewer key-value heads than ranks, neighbours hold the same one.
    const int copies = static_cast<int>(std::max<std::int64_t>(1, o_.tp / o_.kvHeads));
    const ValueId entered = b_.enterTp(x);
    const auto project = [&](const char* weight, const char* what, std::int64_t heads, int held) {
      const ValueId y = columns(entered, name + weight, heads * head, name + weight, false, held);
      return reshaped("view", y, {o_.batch, o_.sequence, heads, head}, 2, name + what);
    };
    const ValueId q = project(".wq", ".q", o_.heads, 1);
    const ValueId k = project(".wk", ".k", o_.kvHeads, copies);
    const ValueId v = project(".wv", ".v", o_.kvHeads, copies);
    const std::vector<ValueId> rotated =
        b_.apply("apply_rotary_emb", {q, k, freqs_}, {},
                 std::vector<Result>{{name + ".q.rotated", b_.shape(q), b_.layout(q)},
                                     {name + ".k.rotated", b_.shape(k), b_.layout(k)}});
    const ValueId heads = swapped(rotated[0], 1, 2, name + ".q.heads");
    return rows(attend(heads, spread(rotated[1], name + ".k"), spread(v, name + ".v"), mask_, name),
                name + ".wo", o_.dim);
  }

  // Each key-value head serves `group` query heads; ranks that share one serve their own among
  // these.
  ValueId spread(ValueId kv, const std::string& name) {
    const std::int64_t head = o_.dim / o_.heads, group = o_.heads / o_.kvHeads;
    kv = swapped(kv, 1, 2, name + ".heads");
    if (group == 1) return kv;
    Layout layout = b_.layout(kv);
    kv = b_.apply("unsqueeze", {kv}, {attribute("dim", 2)},
                  {name + ".single", {o_.batch, o_.kvHeads, 1, o_.sequence, head}, layout});
    layout.tpInner = 2;
    kv = b_.apply("expand", {kv}, {attributeShape("size")},
                  {name + ".repeated", {o_.batch, o_.kvHeads, group, o_.sequence, head}, layout});
    return b_.apply(
        "reshape", {kv}, {attributeShape("size")},
        {name + ".spread", {o_.batch, o_.heads, o_.sequence, head}, {.batch = 0, .tp = 1}});
  }

  ValueId tokens_ = -1, freqs_ = -1, mask_ = -1;
};

}  // namespace

void buildLlama(Builder& builder, const Options& options) { Llama(builder, options).forward(); }

}  // namespace shardproof::generate
