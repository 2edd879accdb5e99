// SPDX-License-Identifier: Apache-2.0
// The dimensions of all tensors of a stage and what relates them. First half of the shape
// reduction: which dimensions run together, and into which row-major factors each must be taken
// apart so that every `view` regroups whole factors.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/relations.h"
#include "stages/stage.h"

namespace shardproof {

// A stretch of a line that runs together with a stretch of another: position loA + i with loB + i,
// for 0 <= i < length.
struct Segment {
  std::int32_t lineA;
  std::int64_t loA;
  std::int32_t lineB;
  std::int64_t loB;
  std::int64_t length;
  bool fromLineage;
  friend auto operator<=>(const Segment&, const Segment&) = default;
};

// One factor of one or more dimensions: a one-dimensional range of positions.
struct Line {
  std::int64_t size = 1;
  bool summed = false, keep = false, absolute = false;
};

// How a lineage box lies on a line (only lines that some collapsed axis moves it along, or that it
// shares with such).
struct BoxOnLine {
  std::int32_t line;
  std::int64_t lo, length;
  struct Move {
    std::int32_t collapsed;
    std::int32_t coordinate;
    std::int64_t unit;  // positions per coordinate
  };
  std::vector<Move> moves;
};

struct DimensionGraph {
  // For each stage tensor and dimension, its lines, outermost first (a flat dimension has one).
  std::vector<std::vector<std::int32_t>> dimOfTensor;  // -> dimension group
  std::vector<std::int32_t>
      valuesOfTensor;  // group of an integer tensor's range of values, else -1
  std::vector<std::vector<std::int32_t>> linesOfGroup;  // outermost first
  std::vector<std::int64_t> groupSize;
  std::vector<Line> lines;
  std::vector<Segment> segments;  // between different stretches; whole-line matches are merged away
  struct Cut {
    std::int32_t line;
    std::int64_t position;
    bool fromLineage;
  };
  std::vector<Cut> cuts;         // single cuts
  std::vector<BoxOnLine> boxes;  // of all equations
  // The index variables of each node's iteration space, equal ones once. A variable is given by the
  // dimensions that run with it, each as its lines: where one dimension has a line twice, or two
  // lines whose pieces run together (a flattened square matrix added to its transpose), the
  // variable is two of positions.
  using Variable = std::vector<std::vector<std::int32_t>>;
  struct Iteration {
    bool logical;
    std::vector<Variable> variables;
    // How many positions one summand involves of what `touches` says of a line.
    template <class Touches>
    static int positions(const Variable& variable, Touches&& touches) {
      int most = 0;
      for (const auto& lines : variable) {
        int count = 0;
        for (const std::int32_t l : lines) count += touches(l) ? 1 : 0;
        most = count > most ? count : most;
      }
      return most;
    }
  };
  std::vector<Iteration> iterations;
};

constexpr std::int64_t kUnboundedValues = std::int64_t{1}
                                          << 62;  // "size" of an integer tensor's range of values

// Throws Unsupported.
// `knownInputs`: see ReductionOptions.
DimensionGraph buildDimensionGraph(const Stage& stage, bool knownInputs = false);

}  // namespace shardproof
