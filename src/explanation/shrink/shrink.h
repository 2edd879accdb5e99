// SPDX-License-Identifier: Apache-2.0
// A plan that is too large to run made smaller as a plan: fewer ranks of an axis whose coordinates
// form one symmetry class, and the least sizes of batch, sequence, heads, hidden, vocabulary and
// experts that all operators, shards, windows and groups of the whole plan admit (Z3's integer
// optimizer chooses them). What comes out is a model and a plan that anyone can read and run, for
// the plain executor and for bug reports. No proof rests on it.
//
// A right plan stays right: every constraint between sizes is kept (plan_lines.h), and so are
// factors that stand for sizes (shrink_scalars.h). A wrong one nearly always stays wrong: no
// coordinate goes that is unlike another that stays, no position that a bound singles out, no
// order, no look-up with less than three rows, and sizes that differ still differ where they can.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

struct ShrinkOptions {
  std::int64_t positions =
      2;  // left of a piece of a dimension; those with at most three keep them all
  std::int64_t distinctPositions =
      3;  // the same where order is seen (a mask) or rows are looked up
  std::int64_t lookedUpPositions = 3;  // the same where rows are looked up that are no experts
  std::int32_t ranks = 2;              // left of a symmetry class, where there are more than three;
                                       // one more where two axes would become equal
  bool distinct = true;                // sizes that differ still differ where they can, unless
                                       // that would be dear
  bool windowsAlike = false;  // ranks whose programs differ in attributes only are alike: some of
                              // them go, and with them what is wrong there only
  double maxElements = 0;  // of all tensors of all ranks together, and of the model's; 0: no limit
  double seconds = 5;      // for the optimizer
};

struct Shrunk {
  std::unique_ptr<Problem> problem;  // as the reader makes it of the two texts
  std::string modelText, planText;

  // What became of what: an axis, the microbatches, or a dimension of a logical tensor (and all
  // that run with it).
  struct Change {
    std::string what;  // "axis dp", "microbatches", "dimension 0 of 'x'"
    std::int64_t full = 0, shrunk = 0;
  };
  std::vector<Change> changes;     // also where both are equal
  std::vector<std::string> notes;  // what was left as it is although it may stand for a size
  bool factorsExplained = true;  // false: some factor of one side alone is no product of sizes; if
                                 // it does stand for one, a right plan became a wrong one
  // The entry of the full plan's lineage that each entry stands for.
  std::vector<EntryId> entryOf;
  std::vector<ProgramId> programOf;         // the full plan's program that each one stands for
  std::vector<std::vector<NodeId>> nodeOf;  // of each program: the nodes there that its nodes are
  std::vector<std::vector<std::int32_t>> coordinatesOf;  // by axis: the coordinates that stayed
  std::vector<std::int32_t> microbatchOf;                // the microbatches that stayed
  // The bound of the full dimension `d` of a tensor of the model that a position of the smaller one
  // stands for; -1: it is no bound.
  std::function<std::int64_t(std::int32_t tensor, std::size_t d, std::int64_t position)>
      fullPosition;
  double fullElements = 0,
         elements = 0;  // of all tensors of all ranks (and microbatches), and of the model's
};

// Throws Unsupported, with the reason, where no smaller plan of the same kind can be made.
Shrunk shrinkProblem(const Problem& problem, const ShrinkOptions& options = {});

}  // namespace shardproof
