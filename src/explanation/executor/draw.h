// SPDX-License-Identifier: Apache-2.0
// Values that nobody gives: inputs and parameters, local inputs that no lineage speaks of, the free
// parts of sums, dropout masks. Every element is a function of the seed, the tensor and its
// position, so that each arithmetic and each repetition sees the same. Off any grid: ties and
// thresholds are not hit.
#pragma once

#include <cstdint>
#include <string_view>

#include "executor/uses.h"
#include "executor/value.h"

namespace shardproof::executor {

struct Draw {
  std::uint64_t seed = 1;
  int style = 0;  // 0: both signs; 1: all positive; from 2 on: one sign for each tensor. For models
                  // that have no value on inputs of both signs. Integers of two values, which may
                  // be masks, are from 1 on what masks of padding are: see kPadded
  std::uint64_t moved = 0;  // not 0: all reals moved by up to a thousandth of themselves, in a way
                            // that depends on this
};

struct Drawn {  // what is drawn
  const Shape& shape;
  ElementKind element;
  const Use& use;
  bool parameter;     // scaled by its last dimension, so that products of matrices keep the size of
                      // their operands
  std::uint64_t key;  // of the tensor
};

std::uint64_t keyOf(std::string_view name);

template <class T>
Value<T> drawn(Memory& memory, const Drawn& what, const Draw& draw);

// By how much an element of a tensor is moved: a factor.
double moveOf(std::uint64_t key, std::int64_t element, const Draw& draw);

// Zeros and ones, as often one as the other: for the positions [low, low + extent) of a tensor of
// `shape`.
template <class T>
Value<T> drawnMask(Memory& memory, std::uint64_t key, const Shape& shape, const Shape& low,
                   const Shape& extent, const Draw& draw);

}  // namespace shardproof::executor
