// SPDX-License-Identifier: Apache-2.0
#include "executor/claims.h"

#include <algorithm>

#include "util/index.h"

namespace shardproof::executor {
namespace {

// All combinations of the values of some coordinates, the last fastest.
class Combinations {
 public:
  explicit Combinations(std::vector<std::int64_t> sizes)
      : sizes_(std::move(sizes)), values_(sizes_.size(), 0) {}
  const std::vector<std::int64_t>& values() const { return values_; }
  bool next() {
    for (std::size_t i = sizes_.size(); i-- > 0;) {
      if (++values_[i] < sizes_[i]) return true;
      values_[i] = 0;
    }
    return false;
  }

 private:
  std::vector<std::int64_t> sizes_, values_;
};

}  // namespace

std::vector<Claim> claimsOf(const Programs& programs, EntryId entryIndex) {
  const Problem& problem = programs.problem();
  const Mesh& mesh = programs.mesh();
  const LineageEntry& entry = problem.plan.lineage[entryIndex];
  std::vector<Claim> claims;
  for (std::size_t s = 0; s < entry.shards.size(); ++s) {
    const Shard& shard = entry.shards[s];
    const auto tensorOf = [&](const Part& part, Rank rank) {
      const ProgramLayout& layout = programs.layout(rank);
      const auto it = layout.tensorByName.find(part.local);
      if (it == layout.tensorByName.end())
        throw CannotRun("/lineage/" + std::to_string(entryIndex) + ": " + programs.rankText(rank) +
                        " has no tensor '" + problem.names.text(part.local) + "'");
      return it->second;
    };
    // The coordinates: axes that the parts leave open, and microbatches where the parts range over
    // them.
    const Part& first = shard.parts.front();
    const std::int64_t someRank = mesh.moved(Rank(0), first.at);
    const bool eachMicrobatch =
        first.microbatch.isNone() && programs.program(Rank(someRank))
                                         .graph.tensors[tensorOf(first, Rank(someRank))]
                                         .perMicrobatch;
    std::vector<std::int32_t> kept, summed;
    std::vector<std::int64_t> keptSizes, summedSizes;
    const auto coordinate = [&](std::int32_t axis, std::int64_t size) {
      const bool sums = std::find(shard.sum.begin(), shard.sum.end(), axis) != shard.sum.end();
      (sums ? summed : kept).push_back(axis);
      (sums ? summedSizes : keptSizes).push_back(size);
    };
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      const bool named = std::any_of(first.at.begin(), first.at.end(),
                                     [&](const auto& c) { return at(c.first) == a; });
      if (!named) coordinate(static_cast<std::int32_t>(a), mesh.size(a));
    }
    if (eachMicrobatch) coordinate(kMicrobatchAxis, problem.plan.microbatches);

    Combinations outer(keptSizes);
    do {
      Claim claim;
      claim.entry = EntryId(entryIndex);
      claim.shard = static_cast<std::int32_t>(s);
      for (const auto& [low, high] : shard.box) {
        claim.low.push_back(low);
        claim.extent.push_back(high - low);
      }
      Coordinates where;
      std::int64_t microbatch = -1;
      const auto place = [&](const std::vector<std::int32_t>& axes,
                             const std::vector<std::int64_t>& values) {
        for (std::size_t i = 0; i < axes.size(); ++i) {
          if (axes[i] == kMicrobatchAxis) microbatch = values[i];
          else where.emplace_back(axes[i], static_cast<std::int32_t>(values[i]));
        }
      };
      for (std::size_t i = 0; i < kept.size(); ++i) {
        for (const auto& [axis, offset] : shard.step) {
          if (axis != kept[i]) continue;
          for (std::size_t d = 0; d < claim.low.size(); ++d)
            claim.low[d] += outer.values()[i] * offset[d];
        }
      }
      Combinations inner(summedSizes);
      do {
        where.clear();
        place(kept, outer.values());
        place(summed, inner.values());
        for (const Part& part : shard.parts) {
          const Rank rank = Rank(mesh.moved(Rank(mesh.moved(Rank(0), part.at)), where));
          const TensorId tensor = tensorOf(part, rank);
          const Graph& graph = programs.program(rank).graph;
          const std::int64_t own = part.microbatch.isOne()               ? part.microbatch.number()
                                   : graph.tensors[tensor].perMicrobatch ? microbatch
                                                                         : -1;
          if (claim.parts.empty()) claim.microbatch = static_cast<std::int32_t>(own);
          const std::int32_t slot =
              programs.slotOf(programs.layout(rank), graph, tensor, static_cast<std::int32_t>(own));
          if (graph.tensors[tensor].kind == TensorKind::kProduced &&
              !programs.layout(rank).produced[slot])
            throw CannotRun("/lineage/" + std::to_string(entryIndex) + "/shards/" +
                            std::to_string(s) + ": no node produces '" +
                            problem.names.text(part.local) + "' on " + programs.rankText(rank) +
                            (own >= 0 ? " for microbatch " + std::to_string(own) : ""));
          claim.parts.push_back({rank, slot});
        }
      } while (inner.next());
      claims.push_back(std::move(claim));
    } while (outer.next());
  }
  return claims;
}

}  // namespace shardproof::executor
