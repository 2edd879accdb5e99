// SPDX-License-Identifier: Apache-2.0
// The results as JUnit XML, as CI servers read it.
#pragma once

#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

// A suite for each plan and in it a case for each output of the model. A case fails where the plan
// is not equivalent and the output is not proved; it is an error where nothing is settled; a plan
// that cannot be read is one case with an error.
std::string junitText(const std::vector<PlanResult>& results);

}  // namespace shardproof
