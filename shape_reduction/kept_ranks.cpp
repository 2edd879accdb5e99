#include "shape_reduction/kept_ranks.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "ops/registry.h"
#include "plan/symmetry_classes.h"

namespace shardproof {

namespace {

constexpr std::int32_t kLeastMicrobatches = 2;  // that stay

// Programs cover each rank once (the reader has checked it).
std::vector<ProgramId> programsOfRanks(const Plan& plan, const MeshView& mesh) {
  std::vector<ProgramId> result(static_cast<std::size_t>(mesh.ranks()));
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    std::vector<Rank> ranks{mesh.with(Rank(0), plan.programs[p].at)};
    for (std::int32_t axis = 0; axis < mesh.axes(); ++axis) {
      const auto& at = plan.programs[p].at;
      if (std::any_of(at.begin(), at.end(), [axis](const auto& c) { return c.first == axis; }))
        continue;
      const std::size_t n = ranks.size();
      for (std::int32_t c = 1; c < mesh.size(axis); ++c) {
        for (std::size_t i = 0; i < n; ++i) ranks.push_back(mesh.with(ranks[i], axis, c));
      }
    }
    for (const Rank r : ranks) result[r] = p;
  }
  return result;
}

// That the only microbatches which it names are the summands of running sums, all of them once.
bool treatsMicrobatchesAlike(const Problem& problem, const Program& program) {
  const Graph& graph = program.graph;
  std::map<TensorId, std::vector<std::int32_t>> read;
  for (const Node& node : graph.nodes) {
    if (node.microbatch.isOne()) return false;
    bool some = false, stays = false;
    for (const Operand& o : graph.in(node)) {
      const bool one = o.present() && o.microbatch.isOne();
      if (one) read[o.tensor].push_back(o.microbatch.number());
      some = some || one;
      stays = stays || !one || o.microbatch.number() < kLeastMicrobatches;
    }
    if (some && !(stays && isRunningSum(problem, graph, node))) return false;
  }
  if (std::any_of(program.communications.begin(), program.communications.end(),
                  [](const CommunicationSpec& spec) { return spec.tag.has_value(); }))
    return false;
  return std::all_of(read.begin(), read.end(), [&](auto& of) {
    std::sort(of.second.begin(), of.second.end());
    std::vector<std::int32_t> all(static_cast<std::size_t>(problem.plan.microbatches));
    std::iota(all.begin(), all.end(), 0);
    return of.second == all;
  });
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
      const auto most = std::min<std::size_t>(cls.size(), static_cast<std::size_t>(perClass[axis]));
      stay.insert(stay.end(), cls.begin(), cls.begin() + static_cast<std::ptrdiff_t>(most));
    }
    std::sort(stay.begin(), stay.end());
    kept.ofAxis.push_back(std::move(stay));
  }
  const std::int32_t few = microbatchesAreAlike(problem) ? perClass.back() : plan.microbatches;
  kept.microbatches.resize(static_cast<std::size_t>(std::min(few, plan.microbatches)));
  std::iota(kept.microbatches.begin(), kept.microbatches.end(), 0);
  return kept;
}

bool microbatchesAreAlike(const Problem& problem) {
  const Plan& plan = problem.plan;
  return std::all_of(plan.programs.begin(), plan.programs.end(),
                     [&](const Program& p) { return treatsMicrobatchesAlike(problem, p); }) &&
         std::all_of(plan.lineage.begin(), plan.lineage.end(), [](const LineageEntry& entry) {
           return std::all_of(entry.shards.begin(), entry.shards.end(), [](const Shard& shard) {
             return std::none_of(shard.parts.begin(), shard.parts.end(),
                                 [](const Part& part) { return part.microbatch.isOne(); });
           });
         });
}

bool isRunningSum(const Problem& problem, const Graph& graph, const Node& node) {
  static const OperatorId kAdd = ops::Registry::instance().find("add");
  return node.op == kAdd && node.communication < 0 && node.microbatch.isNone() &&
         node.inCount == 2 && problem.attributes.at(node.attributes).empty() &&
         graph.in(node)[0].present() && graph.in(node)[1].present();
}

}  // namespace shardproof
