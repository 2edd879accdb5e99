#include "shape_reduction/kept_ranks.h"

#include <algorithm>
#include <numeric>

#include "plan/symmetry_classes.h"

namespace shardproof {

namespace {

// Programs cover each rank once (the reader has checked it).
std::vector<std::int32_t> programsOfRanks(const Plan& plan, const MeshView& mesh) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(mesh.ranks()), -1);
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    std::vector<std::int64_t> ranks{mesh.with(0, plan.programs[p].at)};
    for (std::int32_t axis = 0; axis < mesh.axes(); ++axis) {
      const auto& at = plan.programs[p].at;
      if (std::any_of(at.begin(), at.end(), [axis](const auto& c) { return c.first == axis; }))
        continue;
      const std::size_t n = ranks.size();
      for (std::int32_t c = 1; c < mesh.size(axis); ++c) {
        for (std::size_t i = 0; i < n; ++i) ranks.push_back(mesh.with(ranks[i], axis, c));
      }
    }
    for (const std::int64_t r : ranks)
      result[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(p);
  }
  return result;
}

}  // namespace

std::int32_t KeptRanks::newCoordinate(std::int32_t axis, std::int32_t coordinate) const {
  const auto& kept = of(axis);
  const auto it = std::lower_bound(kept.begin(), kept.end(), coordinate);
  return it == kept.end() || *it != coordinate ? -1 : static_cast<std::int32_t>(it - kept.begin());
}

bool KeptRanks::keeps(const Coordinates& at) const {
  return std::all_of(at.begin(), at.end(),
                     [this](const auto& c) { return newCoordinate(c.first, c.second) >= 0; });
}

KeptRanks keepRanks(const Problem& problem, const std::vector<std::int32_t>& perClass) {
  const Plan& plan = problem.plan;
  const MeshView mesh(plan.mesh);
  KeptRanks kept;
  kept.programOfRank = programsOfRanks(plan, mesh);
  const SymmetryClasses symmetry(plan, mesh, kept.programOfRank);
  for (std::int32_t axis = 0; axis < mesh.axes(); ++axis) {
    std::vector<std::int32_t> stay;
    for (const auto& cls : symmetry.classes(axis)) {
      const auto most = std::min<std::size_t>(
          cls.size(), static_cast<std::size_t>(perClass[static_cast<std::size_t>(axis)]));
      stay.insert(stay.end(), cls.begin(), cls.begin() + static_cast<std::ptrdiff_t>(most));
    }
    std::sort(stay.begin(), stay.end());
    kept.ofAxis.push_back(std::move(stay));
  }
  kept.microbatches.resize(static_cast<std::size_t>(plan.microbatches));
  std::iota(kept.microbatches.begin(), kept.microbatches.end(), 0);
  return kept;
}

}  // namespace shardproof
