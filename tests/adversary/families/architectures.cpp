// SPDX-License-Identifier: Apache-2.0
// Generated architectures (src/tools/generate): whole training steps of small sizes, with every
// option, some axes large. What goes wrong in them is put there by the edits.
#include <stdexcept>
#include <string>

#include "adversary/case.h"
#include "generate/generate.h"

namespace shardproof::adversary {
namespace {

// Far more than are needed: most draws fit together.
constexpr int kDraws = 1000;

// Experts, their groups and the ranks that hold them.
void drawExperts(generate::Options& o, Random& random) {
  o.hidden = random.pick({4, 8});
  o.denseLayers = random.between(0, o.layers);
  o.experts = random.pick({2, 4});
  o.activeExperts = random.between(1, 2);
  o.sharedExperts = random.between(0, 1);
  o.expertHidden = random.pick({2, 4});
  if (!o.isDeepSeek()) {
    o.headDim = random.pick({2, 4});
    o.kvHeads = random.pick<std::int64_t>({1, o.heads});
    o.ep = o.tp * random.pick<std::int64_t>({1, 1, 2});
    return;
  }
  o.size = random.pick({"16B", "236B", "671B"});
  o.expertGroups = random.pick({1, 1, 2});
  o.activeGroups = random.between(1, o.expertGroups);
  o.queryRank = random.pick({0, 4});
  o.kvRank = o.noPositionDim = o.valueDim = 2;
  o.rotaryDim = 2;
  o.ep = random.pick({1, 2});
  if (o.tp > 1) o.expertTp = random.pick<std::int64_t>({1, o.tp});
  o.balanceLoss = random.pick({"0", "0.01"});
  o.mtp = random.chance(20) ? 1 : 0;
}

generate::Options randomArchitecture(Random& random) {
  generate::Options o;
  o.architecture = random.pick(
      {"mlp", "mlp", "gpt", "llama3", "llama3", "deepseek-v3", "mixtral", "qwen3-moe", "gpt-oss"});
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
    if (o.architecture != "gpt" && o.architecture != "llama3") drawExperts(o, random);
    if (o.architecture != "gpt" && random.chance(20)) {
      o.cp = 2;
      o.cpBalanced = random.chance(50);
      o.cpRing = !o.sinks() && random.chance(50);
    }
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
  std::string refused;
  for (int draw = 0; draw < kDraws; ++draw) {
    try {
      const generate::Files files = generate::generate(randomArchitecture(random), "m.model.json");
      return {Json::parse(files.model), Json::parse(files.plan), {}};
    } catch (const generate::OptionError& error) {  // options that do not go together: others
      refused = error.what();
    }
  }
  throw std::logic_error("no options of " + std::to_string(kDraws) +
                         " go together; the last: " + refused);
}

}  // namespace shardproof::adversary
