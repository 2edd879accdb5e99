// SPDX-License-Identifier: Apache-2.0
// What all runs of one problem share: the programs, what lineage says, and what the inputs are.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "executor/claims.h"
#include "executor/interpret.h"
#include "executor/programs.h"
#include "executor/uses.h"

namespace shardproof::executor {

// A node as the file has it: without the mask that the reader may have given a dropout.
struct NodeView {
  std::span<const Operand> in;
  std::span<const TensorId> out;
  AttributesId attributes;
  bool draws = false;  // a dropout that draws its own mask
};

// Of one graph: the views of its nodes, and tensors that are not the file's.
struct GraphView {
  GraphView(const Problem& problem, const Graph& graph);
  std::vector<NodeView> nodes;
  std::vector<char> added;
};

// Where a local tensor lies in one that the model drops out.
struct Placement {
  TensorId tensor;  // -1: none; -2: lineage says two things
  Shape low;
};

class Setup {
 public:
  // Throws CannotRun for what keeps the plan from running, InputError for inputs that do not fit
  // the model and for input lineage that gives a local tensor two sources.
  Setup(const Problem& problem, const Options& options);

  const Problem& problem;
  const Programs programs;
  const Uses uses;
  const GraphView model;
  std::vector<GraphView> plans;  // by program
  std::vector<Claim> claims;     // all that are compared, then those that are given
  std::size_t compared = 0;      // how many of them are compared
  std::vector<EntryId> entries;  // that are compared, in the order of the plan
  const std::map<std::string, Array>* given = nullptr;

  // Claims (by index) in which a slot is a part, with multiplicity; only of those that are
  // compared.
  std::span<const std::int32_t> claimsOfSlot(std::int64_t slot) const {
    const auto s = static_cast<std::size_t>(slot);
    return {mentions_.data() + firstMention_[s], firstMention_[s + 1] - firstMention_[s]};
  }
  // The claim that gives a slot its values, of an input or of an approved difference; -1: none.
  std::int32_t sourceOf(std::int64_t slot) const { return source_[slot]; }
  // For slots of ranks whose programs drop something out.
  const Placement* placementOf(std::int64_t slot) const;
  std::string tensorName(std::int32_t logical) const {
    return problem.names.text(problem.model.graph.tensors[logical].name);
  }

 private:
  void checkGiven() const;
  void bindSources();
  void indexMentions();
  void findPlacements();

  std::vector<std::size_t> firstMention_;
  std::vector<std::int32_t> mentions_, source_;
  std::map<std::int64_t, Placement> placements_;
};

}  // namespace shardproof::executor
