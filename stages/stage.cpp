// SPDX-License-Identifier: Apache-2.0
#include "stages/stage.h"

#include <algorithm>

namespace shardproof {

StageTensorId knownSource(const Stage& stage, const StageTensor& tensor) {
  if (!tensor.known || tensor.known->kind != KnownInput::Kind::kNumberOf) return StageTensorId();
  for (const StageTensorId t : firstIds<StageTensorId>(stage.tensors.size())) {
    const StageTensor& other = stage.tensors[t];
    if (other.logical && other.origin == Origin::kVariable && other.tensor == tensor.known->tensor)
      return t;
  }
  return StageTensorId();
}

std::size_t Stage::logicalNodes() const {
  return static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const StageNode& n) { return n.logical; }));
}

std::string tensorName(const Stage& stage, StageTensorId t) {
  const NameId name = stage.tensors[t].name;
  return stage.names != nullptr && name.valid() ? stage.names->text(name) : "t" + std::to_string(t);
}

}  // namespace shardproof
