// SPDX-License-Identifier: Apache-2.0
// Shape reduction: from a stage at full size to a small image of it that is exact in both
// directions (docs/soundness.md, "Representatives with weights").
//
// Every dimension is cut at all bounds that occur on it; nothing tells the positions of a piece
// apart, so the reduced stage keeps a few of them and, where something is summed over the piece,
// one more that stands for all others with its weight. A counterexample of the reduced stage is one
// of the full stage (inputs that are equal on all positions of one representative). Conversely an
// identity of the reduced stage holds at full size because an element and one of its summands
// together involve no more positions of a piece than were kept apart.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ops/algebra.h"
#include "stages/stage.h"

namespace shardproof {

struct ReductionOptions {
  // For how many summands more than an element and one summand positions are kept apart in each
  // piece, for each as many as it may have index variables there (the polynomial form multiplies
  // summands together).
  int extraSummands = 0;
  // For evaluation in numbers only, never for a proof: a counterexample may repeat its inputs as
  // often as it likes, so each piece keeps one position and, where it has more, one that stands for
  // all others.
  bool numbersOnly = false;
  // With numbersOnly: the positions kept stand for as many others each. Were nearly all the same,
  // normalisations would leave next to nothing of a difference that passes many of them.
  bool evenShares = false;
  // With numbersOnly: positions kept apart where the absolute position matters and is not kept.
  int absoluteApart = 2;
  // Dimensions whose absolute position matters (causal masks) keep their full size: needed to
  // evaluate them in numbers.
  bool keepAbsolute = false;
  // For evaluation in numbers only: inputs that stand for certain numbers (KnownInput) have these,
  // so that their positions matter, and those that are the numbers of others repeat where these do.
  bool knownInputs = false;
  std::int64_t maxKeptDimension =
      1 << 16;  // a dimension that must be kept and is larger makes the stage undecided
  std::int64_t maxElements = 3'000'000;  // of one reduced tensor
};

struct ReducedStage {
  // For each stage tensor, its reduced dimensions; shared between tensors of equal dimensions.
  std::vector<std::vector<const ops::ReducedDim*>> dims;
  std::vector<std::unique_ptr<ops::ReducedDim>> storage;
  // For each integer stage tensor, index values that the reduced tables tell apart (a
  // counterexample draws indices from these).
  std::vector<std::vector<std::int64_t>> values;
  // The most index variables of one summand that range over a reduced piece (0: nothing was
  // reduced). Twice as many positions, and the options' extra ones, are kept apart.
  int mostVariables = 0;
  // How many combinations of index variables the largest operator runs through, roughly: what
  // evaluating it costs.
  double largestIteration = 0;
  // Of all lines: the size of each piece, and how many positions of it there are at least.
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  // For a proof only: which positions of each claim's logical tensor (row-major; of other tensors
  // it is empty) come first among those that permutations of positions within pieces turn into one
  // another: as its indices are read in order, the positions of each class that is reduced appear
  // as 0, 1, 2, ... As all of the stage commutes with these permutations, what holds at such a
  // position, for every input, holds at all positions that it stands for (docs/soundness.md,
  // "Representatives with weights").
  std::vector<std::vector<char>> firstOfOrbit;
  // Positions that something is summed over, or that an index names, were reduced, or an axis is
  // collapsed: a kept one stands for several in a sum. What holds of all numbers at so few
  // positions need not hold at full size (a count is never 10 where summands weigh 1, 1 and 98),
  // unless it is an identity of polynomials (docs/soundness.md, "Z3"). False: each element is
  // computed of the same elements as at full size.
  bool standsForSummands = false;
  bool reducesAbsolute = false;  // a dimension whose absolute position matters was reduced
  double wholeElements = 0;      // that all tensors would have together with such dimensions whole
};

// Throws Unsupported when no faithful reduction of a tractable size exists (the stage is undecided
// and says why), NeedsRefinement where collapsing an axis is no
// symmetry of it (axis_blocks.h).
ReducedStage reduceStage(const Stage& stage, const ReductionOptions& options);

}  // namespace shardproof
