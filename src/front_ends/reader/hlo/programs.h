// SPDX-License-Identifier: Apache-2.0
// The programs of a plan: one for all devices that share a lowering.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"

namespace shardproof::hlo {

// The contents of "programs" in docs/format.md, for the lowering of each device. Of the graphs,
// which are empty after that, what their results and the tensors `wanted` need.
std::string programsJson(const DeviceMesh& mesh,
                         const std::vector<std::shared_ptr<Lowering>>& ofDevice,
                         const std::set<std::string>& wanted);

}  // namespace shardproof::hlo
