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

// Of several plans: the verdict's line of one, to be written as soon as it is known; and at the end
// the rest of what there is to say about those that are not equivalent (not when `quiet`), and how
// many there were of which kind.
void writeVerdictLine(std::ostream& out, const PlanResult& result);
void writeSummary(std::ostream& out, const std::vector<PlanResult>& results, bool quiet);

// "0-3, 8, 16-30 by 2": runs and regular steps as ranges; after 8 of them "and 12 more".
std::string formatRanks(std::vector<std::int64_t> ranks);

}  // namespace shardproof
