// SPDX-License-Identifier: Apache-2.0
// Where the local tensors of all ranks are in a whole one.
//
// For tensors of modules the layout along some axes of the mesh is often not known: a local tensor
// that is no DTensor may be a part of the batch, a part of the features, a copy, or a summand.
// `layoutsFor` lists what the shapes allow; numbers decide among them (compare.cpp). Such a layout
// never makes a tensor differ: it is found by agreement, so its absence shows nothing by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/trace.h"

namespace shardproof::compare {

struct PlacedPiece {
  const Piece* piece = nullptr;
  std::vector<Part> parts;  // boxes of the whole tensor
  std::size_t summand = 0;  // pieces of one number are parts of one summand
};

// What ranks have along an axis of unknown layout, or the calls of a module.
enum class Along : std::uint8_t { kEqual, kCut, kSum, kMean };
struct Choice {
  std::size_t axis = 0;  // of the mesh; the number of its axes: the calls
  Along along = Along::kEqual;
  std::size_t dimension = 0;  // that is cut
};

struct Layout {
  std::vector<std::int64_t> shape;
  std::vector<PlacedPiece> pieces;
  std::size_t summands = 1;
  double scale = 1;  // of the sum
  std::vector<Choice> choices;

  std::size_t elements() const;
};

// The layout of `pieces` with a choice for each axis of unknown layout, and for the calls where
// there are several. Throws InputError where the pieces contradict each other.
Layout layoutOf(const Trace& trace, const std::vector<const Piece*>& pieces, std::size_t calls,
                const std::vector<Choice>& choices);

// All choices with which the pieces make a whole tensor of `shape`; a single empty one where
// nothing is unknown and the shape is that. `sums`: also as summands. At most `most`, copies first.
std::vector<std::vector<Choice>> choicesFor(const Trace& trace,
                                            const std::vector<const Piece*>& pieces,
                                            std::size_t calls,
                                            const std::vector<std::int64_t>& shape, bool sums,
                                            std::size_t most = 64);

// "cut over dp in dimension 0, sum over tp"; empty for no choices but copies.
std::string describe(const Trace& trace, const std::vector<Choice>& choices);

}  // namespace shardproof::compare
