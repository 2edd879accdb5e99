// SPDX-License-Identifier: Apache-2.0
// Merges the pieces of a tensor and measures how far it is from the reference's.
//
// The whole tensor is never in memory: stretches of it are put together from the mapped files, one
// after another, and each file is read once, from its beginning to its end. So a comparison runs at
// the speed of the disk in memory that does not depend on the sizes of tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "compare/layout.h"

namespace shardproof::compare {

// A rank's copy of what an earlier one of the same tensor has, too.
struct ReplicaError {
  std::int64_t first = 0, rank = 0;
  long double squared = 0;  // of the difference, over all elements that both have
};

struct Merged {
  long double squared = 0;  // of all elements
  std::size_t missing = 0;  // elements that no rank has
  std::size_t firstMissing = 0;
  std::size_t notFinite = 0;
  // Integers from 2^53 on, or numbers whose squares overflow.
  bool inexact = false;
  bool nonzero = false;  // some element is
  std::string obstacle;  // why sketches cannot be merged, or nothing
  // The norm says nothing: of the elements, or as all their squares underflow.
  bool unmeasured() const { return inexact || !obstacle.empty() || (nonzero && squared == 0); }
  std::vector<ReplicaError> replicas;  // those that differ
};

struct Measured {
  Merged reference, other;
  long double difference = 0;  // squared Frobenius norm
  long double product = 0;     // inner product
};

// Of a sum of squares: long double has those of the largest and of the smallest doubles.
inline double root(long double squared) { return static_cast<double>(std::sqrt(squared)); }

// The layouts have one shape. Of what is a sketch on either side, sketches are compared: the sums
// of squares are estimates then (sketch.h). `parallel`: with all threads. Where both have the same
// not-a-number or infinity there is no difference.
Measured measure(const Layout& reference, const Layout& other, bool parallel);

}  // namespace shardproof::compare
