// SPDX-License-Identifier: Apache-2.0
// Where people wrote what a node does, if its `loc` says so.
#pragma once

#include <optional>
#include <string>

namespace shardproof {

struct SourcePlace {
  std::string file;
  int line = 0, column = 0;  // from 1; column 0: unknown
};

// Of "FILE.py:12" and "DIR/FILE.py:12:5"; nothing for other texts, such as names of modules.
std::optional<SourcePlace> sourcePlace(const std::string& location);

}  // namespace shardproof
