// A problem of its own.
#pragma once

#include <memory>

#include "shardproof/graph.h"

namespace shardproof {

// A copy whose names are its own.
std::unique_ptr<Problem> cloneProblem(const Problem& problem);

}  // namespace shardproof
