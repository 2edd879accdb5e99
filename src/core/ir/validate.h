// SPDX-License-Identifier: Apache-2.0
// Whether a problem whose names are resolved makes sense as an input: what docs/format.md lists
// under "What is an error in the input". Whether the plan can run, and is right (production before
// reading, shapes on the ranks, matching communication), is a verdict on the plan and not asked
// here; of the model everything is, as it is the specification.
//
// All of these throw InputError, or InputErrors with all that is wrong, and change nothing.
#pragma once

#include <string>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

// The mesh's axes, as the names of others have to mean something, and the number of microbatches.
void validateMesh(const std::string& file, const std::vector<MeshAxis>& mesh,
                  std::int32_t microbatches);

// Of model and plan, each for itself: shapes and constants, and that every node has an operator
// with attributes and numbers of operands and results that it can have. Inference of anything from
// operators may only follow this.
void validateNodes(const Problem& problem);

// Single assignment, execution order, shapes and kinds of element of the model, and its outputs.
void validateModel(const Problem& problem);

// That each rank has one program; microbatches, groups and dimensions of the programs' nodes.
void validatePrograms(const Problem& problem);

// That every equation of the lineage is well formed, that inputs are placed and outputs covered,
// and that what is assumed about the inputs does not restrict them.
void validateLineage(const Problem& problem);

// That what the plan's capture lists as compared are outputs of the model.
void validateCapture(const Problem& problem);

// All of the above in this order, for a problem whose kinds of element are inferred.
void validate(const Problem& problem);

// "real", "integer" or "complex".
const char* elementName(ElementKind kind);

// "found no operand and 2 results, expected ..." or empty: how many operands and results a
// communication has.
std::string communicationArity(Communication kind, std::size_t operands, std::size_t results);

}  // namespace shardproof::ir
