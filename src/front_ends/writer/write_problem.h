// SPDX-License-Identifier: Apache-2.0
// A problem as the two files of docs/format.md, so that it can be read again: what is written and
// read is the same problem.
#pragma once

#include <set>
#include <string>

#include "shardproof/graph.h"

namespace shardproof {

// Whether some decimal is exactly this number: no other prime than 2 and 5 divides its denominator.
bool hasDecimal(const Rational& number);
// A number as JSON has it, exactly. Throws Unsupported for one that no decimal says (1/3).
std::string decimalText(const Rational& number);

// The files' texts. What the reader added for dropout is left out again. Throws Unsupported for a
// number that no decimal says.
std::string modelText(const Problem& problem);
// `modelFile`: what the plan calls its model; empty: it names none. Lineage that was inferred is
// written where that is asked for, entries of `without` are not.
std::string planText(const Problem& problem, const std::string& modelFile,
                     bool withInferred = false, const std::set<EntryId>& without = {});

}  // namespace shardproof
