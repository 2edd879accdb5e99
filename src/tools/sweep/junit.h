// SPDX-License-Identifier: Apache-2.0
// The result of a sweep for CI systems: JUnit XML, one test case for each configuration.
#pragma once

#include <string>

#include "sweep/result.h"

namespace shardproof::sweep {

// <failure>: a verdict that is the opposite of the expected one. <error>: no verdict (undecided,
// input error, crash, interrupted, not run), so that nothing that was not decided is green
// anywhere. <skipped>: what the sweep itself skips.
std::string junitText(const Sweep& sweep);

}  // namespace shardproof::sweep
