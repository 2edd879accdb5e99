// SPDX-License-Identifier: Apache-2.0
// Attributes of a plan's nodes that move with the coordinates of the rank: a slice that begins at
// its rank's rows, a part of the vocabulary. One program then stands for ranks that differ in
// nothing else. And programs and lineage of stretches of an axis (Stretch).
//
// What cuts stages reads both as they are (PlanIndex). What executes plans, makes them smaller or
// looks for causes is given a plan without either: withFixedAttributes().
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ir/coordinates.h"
#include "shardproof/graph.h"

namespace shardproof::ir {

// Of all nodes of a plan together.
constexpr std::size_t kMostAttributeSets = std::size_t{1} << 20;

// What the steps add at `coordinate` is added to `attributes`. Throws std::invalid_argument where a
// step is of no attribute there, of one of another kind, or leads beyond 64 bits.
void addSteps(Attributes& attributes, const Attributes& step, std::int64_t coordinate);

// The steps of a node of `program`, whose attributes become those at the first coordinates that the
// program has; so far they are those at coordinate 0. `step`: each axis once, in any order. Throws
// std::invalid_argument as addSteps().
AttributeSteps takeSteps(const Plan& plan, const Program& program, Node& node,
                         std::vector<std::pair<std::int32_t, Attributes>> step,
                         AttributeTable& attributes);

// The attributes of a node's instance; coordinate(axis) is that of its rank.
template <class CoordinateOf>
AttributesId attributesAt(const Plan& plan, const Program& program, const Node& node,
                          CoordinateOf coordinate) {
  if (node.steps < 0) return node.attributes;
  const AttributeSteps& steps = program.steps.at(static_cast<std::size_t>(node.steps));
  std::size_t place = 0;
  for (const auto& [axis, added] : steps.step) {
    const Range range = rangeOf(plan, program.within, axis);
    place = place * static_cast<std::size_t>(range.size()) +
            static_cast<std::size_t>(coordinate(axis) - range.low);
  }
  return steps.sets.at(place);
}

// The same problem with a program for each choice of the coordinates that attributes move with or
// that a stretch has, and lineage that names single coordinates in the place of stretches; null
// where there are none of either. Entries of the lineage keep their places, and Program::inFile
// says which program of the file one stands for. Throws Unsupported where these would be more nodes
// than `most`, or too many programs.
constexpr std::size_t kMostFixedNodes = 8'000'000, kMostFixedPrograms = std::size_t{1} << 18;
std::unique_ptr<Problem> withFixedAttributes(const Problem& problem,
                                             std::size_t most = kMostFixedNodes);

// A program for each choice of coordinates of those of `axes` (in any order) that the program has
// and does not fix, and of those that its attributes move with; the program itself where it fixes
// all of `axes`.
std::vector<Program> splitAlong(const Plan& plan, const Program& program,
                                std::vector<std::int32_t> axes);

// `problem` where no attributes move and nothing names a stretch, else the same without; for as
// long as this lives.
class FixedAttributes {
 public:
  // Throws Unsupported as withFixedAttributes().
  explicit FixedAttributes(const Problem& problem, std::size_t most = kMostFixedNodes)
      : made_(withFixedAttributes(problem, most)), problem_(made_ ? made_.get() : &problem) {}
  const Problem& problem() const { return *problem_; }

 private:
  std::unique_ptr<Problem> made_;
  const Problem* problem_;
};

}  // namespace shardproof::ir
