// SPDX-License-Identifier: Apache-2.0
// GPT-2 and GPT-3 (arXiv 2005.14165) as Megatron-LM splits them: LayerNorm before each block,
// learned positions, one projection to query, key and value of each head, GELU, biases, dropout,
// and a head that is the embedding's table.
#include "generate/architecture.h"
#include "generate/blocks.h"

namespace shardproof::generate {
namespace {

const char* const kTable = "embedding.word_embeddings.weight";

class Gpt : Blocks {
 public:
  using Blocks::Blocks;

  void forward() {
    const auto enterChunk = [&](int chunk) {
      b_.setChunk(chunk);
      tokens_ = tokens();
      mask_ = causalMask(tokens_);
    };
    go("embedding");
    enterChunk(0);
    ValueId x = embedding(tokens_, kTable, "embedding.words");
    if (o_.vocabularyParallel) x = b_.reduceOverTp(x, true);
    const ValueId positions =
        b_.parameter("embedding.position_embeddings.weight", {o_.sequence, o_.dim}, {});
    x = dropout(b_.scatterSequence(like("add", {x, positions}, "embedding.positioned")),
                "embedding.dropout");
    b_.markBoundary(x);
    x = layers(x, enterChunk, [&](ValueId in, const std::string& name) { return layer(in, name); });
    go("final_layernorm");
    loss(norm(x, "final_layernorm"), kTable);
  }

 private:
  ValueId norm(ValueId x, const std::string& name) {
    const ValueId w = b_.parameter(name + ".weight", {o_.dim}, {}, o_.sequenceParallel);
    const ValueId b = b_.parameter(name + ".bias", {o_.dim}, {}, o_.sequenceParallel);
    return like("layer_norm", {x, w, b}, name, {attributeNumber("eps", "1e-05")});
  }

  ValueId layer(ValueId x, const std::string& name) {
    go(name + ".input_layernorm");
    const ValueId normed = norm(x, name + ".input_layernorm");
    go(name + ".self_attention");
    const ValueId attended =
        dropout(attention(normed, name + ".self_attention"), name + ".self_attention.dropout");
    x = like("add", {x, attended}, name + ".attended");
    go(name + ".post_attention_layernorm");
    const ValueId entered = b_.enterTp(norm(x, name + ".post_attention_layernorm"));
    go(name + ".mlp");
    const std::string mlp = name + ".mlp";
    const ValueId up =
        columns(entered, mlp + ".dense_h_to_4h", o_.hidden, mlp + ".dense_h_to_4h", true);
    const ValueId activated =
        like("gelu", {up}, mlp + ".gelu", {attributeText("approximate", "tanh")});
    return like(
        "add",
        {x, dropout(rows(activated, mlp + ".dense_4h_to_h", o_.dim, true), mlp + ".dropout")},
        name + ".out");
  }

  ValueId attention(ValueId x, const std::string& name) {
    const std::int64_t head = o_.dim / o_.heads;
    const std::string fused = name + ".query_key_value";
    const ValueId rows3 = columns(b_.enterTp(x), fused, 3 * o_.dim, fused, true);
    const ValueId heads = swapped(
        reshaped("view", rows3, {o_.batch, o_.sequence, o_.heads, 3 * head}, 2, fused + ".heads"),
        1, 2, fused + ".by_head");
    const auto third = [&](int i, const char* what) {
      return b_.apply(
          "slice", {heads},
          {attribute("dim", 3), attribute("start", i * head), attribute("stop", (i + 1) * head)},
          {name + what, {o_.batch, o_.heads, o_.sequence, head}, b_.layout(heads)});
    };
    const ValueId q = third(0, ".q"), k = third(1, ".k"), v = third(2, ".v");
    return rows(attend(q, k, v, {mask_}, name), name + ".dense", o_.dim, true);
  }

  ValueId tokens_ = -1, mask_ = -1;
};

}  // namespace

void buildGpt(Builder& builder, const Options& options) { Gpt(builder, options).forward(); }

}  // namespace shardproof::generate
