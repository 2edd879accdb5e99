// SPDX-License-Identifier: Apache-2.0
// What architectures are made of: projections cut over tp, attention, embedding and head, and the
// walk over the layers of a pipeline.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/builder.h"

namespace shardproof::generate {

// Of a loss: the names of its tensors, and how often it counts.
struct Targets {
  std::string logits = "output", labels = "labels", loss = "loss", weight = "1";
};

class Blocks {
 public:
  Blocks(Builder& builder, const Options& options) : b_(builder), o_(options) {}

 protected:
  void go(const std::string& location) { b_.setLocation(location); }

  // All layers, each on its stage. `enterChunk` makes what a stage has of its own, `layer` one
  // layer.
  ValueId layers(ValueId x, const std::function<void(int)>& enterChunk,
                 const std::function<ValueId(ValueId, const std::string&)>& layer);

  // One layer: what --recompute recomputes, and where --cut-points layers cuts.
  ValueId inLayer(const std::string& name, const std::function<ValueId()>& layer);

  // x w^T (+ bias) with the result's columns cut over tp; x has entered the cut region. `copies`:
  // neighbouring ranks share columns.
  ValueId columns(ValueId x, const std::string& weight, std::int64_t to, const std::string& name,
                  bool bias = false, int copies = 1);
  // x w^T with x's columns cut over tp, summed up over tp, then the bias.
  ValueId rows(ValueId x, const std::string& name, std::int64_t to, bool bias = false);
  // The same before it is summed up.
  ValueId partialRows(ValueId x, const std::string& name, std::int64_t to);
  // silu(x w1^T) (x w3^T), cut over tp along `hidden`: SwiGLU before its projection back.
  ValueId gatedColumns(ValueId x, const std::string& name, std::int64_t hidden);
  // Over the last dimension, of tokens that are replicated over tp or cut along the sequence.
  // `ofHeads`: of heads that are cut over tp.
  ValueId rmsNorm(ValueId x, const std::string& name, const std::string& eps, bool ofHeads = false);
  // Elementwise: shape and layout of the first operand.
  ValueId like(const std::string& op, const std::vector<ValueId>& in, const std::string& name,
               const std::vector<Attribute>& attributes = {});
  ValueId swapped(ValueId x, int a, int b, const std::string& name);
  // view, reshape, expand: the result is cut over tp along `tp`, by as many copies as x.
  ValueId reshaped(const std::string& op, ValueId x, const Shape& shape, int tp,
                   const std::string& name);

  // Keys or values of all positions, unless they go round.
  ValueId gathered(ValueId x) { return o_.cpRing ? x : b_.enterCp(x); }
  // softmax(q k^T / sqrt(head) + masks) v for heads in dimension 1; the result has the heads side
  // by side: [batch, sequence, heads * width of v]. `sinks`: each head has a learned logit beside
  // those of the keys, which takes a share of the softmax and has no value.
  ValueId attend(ValueId q, ValueId k, ValueId v, const std::vector<ValueId>& masks,
                 const std::string& name, bool sinks = false);
  ValueId dropout(ValueId x, const std::string& name);
  ValueId causalMask(ValueId tokens);
  ValueId ids(const std::string& name) {
    return b_.input(name, {o_.batch, o_.sequence}, "int64", {.batch = 0, .cp = 1});
  }
  ValueId tokens() { return ids("tokens"); }
  // Rows of the table; partial over tp if the vocabulary is cut.
  ValueId embedding(ValueId tokens, const std::string& table, const std::string& name);
  // From the residual stream to the mean cross entropy.
  void loss(ValueId x, const std::string& table, const Targets& targets = {});

  Builder& b_;
  const Options& o_;

 private:
  ValueId positions(std::int64_t count);
  ValueId withSink(ValueId scores, const std::string& name);
  int chunkOf(std::int64_t layer) const;
  int dropouts_ = 0;
};

}  // namespace shardproof::generate
