// Reads the logical model and checks it completely: the model is the specification, so whatever is wrong in it is an error of the input.
#pragma once

#include <string>

#include "shardproof/graph.h"

namespace shardproof::reader {

// Fills problem.model; from `text` where one is given, and then `file` is its name in messages. Throws InputError.
void readModel(const std::string& file, Problem& problem, const std::string* text = nullptr);

}  // namespace shardproof::reader
