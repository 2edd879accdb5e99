// SPDX-License-Identifier: Apache-2.0
// The bugs, by what they are about; each list is in the file of its name.
#pragma once

#include <vector>

#include "mutate/mutate.h"

namespace shardproof::mutate {

std::vector<Bug> communicationBugs();
std::vector<Bug> pipelineBugs();
std::vector<Bug> operatorBugs();
std::vector<Bug> gradientBugs();
std::vector<Bug> expertBugs();
std::vector<Bug> optimizerBugs();

}  // namespace shardproof::mutate
