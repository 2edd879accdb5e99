// SPDX-License-Identifier: Apache-2.0
// Which devices meet in a collective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// The groups of an instruction, as devices. `replicas`: the devices are replicas of one partition,
// else partitions of one replica. Nothing for partitions that meet in a program of several
// replicas. Throws InputError for what is written wrongly.
std::optional<std::vector<std::vector<std::int64_t>>> groupsOf(const Instruction& i,
                                                               const std::string& file,
                                                               std::int64_t devices, bool replicas);

}  // namespace shardproof::hlo
