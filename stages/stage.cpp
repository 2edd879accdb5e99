#include "stages/stage.h"

#include <algorithm>

namespace shardproof {

CollapsedAxis CollapsedAxis::whole(std::int32_t axis, std::int32_t size) {
  std::vector<std::int32_t> all;
  for (std::int32_t c = 0; c < size; ++c) all.push_back(c);
  return ofClasses(axis, size, {all});
}

CollapsedAxis CollapsedAxis::ofClasses(std::int32_t axis, std::int32_t size,
                                       const std::vector<std::vector<std::int32_t>>& classes) {
  CollapsedAxis collapsed{axis, size, {}};
  for (const auto& cls : classes) {
    const std::size_t apart = cls.size() > kApart + 1 ? kApart : cls.size();
    for (std::size_t i = 0; i < apart; ++i) collapsed.kept.emplace_back(cls[i], 1);
    if (apart < cls.size())
      collapsed.kept.emplace_back(cls[apart], static_cast<std::int64_t>(cls.size() - apart));
  }
  std::sort(collapsed.kept.begin(), collapsed.kept.end());
  return collapsed;
}

std::int64_t CollapsedAxis::weight(std::int64_t coordinate) const {
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
