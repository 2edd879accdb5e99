// Reads a plan as it is written. Names are still names afterwards: the mesh may follow the programs
// that use its axes, and the model is read later.
#pragma once

#include "reader/text_source.h"
#include "shardproof/graph.h"

namespace shardproof::reader {

// Fills problem.plan, with unresolved ids (graph_reader.h). Throws InputError.
void readPlan(const Input& input, Problem& problem);

}  // namespace shardproof::reader
