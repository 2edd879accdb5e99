// SPDX-License-Identifier: Apache-2.0
// Lineage that nobody wrote: found by executing a small image of the problem, and then proved like
// any other.
//
// What is found becomes cut points: lemmas, which verify() proves before it uses them, and which
// may be wrong. So nothing here can make a wrong plan equivalent; a bad guess costs time
// (docs/inference.md).
//
// In src/search/infer/:
//   relations   what the local tensors of a small image of the plan are
//   lift        the same at full size
//   choose      which of it is worth a lemma
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

enum class Infer : std::uint8_t {
  kAuto,    // where lineage speaks of few of the local tensors, or is not enough for a verdict
  kAlways,  // also where it speaks of many
  kNever,
};

// Local tensors that are no box of a tensor of the model, nor a part of a sum.
enum class InferParts : std::uint8_t {
  kNone,
  kMultiples,  // of a box by numbers of ranks and microbatches, their inverses, and -1
  kAll,        // several boxes, and boxes with dimensions in another order, too
};

struct InferOptions {
  double seconds = 20;  // for the image and for executing it; what is found until then counts
  std::size_t memoryMegabytes = 2048;
  InferParts parts = InferParts::kAll;
  bool trustsCutPoints = true;  // false: lemmas are found also where the file has cut points
  const std::atomic<bool>* cancel = nullptr;
};

struct Inferred {
  std::unique_ptr<Problem> problem;  // with more lineage; null: nothing was found
  std::size_t count = 0;             // the new entries of its lineage
  std::size_t looked = 0;            // local tensors of programs that were looked at
  // Lineage entries of outputs that the executed image does not have: the plan is probably wrong.
  std::vector<EntryId> doubtful;
  // Cut points of the file that the executed image does not have, while it has all outputs; and
  // which entries of `problem` are about the same local tensors.
  struct Replaced {
    EntryId entry;
    std::vector<EntryId> by;
  };
  std::vector<Replaced> replaced;
  std::string reason;  // why nothing was found, or not all; else empty
  double seconds = 0;
};

// Never throws what execution throws: that is a reason.
Inferred inferLineage(const Problem& problem, const InferOptions& options = {});

// Cut points of the file that are wrong: a small image of the plan, executed on one draw, has all
// outputs but not these. None where that is not known within `seconds`.
std::vector<EntryId> contradictedCutPoints(const Problem& problem, double seconds,
                                           std::size_t memoryMegabytes);

// What an inferred entry says, for people: "local `g` holds w.grad[0:4, 0:8], summed over dp".
std::string describeFound(const Problem& problem, EntryId entry);

// How much of what the ranks compute on the way cut points speak of: of the real tensors that
// nodes of programs produce and that are no outputs, the share that is mentioned, 0 to 1. (Outputs
// are as many as parameters, and cut nothing in two: a step without any cut point has a fifth of
// its tensors among them.)
double lineageDensity(const Problem& problem);

}  // namespace shardproof
