// SPDX-License-Identifier: Apache-2.0
// Lists of words as text.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

inline std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace shardproof
