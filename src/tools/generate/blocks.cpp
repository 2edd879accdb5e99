// SPDX-License-Identifier: Apache-2.0
#include "generate/blocks.h"

#include <utility>

namespace shardproof::generate {
// The first (layers mod chunks) chunks have one more.
int Blocks::chunkOf(std::int64_t layer) const {
  const std::int64_t each = o_.layers / o_.chunks(), more = o_.layers % o_.chunks();
  return static_cast<int>(layer < more * (each + 1) ? layer / (each + 1)
                                                    : more + (layer - more * (each + 1)) / each);
}

ValueId Blocks::inLayer(const std::string& name, const std::function<ValueId()>& layer) {
  b_.beginLayer();
  go(name);
  const ValueId x = layer();
  b_.markBoundary(x);
  b_.endLayer();
  return x;
}

ValueId Blocks::layers(ValueId x, const std::function<void(int)>& enterChunk,
                       const std::function<ValueId(ValueId, const std::string&)>& layer) {
  for (std::int64_t i = 0; i < o_.layers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    const int chunk = chunkOf(i);
    if (chunk != b_.chunk()) {
      go(name);
      x = b_.toChunk(x, chunk);
      enterChunk(chunk);
    }
    x = inLayer(name, [&] { return layer(x, name); });
  }
  return x;
}

ValueId Blocks::columns(ValueId x, const std::string& weight, std::int64_t to,
                        const std::string& name, bool bias, int copies) {
  Shape shape = b_.shape(x);
  const std::int64_t from = shape.back();
  shape.back() = to;
  const Layout cut{.tp = 0, .copies = copies};
  std::vector<ValueId> in{x, b_.parameter(weight + ".weight", {to, from}, cut)};
  if (bias) in.push_back(b_.parameter(weight + ".bias", {to}, cut));
  Layout layout = b_.layout(x);
  layout.tp = static_cast<int>(shape.size()) - 1;
  layout.copies = copies;
  return b_.apply("linear", in, {}, {name, shape, layout});
}

ValueId Blocks::partialRows(ValueId x, const std::string& name, std::int64_t to) {
  Shape shape = b_.shape(x);
  const std::int64_t from = shape.back();
  shape.back() = to;
  const ValueId w = b_.parameter(name + ".weight", {to, from}, {.tp = 1});
  Layout layout = b_.layout(x);
  layout.tp = -1;
  layout.sumTp = true;
  return b_.apply("linear", {x, w}, {}, {name, shape, layout});
}

ValueId Blocks::rows(ValueId x, const std::string& name, std::int64_t to, bool bias) {
  const ValueId y = b_.reduceOverTp(partialRows(x, name, to));
  if (!bias) return y;
  return like("add", {y, b_.parameter(name + ".bias", {to}, {}, o_.sequenceParallel)},
              name + ".biased");
}

ValueId Blocks::gatedColumns(ValueId x, const std::string& name, std::int64_t hidden) {
  const ValueId gate =
      like("silu", {columns(x, name + ".w1", hidden, name + ".w1")}, name + ".gate");
  return like("mul", {gate, columns(x, name + ".w3", hidden, name + ".w3")}, name + ".product");
}

ValueId Blocks::rmsNorm(ValueId x, const std::string& name, const std::string& eps, bool ofHeads) {
  const ValueId w =
      b_.parameter(name + ".weight", {b_.shape(x).back()}, {}, o_.sequenceParallel || ofHeads);
  return like("rms_norm", {x, w}, name, {attributeNumber("eps", eps)});
}

ValueId Blocks::like(const std::string& op, const std::vector<ValueId>& in, const std::string& name,
                     const std::vector<Attribute>& attributes) {
  return b_.apply(op, in, attributes, {name, b_.shape(in[0]), b_.layout(in[0])});
}

ValueId Blocks::swapped(ValueId x, int a, int b, const std::string& name) {
  Shape shape = b_.shape(x);
  Layout layout = b_.layout(x);
  std::swap(shape[static_cast<std::size_t>(a)], shape[static_cast<std::size_t>(b)]);
  for (int* dim : {&layout.batch, &layout.cp, &layout.tp})
    if (*dim == a || *dim == b) *dim = *dim == a ? b : a;
  return b_.apply("transpose", {x}, {attribute("dim0", a), attribute("dim1", b)},
                  {name, shape, layout});
}

ValueId Blocks::reshaped(const std::string& op, ValueId x, const Shape& shape, int tp,
                         const std::string& name) {
  return b_.apply(op, {x}, {attributeShape("size")},
                  {name, shape, {.batch = 0, .cp = 1, .tp = tp, .copies = b_.layout(x).copies}});
}

// [batch, heads, queries, keys + 1]: a further column with the head's own logit.
ValueId Blocks::withSink(ValueId scores, const std::string& name) {
  const Shape each = b_.shape(scores);
  const Layout rows = b_.layout(scores);
  const ValueId logits = b_.parameter(name, {each[1]}, {.tp = 0});
  const ValueId single = b_.apply("view", {logits}, {attributeShape("size")},
                                  {name + ".single", {1, each[1], 1, 1}, {.tp = 1}});
  const ValueId column = b_.apply("expand", {single}, {attributeShape("size")},
                                  {name + ".column", {each[0], each[1], each[2], 1}, rows});
  return b_.apply("cat", {scores, column}, {attribute("dim", 3)},
                  {name + ".joined", {each[0], each[1], each[2], each[3] + 1}, rows});
}

ValueId Blocks::attend(ValueId q, ValueId k, ValueId v, const std::vector<ValueId>& masks,
                       const std::string& name, bool sinks) {
  const Shape heads = b_.shape(q);
  const std::int64_t values = b_.shape(v)[3];
  if (o_.cpRing) {
    const ValueId y = b_.ringAttention(q, k, v, masks.at(0), name + ".mixed");
    return reshaped("reshape", swapped(y, 1, 2, name + ".mixed.tokens"),
                    {heads[0], heads[2], heads[1] * values}, 2, name + ".joined");
  }
  k = swapped(k, 2, 3, name + ".k.transposed");
  ValueId scores =
      b_.apply("matmul", {q, k}, {},
               {name + ".products", {heads[0], heads[1], heads[2], heads[2]}, b_.layout(q)});
  scores = like("mul", {scores}, name + ".scores",
                {attributeNumber("scalar", attentionScale(heads[3]))});
  for (std::size_t i = 0; i < masks.size(); ++i)
    scores = like("apply_mask", {scores, masks[i]},
                  name + ".masked" + (i == 0 ? "" : "." + std::to_string(i)));
  if (sinks) scores = withSink(scores, name + ".sinks");
  ValueId weights = like("softmax", {scores}, name + ".weights", {attribute("dim", -1)});
  if (sinks)
    weights = b_.apply(
        "slice", {weights},
        {attribute("dim", 3), attribute("start", 0), attribute("stop", heads[2])},
        {name + ".weights.of_keys", {heads[0], heads[1], heads[2], heads[2]}, b_.layout(q)});
  weights = dropout(weights, name + ".weights.dropout");
  ValueId y = b_.apply("matmul", {weights, v}, {},
                       {name + ".mixed", {heads[0], heads[1], heads[2], values}, b_.layout(q)});
  y = swapped(y, 1, 2, name + ".mixed.tokens");
  return reshaped("reshape", y, {heads[0], heads[2], heads[1] * values}, 2, name + ".joined");
}

ValueId Blocks::dropout(ValueId x, const std::string& name) {
  if (o_.dropout == "0") return x;
  return like("dropout", {x}, name,
              {attributeNumber("p", o_.dropout), attribute("seed", ++dropouts_)});
}

// A sequence of that many positions; only its length is used.
ValueId Blocks::positions(std::int64_t count) {
  return b_.constant("positions." + std::to_string(count), {1, count}, "int64", "0");
}

// Ranks that have a part of the sequence mask the rows of that part.
ValueId Blocks::causalMask(ValueId tokens) {
  if (o_.cpRing) return b_.ringMask(tokens);
  const ValueId over = o_.cp > 1 ? positions(o_.sequence) : tokens;
  return b_.ownSequence(
      b_.applyFixed("create_mask", {over}, {}, {"mask", {1, 1, o_.sequence, o_.sequence}, {}}), 2);
}

ValueId Blocks::embedding(ValueId tokens, const std::string& table, const std::string& name) {
  const Shape stream{o_.batch, o_.sequence, o_.dim};
  if (!o_.vocabularyParallel) {
    const ValueId w = b_.parameter(table, {o_.vocabulary, o_.dim}, {});
    return b_.apply("embedding", {tokens, w}, {}, {name, stream, {.batch = 0, .cp = 1}});
  }
  const std::int64_t window = o_.vocabulary / o_.tp;
  const ValueId w = b_.parameter(table, {o_.vocabulary, o_.dim}, {.tp = 0});
  return b_.apply("embedding", {tokens, w},
                  {attributePerTp("start", 0, window), attributePerTp("stop", window, window)},
                  {name, stream, {.batch = 0, .cp = 1, .sumTp = true}});
}

void Blocks::loss(ValueId x, const std::string& table, const Targets& targets) {
  go(targets.logits);
  const Shape shape{o_.batch, o_.sequence, o_.vocabulary};
  const Layout cut{.tp = o_.vocabularyParallel ? 0 : -1};
  const ValueId entered = o_.vocabularyParallel ? b_.enterTp(x) : b_.gatherSequence(x);
  const ValueId w = b_.parameter(table, {o_.vocabulary, o_.dim}, cut);
  const ValueId logits = b_.apply(
      "linear", {entered, w}, {},
      {targets.logits, shape, {.batch = 0, .cp = 1, .tp = o_.vocabularyParallel ? 2 : -1}});
  go(targets.loss);
  b_.meanLoss("cross_entropy", {logits, ids(targets.labels)}, {}, targets.loss, targets.weight);
}

}  // namespace shardproof::generate
