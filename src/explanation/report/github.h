// SPDX-License-Identifier: Apache-2.0
// Findings as annotations of GitHub Actions (workflow commands).
#pragma once

#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

// One line for each finding, at the user's own source where the node's `loc` is FILE:LINE, else at
// the plan; and one for a plan that is equivalent. Nothing in a name can end a line or a command.
std::string githubText(const std::vector<PlanResult>& results);

}  // namespace shardproof
