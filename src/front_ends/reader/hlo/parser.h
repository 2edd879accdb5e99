// SPDX-License-Identifier: Apache-2.0
// HLO text to a syntax tree. Attributes are kept as texts; the functions below read those that
// have a meaning here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reader/hlo/cursor.h"
#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// Whether a text is HLO: its first word is HloModule. Only the beginning is looked at.
bool looksLikeHlo(std::string_view text);

// Throws InputError: FILE: line L, column C: what was found, what was expected. Checked: one entry
// computation; no name twice; each operand is an instruction before; each shape has at most 2^62
// elements.
Module parse(std::string_view text, const std::string& file);

Sharding parseSharding(const Attribute& attribute, const std::string& file);
// Groups of devices in any of the three spellings; `devices`: how many there are, for "{}", which
// is all in one group.
std::vector<std::vector<std::int64_t>> parseGroups(const Attribute& attribute,
                                                   const std::string& file, std::int64_t devices);
// {{0,1},{1,2}}
std::vector<std::vector<std::int64_t>> parseLists(const Attribute& attribute,
                                                  const std::string& file);
// {0,1}
std::vector<std::int64_t> parseIntegers(const Attribute& attribute, const std::string& file);
std::int64_t parseInteger(const Attribute& attribute, const std::string& file);
Metadata parseMetadata(const Module& module, const Instruction& instruction,
                       const std::string& file);

// The elements of a literal in row-major order, each as it is written ("-1.5", "inf", "true").
std::vector<std::string> parseLiteral(const Instruction& instruction, const std::string& file);

// The number of elements. Throws InputError where it does not fit.
std::int64_t elementsOf(const Shape& shape, const std::string& file, Place place);

}  // namespace shardproof::hlo
