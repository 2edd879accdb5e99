#include "generate/architecture.h"

#include <charconv>
#include <cmath>

namespace shardproof::generate {
namespace {

// The shortest decimal that is this double.
std::string decimal(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

class Architecture {
 public:
  Architecture(Builder& builder, const Options& options) : b_(builder), o_(options) {}

  ValueId mlp();
  ValueId llama();

 private:
  // Chunk of a layer: the first (layers mod chunks) chunks have one more.
  int chunkOf(std::int64_t layer) const {
    const std::int64_t each = o_.layers / o_.chunks(), more = o_.layers % o_.chunks();
    return static_cast<int>(layer < more * (each + 1) ? layer / (each + 1) : more + (layer - more * (each + 1)) / each);
  }
  void go(const std::string& scope) { b_.setLocation(scope); }

  // x w^T with the result's columns cut over tp; x enters the cut region.
  ValueId columns(ValueId x, const std::string& name, std::int64_t to) {
    Shape shape = b_.shape(x);
    const std::int64_t from = shape.back();
    shape.back() = to;
    const ValueId w = b_.parameter(name + ".weight", {to, from}, {.tp = 0});
    Layout layout = b_.layout(x);
    layout.tp = static_cast<int>(shape.size()) - 1;
    return b_.apply("linear", {x, w}, {}, {name, shape, layout});
  }
  // x w^T with x's columns cut over tp, summed up over tp.
  ValueId rows(ValueId x, const std::string& name, std::int64_t to) {
    Shape shape = b_.shape(x);
    const std::int64_t from = shape.back();
    shape.back() = to;
    const ValueId w = b_.parameter(name + ".weight", {to, from}, {.tp = 1});
    Layout layout = b_.layout(x);
    layout.tp = -1;
    layout.sumTp = true;
    return b_.reduceOverTp(b_.apply("linear", {x, w}, {}, {name, shape, layout}));
  }
  // Elementwise: shape and layout of the first operand.
  ValueId like(const std::string& op, const std::vector<ValueId>& in, const std::string& name, const std::vector<Attribute>& attributes = {}) {
    return b_.apply(op, in, attributes, {name, b_.shape(in[0]), b_.layout(in[0])});
  }
  ValueId swapped(ValueId x, int a, int b, const std::string& name) {
    Shape shape = b_.shape(x);
    Layout layout = b_.layout(x);
    std::swap(shape[static_cast<std::size_t>(a)], shape[static_cast<std::size_t>(b)]);
    for (int* dim : {&layout.batch, &layout.tp})
      if (*dim == a || *dim == b) *dim = *dim == a ? b : a;
    return b_.apply("transpose", {x}, {attribute("dim0", a), attribute("dim1", b)}, {name, shape, layout});
  }
  ValueId reshaped(const std::string& op, ValueId x, const Shape& shape, int tp, const std::string& name) {
    return b_.apply(op, {x}, {attributeShape("size")}, {name, shape, {.batch = 0, .tp = tp}});
  }
  ValueId rmsNorm(ValueId x, const std::string& name) {
    const ValueId w = b_.parameter(name + ".weight", {o_.dim}, {}, o_.sequenceParallel);
    return like("rms_norm", {x, w}, name, {attributeNumber("eps", "1e-05")});
  }
  ValueId attention(ValueId x, ValueId freqs, ValueId mask, const std::string& name);

  Builder& b_;
  const Options& o_;
};

ValueId Architecture::mlp() {
  go("input");
  ValueId x = b_.input("x", {o_.batch, o_.dim}, "", {.batch = 0});
  for (std::int64_t i = 0; i < o_.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    const int chunk = chunkOf(i);
    if (chunk != b_.chunk()) {
      go(layer);
      x = b_.toChunk(x, chunk);
      b_.setChunk(chunk);
    }
    b_.beginLayer();
    go(layer);
    const ValueId up = columns(b_.enterTp(x), layer + ".up", o_.hidden);
    const ValueId activated = like("silu", {up}, layer + ".silu");
    x = rows(activated, layer + ".down", o_.dim);
    b_.markBoundary(x);
    b_.endLayer();
  }
  go("loss");
  const ValueId target = b_.input("target", {o_.batch, o_.dim}, "", {.batch = 0});
  const ValueId difference = like("sub", {x, target}, "difference");
  const ValueId squares = like("square", {difference}, "squares");
  return b_.meanLoss("mean", {squares}, {}, "loss");
}

ValueId Architecture::attention(ValueId x, ValueId freqs, ValueId mask, const std::string& name) {
  const std::int64_t head = o_.dim / o_.heads, group = o_.heads / o_.kvHeads;
  const ValueId entered = b_.enterTp(x);
  ValueId q = columns(entered, name + ".wq", o_.heads * head);
  ValueId k = columns(entered, name + ".wk", o_.kvHeads * head);
  ValueId v = columns(entered, name + ".wv", o_.kvHeads * head);
  q = reshaped("view", q, {o_.batch, o_.sequence, o_.heads, head}, 2, name + ".q");
  k = reshaped("view", k, {o_.batch, o_.sequence, o_.kvHeads, head}, 2, name + ".k");
  v = reshaped("view", v, {o_.batch, o_.sequence, o_.kvHeads, head}, 2, name + ".v");
  const std::vector<ValueId> rotated = b_.apply(
      "apply_rotary_emb", {q, k, freqs}, {},
      std::vector<Result>{{name + ".q.rotated", b_.shape(q), b_.layout(q)}, {name + ".k.rotated", b_.shape(k), b_.layout(k)}});
  q = swapped(rotated[0], 1, 2, name + ".q.heads");
  // Each key-value head serves `group` query heads.
  const auto spread = [&](ValueId kv, const std::string& what) {
    kv = swapped(kv, 1, 2, what + ".heads");
    if (group == 1) return kv;
    kv = b_.apply("unsqueeze", {kv}, {attribute("dim", 2)}, {what + ".single", {o_.batch, o_.kvHeads, 1, o_.sequence, head}, b_.layout(kv)});
    kv = reshaped("expand", kv, {o_.batch, o_.kvHeads, group, o_.sequence, head}, 1, what + ".repeated");
    return reshaped("reshape", kv, {o_.batch, o_.heads, o_.sequence, head}, 1, what + ".spread");
  };
  k = swapped(spread(rotated[1], name + ".k"), 2, 3, name + ".k.transposed");
  v = spread(v, name + ".v");
  ValueId scores = b_.apply("matmul", {q, k}, {}, {name + ".products", {o_.batch, o_.heads, o_.sequence, o_.sequence}, b_.layout(q)});
  scores = like("mul", {scores}, name + ".scores", {attributeNumber("scalar", decimal(1 / std::sqrt(static_cast<double>(head))))});
  scores = like("apply_mask", {scores, mask}, name + ".masked");
  const ValueId weights = like("softmax", {scores}, name + ".weights", {attribute("dim", -1)});
  ValueId y = b_.apply("matmul", {weights, v}, {}, {name + ".mixed", b_.shape(q), b_.layout(q)});
  y = swapped(y, 1, 2, name + ".mixed.tokens");
  y = reshaped("reshape", y, {o_.batch, o_.sequence, o_.heads * head}, 2, name + ".joined");
  return rows(y, name + ".wo", o_.dim);
}

ValueId Architecture::llama() {
  const Shape ids{o_.batch, o_.sequence};
  ValueId tokens = -1, freqs = -1, mask = -1;
  // What every stage has of its own.
  const auto enterChunk = [&](int chunk) {
    b_.setChunk(chunk);
    tokens = b_.input("tokens", ids, "int64", {.batch = 0});
    freqs = b_.input("freqs", {o_.sequence, o_.dim / o_.heads / 2}, "complex64", {});
    mask = b_.applyFixed("create_mask", {tokens}, {}, {"mask", {1, 1, o_.sequence, o_.sequence}, {}});
  };
  go("tok_embeddings");
  enterChunk(0);
  const Shape stream{o_.batch, o_.sequence, o_.dim};
  ValueId x = -1;
  if (o_.vocabularyParallel) {
    const std::int64_t window = o_.vocabulary / o_.tp;
    const ValueId table = b_.parameter("tok_embeddings.weight", {o_.vocabulary, o_.dim}, {.tp = 0});
    x = b_.reduceOverTp(b_.apply("embedding", {tokens, table}, {attributePerTp("start", 0, window), attributePerTp("stop", window, window)},
                                 {"tok_embeddings", stream, {.batch = 0, .sumTp = true}}));
  } else {
    const ValueId table = b_.parameter("tok_embeddings.weight", {o_.vocabulary, o_.dim}, {});
    x = b_.apply("embedding", {tokens, table}, {}, {"tok_embeddings", stream, {.batch = 0}});
  }
  b_.markBoundary(x);
  for (std::int64_t i = 0; i < o_.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    const int chunk = chunkOf(i);
    if (chunk != b_.chunk()) {
      go(layer);
      x = b_.toChunk(x, chunk);
      enterChunk(chunk);
    }
    b_.beginLayer();
    go(layer + ".attention_norm");
    const ValueId normed = rmsNorm(x, layer + ".attention_norm");
    go(layer + ".attention");
    const ValueId attended = attention(normed, freqs, mask, layer + ".attention");
    x = like("add", {x, attended}, layer + ".attended");
    go(layer + ".ffn_norm");
    const ValueId entered = b_.enterTp(rmsNorm(x, layer + ".ffn_norm"));
    go(layer + ".feed_forward");
    const std::string ffn = layer + ".feed_forward";
    const ValueId gate = like("silu", {columns(entered, ffn + ".w1", o_.hidden)}, ffn + ".gate");
    const ValueId product = like("mul", {gate, columns(entered, ffn + ".w3", o_.hidden)}, ffn + ".product");
    x = like("add", {x, rows(product, ffn + ".w2", o_.dim)}, layer + ".out");
    b_.markBoundary(x);
    b_.endLayer();
  }
  go("norm");
  const ValueId normed = rmsNorm(x, "norm");
  go("output");
  ValueId logits = -1;
  if (o_.vocabularyParallel) {
    logits = columns(b_.enterTp(normed), "output", o_.vocabulary);
  } else {
    const ValueId head = b_.parameter("output.weight", {o_.vocabulary, o_.dim}, {});
    logits = b_.apply("linear", {normed, head}, {}, {"output", {o_.batch, o_.sequence, o_.vocabulary}, {.batch = 0}});
  }
  go("loss");
  const ValueId labels = b_.input("labels", ids, "int64", {.batch = 0});
  return b_.meanLoss("cross_entropy", {logits, labels}, {}, "loss");
}

}  // namespace

ValueId buildForward(Builder& builder, const Options& options) {
  Architecture architecture(builder, options);
  return options.architecture == "mlp" ? architecture.mlp() : architecture.llama();
}

}  // namespace shardproof::generate
