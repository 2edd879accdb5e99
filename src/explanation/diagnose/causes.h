// SPDX-License-Identifier: Apache-2.0
// The causes of a report's defects (or suspects) and a plan that has all their mends.
#pragma once

#include <string>
#include <vector>

#include "diagnose/numbers.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof::diagnose {

struct Causes {
  std::vector<Cause> causes;
  std::string mendedModel, mendedPlan;  // texts; empty: not every cause has a mend
};

Causes causesOf(const Problem& problem, const Report& report, const std::string& modelFile,
                Clock::time_point end);

}  // namespace shardproof::diagnose
