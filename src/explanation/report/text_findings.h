// SPDX-License-Identifier: Apache-2.0
// Parts of the report for people: what is wrong, and names cut to what fits a screen.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "report/layout.h"
#include "shardproof/report.h"

namespace shardproof {

// A name, or a sentence, printable and without the middle of what is very long.
std::string asName(const std::string& text, const TextStyle& style);
std::string asLine(const std::string& text, const TextStyle& style);
// "a, b and 3 more".
std::string nameList(const std::vector<std::string>& names, const TextStyle& style);

void writeCauses(std::ostream& out, const Report& report, const TextStyle& style);
void writeDefects(std::ostream& out, const Report& report, const TextStyle& style);
void writeSuspects(std::ostream& out, const Report& report, const TextStyle& style);

}  // namespace shardproof
