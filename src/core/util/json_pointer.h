// SPDX-License-Identifier: Apache-2.0
// Components of JSON pointers (RFC 6901), which every message about the input carries.
#pragma once

#include <string>
#include <string_view>

namespace shardproof {

// "~" and "/" are escaped: tensor names may hold both.
inline std::string escapePointer(std::string_view component) {
  std::string out;
  out.reserve(component.size());
  for (const char c : component) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace shardproof
