// SPDX-License-Identifier: Apache-2.0
// What a user asks of the generator: an architecture with its sizes, the degrees of parallelism,
// and the training step.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardproof::generate {

// Options that contradict each other or cannot be met; the message says which, and what would do.
class OptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string architecture;  // one of architectures()
  std::string size;          // preset

  // Sizes; 0: the preset's.
  std::int64_t layers = 0;
  std::int64_t dim = 0;     // width of the residual stream
  std::int64_t hidden = 0;  // width inside the feed-forward block
  std::int64_t heads = 0, kvHeads = 0;
  std::int64_t headDim = 0;  // width of a head; 0: the preset's, with --dim or --heads dim / heads
  std::int64_t sequence = 0, vocabulary = 0;
  // Of mixtures of experts (-1: the preset's). `hidden` is that of the leading dense layers.
  std::int64_t denseLayers = -1;
  std::int64_t experts = -1, activeExperts = -1, sharedExperts = -1, expertHidden = -1;
  std::int64_t expertGroups = -1, activeGroups = -1;
  std::int64_t queryRank = -1, kvRank = -1;  // of the latents; queryRank 0: none
  std::int64_t noPositionDim = -1, rotaryDim = -1, valueDim = -1;  // of a head
  bool sigmoidScores = false;      // and a bias of the choice; the preset's
  std::string routingScale = "1";  // the preset's
  std::int64_t mtp = 0;            // modules that predict a further token
  std::string balanceLoss = "0";   // its weight; "0": none

  std::int64_t padVocabulary =
      1;  // the vocabulary is padded to a multiple of this, times tp where it is cut over tp
  std::int64_t batch = 0;  // sequences (mlp: rows) in one step, over all ranks and microbatches; 0:
                           // one for each microbatch of each dp rank

  std::int64_t dp = 1, tp = 1, pp = 1, microbatches = 1;
  std::int64_t cp = 1;      // parts of each sequence
  bool cpBalanced = false;  // two chunks for each rank, an early and a late one
  bool cpRing = false;      // keys and values go round; otherwise they are gathered
  // Ranks that hold different experts, and the ranks that share one expert's hidden width: tp or 1.
  // 0: 1 if ep is a multiple of tp, else tp. With 1 the tp ranks are the first that hold different
  // experts.
  std::int64_t ep = 1, expertTp = 0;
  int zero = 0;
  bool sequenceParallel = false, vocabularyParallel = false, recompute = false;
  std::string schedule = "gpipe";  // gpipe, 1f1b, interleaved
  std::int64_t virtualStages = 1;

  std::string optimizer;  // adamw, sgd; empty: the architecture's
  std::string learningRate =
      "0.0001";  // numbers that reach the files stay text: they are exact decimals there
  std::string weightDecay = "0.1";
  std::string dropout;  // probability; empty: the architecture's, "0": no dropout
  std::string
      clip;  // maximum of the global gradient norm; empty: the architecture's, "0": no clipping
  std::string cutPoints = "all";  // all, layers, none

  // What sets an architecture apart from the others.
  bool isDeepSeek() const { return architecture == "deepseek-v3"; }
  bool headNorms() const { return architecture == "qwen3-moe"; }
  bool attentionBias() const { return architecture == "gpt-oss"; }
  bool window() const { return architecture == "gpt-oss"; }
  bool sinks() const { return architecture == "gpt-oss"; }
  bool routerBias() const { return architecture == "gpt-oss"; }
  bool clampedExperts() const { return architecture == "gpt-oss"; }
  // The weights of the chosen experts are divided by their sum.
  bool dividedWeights() const { return sigmoidScores || !isDeepSeek(); }
  // Losses besides the cross entropy.
  bool severalLosses() const {
    return mtp > 0 || (balanceLoss != "0" && experts > 0 && denseLayers < layers);
  }

  std::int64_t chunks() const { return pp * virtualStages; }
  // How many of dp hold different experts.
  std::int64_t epRanks() const { return ep * expertTp / tp; }
  std::int64_t splits() const { return dp * microbatches; }  // pieces the batch is cut into
};

std::vector<std::string> architectures();
// The sizes that `--size` knows for an architecture, the default first.
std::vector<std::string> presetsOf(const std::string& architecture);

// Fills in the preset and checks that everything fits together. Throws OptionError. Its result is
// not asked for again: sizes that a preset filled in may be ones that a user cannot choose.
Options complete(Options options);

}  // namespace shardproof::generate
