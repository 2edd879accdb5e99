// SPDX-License-Identifier: Apache-2.0
// The kind of element (real, integer, complex) of local tensors whose dtype the plan leaves out: it
// follows from what produces them.
#pragma once

#include "shardproof/graph.h"

namespace shardproof {

// Sets Tensor::element of every tensor without a declared dtype that a node of the model produces.
// What does not fit an operator is left for validateModel.
void inferModelElements(Problem& problem);

// Sets Tensor::element of every produced local tensor without a declared dtype. What contradicts an
// operator is left for src/core/plan to report. Throws InputError where a member that only receives
// has no dtype, and members send different kinds under the name.
void inferLocalElements(Problem& problem);

}  // namespace shardproof
