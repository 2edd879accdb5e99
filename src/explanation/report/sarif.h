// SPDX-License-Identifier: Apache-2.0
// Findings as SARIF 2.1.0 (OASIS), which code-scanning services and editors read.
#pragma once

#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

// One run. A result's first location is the user's own source where the node's `loc` is FILE:LINE,
// else the file of the plan; the JSON pointer is a logical location.
std::string sarifText(const std::vector<PlanResult>& results, int exitCode);

}  // namespace shardproof
