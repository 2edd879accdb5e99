// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/groups.h"

#include "reader/hlo/parser.h"

namespace shardproof::hlo {

std::optional<std::vector<std::vector<std::int64_t>>> groupsOf(const Instruction& i,
                                                               const std::string& file,
                                                               std::int64_t devices,
                                                               bool replicas) {
  const Attribute* groups = i.attribute("replica_groups");
  const Attribute* global = i.attribute("use_global_device_ids");
  const bool channel = i.attribute("channel_id") != nullptr;
  const bool hasGlobal = global != nullptr && global->value == "true";
  if (hasGlobal && !channel)
    failAt(file, i.place, i.opcode + ": use_global_device_ids without a channel_id");
  const bool takesGlobal = i.opcode.starts_with("all-reduce") ||
                           i.opcode.starts_with("all-gather") ||
                           i.opcode.starts_with("reduce-scatter");
  const Attribute all{"replica_groups", "{}", i.place};
  const Attribute& listed = groups == nullptr ? all : *groups;
  // Replicas only meet where there is no channel, and so do all partitions of each where there is
  // one but no global numbers.
  const bool replicaNumbers = !channel || (takesGlobal && !hasGlobal);
  if (replicaNumbers == replicas || (channel && hasGlobal))
    return parseGroups(listed, file, devices);
  if (replicas) return std::nullopt;
  // One replica: its partitions meet all together, or none.
  parseGroups(listed, file, 1);
  std::vector<std::vector<std::int64_t>> result;
  if (channel) result.emplace_back();
  for (std::int64_t d = 0; d < devices; ++d) {
    if (!channel) result.emplace_back();
    result.back().push_back(d);
  }
  return result;
}

}  // namespace shardproof::hlo
