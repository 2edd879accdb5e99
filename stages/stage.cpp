#include "stages/stage.h"

#include <algorithm>

namespace shardproof {

AxisLump AxisLump::whole(std::int32_t axis, std::int32_t size) {
  std::vector<std::int32_t> all;
  for (std::int32_t c = 0; c < size; ++c) all.push_back(c);
  return ofClasses(axis, size, {all});
}

AxisLump AxisLump::ofClasses(std::int32_t axis, std::int32_t size,
                             const std::vector<std::vector<std::int32_t>>& classes) {
  AxisLump lump{axis, size, {}};
  for (const auto& alike : classes) {
    const std::size_t apart = alike.size() > kApart + 1 ? kApart : alike.size();
    for (std::size_t i = 0; i < apart; ++i) lump.kept.emplace_back(alike[i], 1);
    if (apart < alike.size())
      lump.kept.emplace_back(alike[apart], static_cast<std::int64_t>(alike.size() - apart));
  }
  std::sort(lump.kept.begin(), lump.kept.end());
  return lump;
}

std::int64_t AxisLump::multiplicity(std::int64_t coordinate) const {
  const auto it = std::lower_bound(kept.begin(), kept.end(), coordinate,
                                   [](const auto& k, std::int64_t c) { return k.first < c; });
  return it != kept.end() && it->first == coordinate ? it->second : 0;
}

std::int32_t knownSource(const Stage& stage, const StageTensor& tensor) {
  if (!tensor.known || tensor.known->kind != KnownInput::Kind::kNumberOf) return -1;
  for (std::size_t t = 0; t < stage.tensors.size(); ++t) {
    const StageTensor& other = stage.tensors[t];
    if (other.logical && other.origin == Origin::kVariable && other.tensor == tensor.known->tensor)
      return static_cast<std::int32_t>(t);
  }
  return -1;
}

std::size_t Stage::logicalNodes() const {
  return static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const StageNode& n) { return n.logical; }));
}

std::string tensorName(const Stage& stage, std::int32_t t) {
  const NameId name = stage.tensors[static_cast<std::size_t>(t)].name;
  return stage.names != nullptr && name.valid() ? stage.names->text(name) : "t" + std::to_string(t);
}

}  // namespace shardproof
