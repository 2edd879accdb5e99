// SPDX-License-Identifier: Apache-2.0
// Generated architectures (src/tools/generate): whole training steps of small sizes, with every
// option, some axes large. What goes wrong in them is put there by the edits.
#include "adversary/case.h"
#include "generate/generate.h"

namespace shardproof::adversary {
namespace {

generate::Options randomArchitecture(Random& random) {
  generate::Options o;
  o.architecture = random.pick({"mlp", "mlp", "gpt", "llama3"});
  const bool transformer = o.architecture != "mlp";
  o.layers = random.between(1, 2);
  o.dp = random.pick({1, 2, 2, 4});
  o.tp = random.pick({1, 1, 2});
  if (!transformer && random.chance(30)) o.dp = random.pick({8, 16, 32});
  if (random.chance(30)) o.pp = 2;
  o.microbatches = random.pick({1, 1, 2, 4});
  o.layers = std::max(o.layers, o.pp);
  o.dim = random.pick({4, 8});
  o.hidden = random.pick({4, 8, 16});
  if (transformer) {
    o.heads = random.pick({2, 2, 4});
    if (o.architecture == "llama3") {
      o.dim = 8;
      o.kvHeads = random.pick<std::int64_t>({1, 2, o.heads});
    }
    o.sequence = random.pick({2, 4, 4});
    o.vocabulary = random.pick({4, 8});
    o.sequenceParallel = o.tp > 1 && random.chance(40);
    o.vocabularyParallel = o.tp > 1 && random.chance(40);
    o.dropout = o.architecture == "gpt" ? random.pick({"0", "0.1"}) : "0";
    o.recompute = random.chance(20);
  }
  if (o.dp > 1 && random.chance(40)) o.zero = static_cast<int>(random.pick({1, 2, 3}));
  o.optimizer = random.pick({"sgd", "adamw"});
  o.clip = random.pick({"0", "0", "1.0"});
  o.cutPoints = random.pick({"all", "all", "all", "layers", "none"});
  if (o.pp > 1 && random.chance(40)) o.schedule = "1f1b";
  return o;
}

}  // namespace

Case architectures(Random& random) {
  for (;;) {
    try {
      const generate::Files files =
          generate::generate(generate::complete(randomArchitecture(random)), "m.model.json");
      return {Json::parse(files.model), Json::parse(files.plan), {}};
    } catch (const generate::OptionError&) {  // options that do not go together: others
    }
  }
}

}  // namespace shardproof::adversary
