// SPDX-License-Identifier: Apache-2.0
// Which tensors of a plan may be which of its model, from their names, shapes and shardings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"

namespace shardproof::hlo {

// `shards`: JSON of the shards by which `tensor` of the model is `local` on the ranks.
struct CutPoint {
  std::string tensor, local, shards;
};

// The name of an operation without what only the plan's has.
std::string withoutShardMap(std::string name);

// Lemmas that may be wrong. `parameterBegins`: for each parameter and device where its piece lies.
std::vector<CutPoint> proposeCutPoints(const Lowering& model,
                                       const std::vector<std::shared_ptr<Lowering>>& ranks,
                                       const DeviceMesh& mesh,
                                       const std::vector<std::vector<Sizes>>& parameterBegins);

}  // namespace shardproof::hlo
