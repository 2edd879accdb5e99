// Reads the logical model and checks it completely: the model is the specification, so whatever is
// wrong in it is an error of the input.
#pragma once

#include "reader/text_source.h"
#include "shardproof/graph.h"

namespace shardproof::reader {

// Fills problem.model. Throws InputError.
void readModel(const Input& input, Problem& problem);

}  // namespace shardproof::reader
