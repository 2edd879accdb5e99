// SPDX-License-Identifier: Apache-2.0
// Merges the pieces of a tensor and measures how far it is from the reference's.
//
// The whole tensor is never in memory: stretches of it are put together from the mapped files, one
// after another, and each file is read once, from its beginning to its end. So a comparison runs at
// the speed of the disk in memory that does not depend on the sizes of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "compare/layout.h"

namespace shardproof::compare {

// A rank's copy of what an earlier one of the same tensor has, too.
struct ReplicaError {
  std::int64_t first = 0, rank = 0;
  double squared = 0;  // of the difference, over all elements that both have
};

struct Merged {
  double squared = 0;       // of all elements
  std::size_t missing = 0;  // elements that no rank has
  std::size_t firstMissing = 0;
  std::size_t notFinite = 0;
  bool inexact = false;                // integers beyond 2^53
  std::vector<ReplicaError> replicas;  // those that differ
};

struct Measured {
  Merged reference, other;
  double difference = 0;  // squared Frobenius norm
  double product = 0;     // inner product
};

// The layouts have one shape. `parallel`: with all threads. Where both have the same not-a-number
// or infinity there is no difference.
Measured measure(const Layout& reference, const Layout& other, bool parallel);

}  // namespace shardproof::compare
