// SPDX-License-Identifier: Apache-2.0
// A stack of two-layer perceptrons with a mean squared error: the smallest thing that has
// everything of a training step.
#include "generate/architecture.h"
#include "generate/blocks.h"

namespace shardproof::generate {
namespace {

class Mlp : Blocks {
 public:
  using Blocks::Blocks;

  void forward() {
    go("input");
    ValueId x = b_.input("x", {o_.batch, o_.dim}, "", {.batch = 0});
    x = layers(
        x, [&](int chunk) { b_.setChunk(chunk); },
        [&](ValueId in, const std::string& name) {
          const ValueId up = columns(b_.enterTp(in), name + ".up", o_.hidden, name + ".up");
          return rows(like("silu", {up}, name + ".silu"), name + ".down", o_.dim);
        });
    go("loss");
    const ValueId target = b_.input("target", {o_.batch, o_.dim}, "", {.batch = 0});
    const ValueId difference = like("sub", {x, target}, "difference");
    b_.meanLoss("mean", {like("square", {difference}, "squares")}, {}, "loss");
  }
};

}  // namespace

void buildMlp(Builder& builder, const Options& options) { Mlp(builder, options).forward(); }

}  // namespace shardproof::generate
