// SPDX-License-Identifier: Apache-2.0
// What a run found, for people and as JSON.
#pragma once

#include <ostream>
#include <string>

#include "executor/interpret.h"

namespace shardproof::executor {

void writeText(std::ostream& out, const Problem& problem, const Result& result,
               const Options& options);
std::string jsonText(const Problem& problem, const Result& result, const Options& options);

}  // namespace shardproof::executor
