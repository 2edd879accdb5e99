// Cuts stages out of the joined plan by backward slicing (docs/design.md, "Stages"). Both slices stop at tensors whose lineage is
// established by an entry that the stage may assume.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "plan/join.h"
#include "stages/stage.h"

namespace shardproof {

struct CutOptions {
  // Lineage entries that may not be assumed (they failed, or the caller wants the stage to reach further up).
  const std::vector<char>* excluded = nullptr;
  // More entries that this stage may not assume, so that it reaches further up.
  std::vector<std::int32_t> deepened;
  // Assume input lineage only: the slices reach the plan's inputs.
  bool inputsOnly = false;
  // Assume only entries that come before this one (-1: no such limit).
  std::int32_t onlyBefore = -1;
  // Coordinates of interchangeable axes are lumped (false: enumerate everything).
  bool lump = true;
  // Intermediate tensors of the model at which the slice stops are taken for ones that may be undefined (Defined::kUnknown).
  bool partial = false;
  std::size_t maxNodes = 2'000'000;
};

// Operators that wait for one another's results, across microbatches or ranks: the plan cannot run.
class CyclicWait : public std::runtime_error {
 public:
  CyclicWait(std::int32_t program_, std::int32_t node_, std::int32_t rank_, Microbatch microbatch_)
      : std::runtime_error("an operator waits for its own result"), program(program_), node(node_), rank(rank_), microbatch(microbatch_) {}
  std::int32_t program, node, rank;
  Microbatch microbatch;
};

// Cuts the stage of one entry. Throws Unsupported when it would exceed maxNodes, CyclicWait.
Stage cutStage(const Join& join, std::int32_t entry, const CutOptions& options);

// One stage whose claims are those of several entries (the whole plan, from its inputs).
Stage cutStages(const Join& join, const std::vector<std::int32_t>& entries, const CutOptions& options);

}  // namespace shardproof
