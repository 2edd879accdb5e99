// SPDX-License-Identifier: Apache-2.0
// The report for a person: someone who knows PyTorch and clusters, but need not know solvers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "report/layout.h"
#include "shardproof/error.h"
#include "shardproof/report.h"

namespace shardproof {

void writeText(std::ostream& out, const Report& report, const TextStyle& style);
// Not wrapped, without colour. `quiet`: the verdict's line only.
void writeText(std::ostream& out, const Report& report, bool quiet);

// What is wrong with an input, all that was found; the name of a file with several errors stands
// once, above them. Without a newline at the end.
std::string inputErrorText(const InputError& error, const TextStyle& style);

// Of several plans: the verdict's line of one, to be written as soon as it is known; and at the end
// the rest of what there is to say about those that are not equivalent (not when `style.quiet`),
// and how many there were of which kind.
void writeVerdictLine(std::ostream& out, const PlanResult& result, const TextStyle& style = {});
void writeSummary(std::ostream& out, const std::vector<PlanResult>& results,
                  const TextStyle& style);

// "0-3, 8, 16-30 by 2": runs and regular steps as ranges; after 8 of them "and 12 more".
std::string formatRanks(std::vector<std::int64_t> ranks);

}  // namespace shardproof
