// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/dimensions.h"

namespace shardproof::hlo {

std::optional<std::vector<int>> onesOnly(const Sizes& from, const Sizes& to) {
  std::vector<int> old;
  std::size_t next = 0;
  for (const std::int64_t size : to) {
    while (size != 1 && next < from.size() && from[next] == 1) ++next;
    if (size == 1) {
      // A dimension of size 1 that stays may be the same one.
      const bool same = next < from.size() && from[next] == 1;
      old.push_back(same ? static_cast<int>(next++) : -1);
      continue;
    }
    if (next == from.size() || from[next] != size) return std::nullopt;
    old.push_back(static_cast<int>(next++));
  }
  for (; next < from.size(); ++next)
    if (from[next] != 1) return std::nullopt;
  return old;
}

}  // namespace shardproof::hlo
