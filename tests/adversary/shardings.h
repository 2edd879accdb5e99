// SPDX-License-Identifier: Apache-2.0
// How one operator may be cut along one axis of ranks (or microbatches): which dimension of each
// operand is cut, and what each result then is. These are the rules that frameworks go by
// (Megatron-LM, GSPMD: arXiv 2105.04663), written from docs/operators.md: they make plans that are
// right. Nothing rests on them: whether a plan is right says the executor.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/cases.h"

namespace shardproof::adversary {

// In place of a dimension: whole on each coordinate; or to be added up, averaged, maximised,
// minimised over the coordinates.
constexpr int kUncut = -1, kSum = -2, kMean = -3, kMax = -4, kMin = -5;

struct Sharding {
  std::vector<int> in, out;
  // What coordinate c of n has in its attributes; empty: all have the same.
  std::function<void(Attributes&, std::int64_t c, std::int64_t n)> window;
};

// All that are known for a call, the first of which leaves everything whole. `results`: what it
// yields.
std::vector<Sharding> shardingsOf(const ops::testing::Call& call,
                                  const std::vector<ops::TensorInfo>& results);

// The result of such an operator may be cut in any way that its one operand is cut: windows that
// overlap or leave gaps included.
bool isElementwise(const std::string& op);
// Those of them that have a value for every operand, a gradient (or a copy's) and one result.
const std::vector<std::string>& unaryOperators();

// Attributes that repeat a shape, for the piece of a rank: `operands`, `results` are the shapes of
// the piece.
void adaptShapes(const std::string& op, Attributes& attributes, const std::vector<Shape>& operands,
                 const std::vector<Shape>& results);

}  // namespace shardproof::adversary
