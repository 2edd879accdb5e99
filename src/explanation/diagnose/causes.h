// SPDX-License-Identifier: Apache-2.0
// The causes of a report's defects (or suspects) and a plan that has all their fixes.
#pragma once

#include <string>
#include <vector>

#include "diagnose/numbers.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof::diagnose {

struct Causes {
  std::vector<Cause> causes;
  std::string fixedModel, fixedPlan;  // texts; empty: not every cause has a fix
};

Causes causesOf(const Problem& problem, const Report& report, const std::string& modelFile,
                ProcessorClock::time_point end);

}  // namespace shardproof::diagnose
