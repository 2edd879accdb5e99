// SPDX-License-Identifier: Apache-2.0
// What a problem says about the sizes of its dimensions: of every operator, communication and
// lineage entry, collected on PlanLines.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shardproof/graph.h"
#include "shrink/dimension_shares.h"
#include "shrink/kept_ranks.h"
#include "shrink/plan_lines.h"

namespace shardproof {

// The dimensions of one graph's tensors. A program's tensors have the same shapes on all its ranks.
struct GraphDims {
  std::vector<std::vector<PlanLines::Dim>> ofTensor;
  std::vector<PlanLines::Dim> values;  // an integer tensor's range of values, else -1
  std::vector<char> fits;  // per node: shapes are those that the operator makes. A plan with others
                           // is wrong, and stays so
};

// Experts that a gate chooses among.
struct Gate {
  PlanLines::Dim experts;
  std::int64_t groups, bestGroups, topk;
  friend auto operator<=>(const Gate&, const Gate&) = default;
};

// How a box moves along one dimension: at the kept coordinates of the axes that move it.
struct Moves {
  PlanLines::Dim dim;
  std::int64_t lo;
  std::vector<std::pair<std::int32_t, std::int64_t>>
      steps;  // (axis, positions per coordinate), not 0
  friend auto operator<=>(const Moves&, const Moves&) = default;
};

struct PlanRelations {
  PlanLines lines;
  GraphDims model;
  std::vector<GraphDims> programs;  // empty for programs that no kept rank runs
  std::vector<Gate> gates;
  std::vector<Moves> moves;     // each once
  std::vector<Tiling> tilings;  // one for each kind of share, wholes before what is shared of them
  // For (entry, shard, dimension) of a box that steps evenly: by which dimension's size over each
  // axis.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>,
           std::vector<std::pair<std::int32_t, PlanLines::Dim>>>
      evenBoxes;
};

// Collected and closed. Throws Unsupported where the kept ranks do not make a plan of their own.
PlanRelations relatePlan(const Problem& problem, const KeptRanks& kept);

// An operator's attribute that counts or names positions, which must change with them.
enum class SizedAttribute : std::uint8_t {
  kNone,
  kResultShape,
  kSlice,
  kSelect,
  kPad,
  kWindow,
  kExperts
};
// Of a forward operator or its gradient.
SizedAttribute sizedAttribute(const std::string& op);
// Where a node's forward operands begin: after the gradients of a backward operator's results.
std::size_t firstForwardOperand(const std::string& op);

}  // namespace shardproof
