// SPDX-License-Identifier: Apache-2.0
// Opaque functions: what the proof knows of them is only that equal arguments give equal results
// (and their derivative, where one exists). The doubles algebra evaluates the true function.
#pragma once

#include <cstdint>
#include <span>

namespace shardproof::ops {

enum class Function : std::uint8_t {
  // one argument
  kSigmoid,
  kTanh,
  kLog,
  kNormalCdf,
  kNormalPdf,
  kStep,  // kStep(x) = 1 for x > 0, else 0
  kSine,
  kCosine,
  kErf,
  kFloor,
  kCeil,
  kRound,  // to the nearest integer, of two the even one
  kTruncate,
  // no argument: irrational constants
  kSqrtTwoOverPi,
  // any number of arguments, order irrelevant
  kMaximum,
  kMinimum,
  // params {slot, topk, groups, topkGroups, sumOfTwoBest}; arguments: the row of choice scores, in
  // order. Result: the expert's index (integer). Of `topk` with all slots of the row and one group.
  kGateChoice,
  // params: two positions of one reduced piece of a sequence (PositionOrder::params in
  // ops/positions.h). 0 where the first is not before the second, else
  // minus infinity: the entry of a causal mask.
  kMaskEntry,
  // params {seed, numerator of p, denominator of p, position in the operand...}: the keep mask of
  // dropout, 0 or 1
  kDropoutMask,
};

// Of kMaskEntry, for each factor of the dimension: class and offset of the first position, class
// and offset of the second, and how their pieces lie (-1, 0, 1).
constexpr std::size_t kPositionParams = 5;

// Of kMaskEntry: whether it compares a position with itself, one that stands for several, as the
// entry of any other is known. That counts as a finite number (docs/soundness.md, "Masks").
bool comparesWithItself(std::span<const std::int64_t> params);

const char* name(Function f);
// True when the order of the arguments does not matter.
bool isSymmetric(Function f);
// The true value, but for kMaskEntry: inside a reduced piece the causal mask has no single value,
// so this gives the entries of another mask (whole pieces are open or closed). What is computed
// with it must be confirmed with the whole dimension.
double evaluate(Function f, std::span<const std::int64_t> params,
                std::span<const double> arguments);

}  // namespace shardproof::ops
