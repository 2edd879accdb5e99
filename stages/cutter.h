// SPDX-License-Identifier: Apache-2.0
// Cuts stages out of the indexed plan by backward slicing (docs/design.md, "Cut"). Both slices
// stop at tensors whose lineage is established by an entry that the stage may assume.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "plan/plan_index.h"
#include "shardproof/budget.h"
#include "stages/stage.h"

namespace shardproof {

struct CutOptions {
  // Lineage entries that may not be assumed (they failed, or the caller wants the stage to reach
  // further up).
  const std::vector<char>* excluded = nullptr;
  // More entries that this stage may not assume, so that it reaches further up.
  std::vector<EntryId> deepened;
  // For evaluation in numbers: the model from its inputs, the plan from what these entries, which
  // are proved, say of it. What they name has then the values that it really has at the inputs: a
  // difference is one of the whole plan. Sums are not assumed, as they do not say what their parts
  // are.
  const std::vector<char>* proved = nullptr;
  // Coordinates of interchangeable axes are collapsed (false: enumerate everything).
  bool collapse = true;
  // Of these, how many coordinates of a class stand for themselves (stages/axis_symmetry.h).
  std::int32_t apart = CollapsedAxis::kApart;
  // For evaluation in numbers: inputs are the same in all microbatches that a kept one stands for.
  // Then so is what operators that run for each microbatch compute of them, and an operator that
  // names one of these microbatches reads the kept one. For a proof this is not enough: what names
  // a microbatch may tell it from others at other inputs.
  bool sameInMicrobatches = false;
  // What is known of the model's tensors for every input (prover/model_facts.h). Without it, of
  // intermediate ones: nothing.
  const ModelFacts* facts = nullptr;
  std::size_t maxNodes = 2'000'000;
  const Budget* budget = nullptr;  // Unsupported is thrown when it is over; nullptr: it has no end
};

// Operators that wait for one another's results, across microbatches or ranks: the plan cannot run.
class CyclicWait : public std::runtime_error {
 public:
  CyclicWait(ProgramId program_, NodeId node_, Rank rank_, Microbatch microbatch_)
      : std::runtime_error("an operator waits for its own result"),
        program(program_),
        node(node_),
        rank(rank_),
        microbatch(microbatch_) {}
  ProgramId program;
  NodeId node;
  Rank rank;
  Microbatch microbatch;
};

// Cuts the stage of one entry. Throws Unsupported when it would exceed maxNodes, CyclicWait.
Stage cutStage(const PlanIndex& planIndex, EntryId entry, const CutOptions& options);

// One stage whose claims are those of several entries (the whole plan, from its inputs).
Stage cutStages(const PlanIndex& planIndex, const std::vector<EntryId>& entries,
                const CutOptions& options);

}  // namespace shardproof
