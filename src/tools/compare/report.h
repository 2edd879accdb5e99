// SPDX-License-Identifier: Apache-2.0
// A comparison for people, and as JSON and JUnit for programs.
#pragma once

#include <iosfwd>
#include <string>

#include "compare/compare.h"
#include "report/layout.h"

namespace shardproof::compare {

// As report/text.h has it for plans: to be given to laidOut(). `style.quiet`: the first line only.
void writeText(std::ostream& out, const Comparison& comparison, const TextStyle& style);

// An error or a tolerance: 1.25e-03.
std::string shareText(double value);

// docs/numbers.md, "The JSON report".
std::string jsonText(const Comparison& comparison, int exitCode);

// A case for each tensor that decides.
std::string junitText(const Comparison& comparison);

}  // namespace shardproof::compare
