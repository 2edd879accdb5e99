// SPDX-License-Identifier: Apache-2.0
// Executes an unreduced stage at random positions: some elements that the claims speak of, on both
// sides, at the sizes of the file, with free elements drawn by their place. Evidence and no proof:
// what it says is about the positions and values that were drawn. But it shares next to nothing
// with proofs (unreduced/evaluator.h), so that a stage that a mistake in reduction, operators or
// terms would let pass is unlikely to pass here as well.
//
// A difference counts when it is one in doubles and has another cause than rounding and than the
// very values drawn: it stays as it is under noise that is thousands of times larger than rounding,
// and stays when all free reals move a little. Values are drawn off any grid, so that a tie or a
// kink is not hit by chance.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stages/stage.h"

namespace shardproof::unreduced {

struct SampleOptions {
  std::uint64_t seed = 1;
  int positions = 16;  // that are looked at
  std::uint64_t mostElements =
      8'000'000;       // that one evaluation of all of them may ask for, counted with repetition
  double seconds = 1;  // of processor time, for all evaluations
};

struct SampleOutcome {
  int asked = 0;   // positions
  int agreed = 0;  // ... at which both sides have the same number in doubles, and a finite one
  int agreedInField = 0;  // ... and the same number modulo 2^61 - 1
  struct Difference {
    std::int32_t claim = -1;
    std::string element;               // "y[4, 0]", of the model
    double logical = 0, parallel = 0;  // nan: undefined
  };
  std::optional<Difference> difference;  // one that counts
  std::string reason;                    // why positions were left out, for the first of them
};

// Never throws Unsupported: that is a reason. The stage must have been cut without collapsed axes
// (CutOptions::collapse), or is left out.
SampleOutcome sampleStage(const Stage& stage, const SampleOptions& options);

}  // namespace shardproof::unreduced
