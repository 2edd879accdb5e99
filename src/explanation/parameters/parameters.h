// SPDX-License-Identifier: Apache-2.0
// How the gradient of each parameter comes about along each axis of the mesh: whether backward
// leaves all of it on every rank, a part of a sum, or a part of the tensor, and what reduces it
// then. Told of one execution at random inputs, for people: no verdict rests on it.
#pragma once

#include <atomic>
#include <cstddef>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

struct ExplainParametersOptions {
  double seconds = 10;
  std::size_t memoryMegabytes = 2048;
  const std::atomic<bool>* cancel = nullptr;
};

// In a process of its own. Never throws: a plan that cannot be executed has its reason there.
ParameterTable explainParameters(const Problem& problem, const ExplainParametersOptions& options);

}  // namespace shardproof
