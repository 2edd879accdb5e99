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
  std::int64_t sequence = 0, vocabulary = 0;
  std::int64_t padVocabulary =
      1;  // the vocabulary is padded to a multiple of this, times tp where it is cut over tp
  std::int64_t batch = 0;  // sequences (mlp: rows) in one step, over all ranks and microbatches; 0:
                           // one for each microbatch of each dp rank

  std::int64_t dp = 1, tp = 1, pp = 1, microbatches = 1;
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

  std::int64_t chunks() const { return pp * virtualStages; }
  std::int64_t splits() const { return dp * microbatches; }  // pieces the batch is cut into
};

std::vector<std::string> architectures();
// The sizes that `--size` knows for an architecture, the default first.
std::vector<std::string> presetsOf(const std::string& architecture);

// Fills in the preset and checks that everything fits together. Throws OptionError.
Options complete(Options options);

}  // namespace shardproof::generate
