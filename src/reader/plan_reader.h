// Reads a plan as it is written. Names are still names afterwards: the mesh may follow the programs that use its axes, and the model is read
// later.
#pragma once

#include <string>

#include "shardproof/graph.h"

namespace shardproof::reader {

// Fills problem.plan, with unresolved ids (graph_reader.h); from `text` where one is given, and then `file` is its name in messages. Throws InputError.
void readPlan(const std::string& file, Problem& problem, const std::string* text = nullptr);

}  // namespace shardproof::reader
