// Lineage that nobody wrote: found by executing a small image of the problem, and then proved like
// any other.
//
// What is found becomes checkpoints: lemmas, which verify() proves before it uses them, and which
// may be wrong. So nothing here can make a wrong plan equivalent; a bad guess costs time
// (docs/inference.md).
//
//   relations   what the local tensors of a small image of the plan are
//   lift        the same at full size
//   infer       which of it is worth a lemma
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shardproof/graph.h"

namespace shardproof {

struct InferOptions {
  double seconds = 20;  // for the image and for executing it
  std::size_t memoryMegabytes = 2048;
};

struct Inferred {
  std::unique_ptr<Problem> problem;  // with more lineage; null: nothing was found
  std::size_t first = 0, count = 0;  // the new entries in its lineage
  std::size_t looked = 0;            // local tensors of programs that were looked at
  std::string reason;                // why nothing was found; empty: something was
  double seconds = 0;
};

// Never throws what execution throws: that is a reason.
Inferred inferLineage(const Problem& problem, const InferOptions& options = {});

// How much of what the ranks compute lineage speaks of: of the real tensors that nodes of programs
// produce the share that is mentioned, 0 to 1.
double lineageDensity(const Problem& problem);

}  // namespace shardproof
