// The report for a person: someone who knows PyTorch and clusters, but need not know solvers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

// `quiet`: the verdict's line only.
void writeText(std::ostream& out, const Report& report, bool quiet);

// "0-3, 8, 16-30 by 2": runs and regular steps as ranges; after 8 of them "and 12 more".
std::string formatRanks(std::vector<std::int64_t> ranks);

}  // namespace shardproof
