// SPDX-License-Identifier: Apache-2.0
#include "shrink/lineage_relations.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/coordinates.h"
#include "shardproof/error.h"
#include "util/index.h"

namespace shardproof {

namespace {

using Dim = PlanLines::Dim;

class LineageRelations {
 public:
  LineageRelations(const Problem& problem, const KeptRanks& kept, DimensionShares& shares,
                   PlanRelations& to)
      : problem_(problem),
        plan_(problem.plan),
        kept_(kept),
        shares_(shares),
        to_(to),
        lines_(to.lines) {}

  void run() {
    for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) {
      for (std::size_t s = 0; s < plan_.lineage[e].shards.size(); ++s) relateShard(e, s);
    }
    to_.tilings = shares_.choose();
    for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) dropWhatGoes(e);
    to_.moves.assign(moves_.begin(), moves_.end());
  }

 private:
  void relateShard(std::size_t e, std::size_t s) {
    const LineageEntry& entry = plan_.lineage[e];
    const Shard& shard = entry.shards[s];
    const auto& logical = to_.model.ofTensor[entry.tensor];
    // All parts hold the same box.
    const GraphDims* first = nullptr;
    std::int32_t firstTensor = -1;
    for (const Part& part : shard.parts) {
      forEachLocal(part, [&](const GraphDims& dims, TensorId tensor) {
        const Dim own = dims.values[tensor], whole = to_.model.values[entry.tensor];
        if (own >= 0 && whole >= 0) lines_.equal(own, whole);
        if (first == nullptr) {
          first = &dims;
          firstTensor = tensor;
          return;
        }
        for (std::size_t d = 0; d < logical.size(); ++d)
          lines_.equal(dims.ofTensor[tensor][d], first->ofTensor[firstTensor][d]);
      });
    }
    if (first == nullptr) return;
    for (std::size_t d = 0; d < logical.size(); ++d) {
      const Dim part = first->ofTensor[firstTensor][d];
      const auto steps = stepsAlong(shard, d);
      if (steps.empty()) {
        lines_.range(logical[d], shard.box[d].first, part);
        continue;
      }
      std::int64_t next = lines_.fullSize(part);
      const bool even = std::all_of(steps.begin(), steps.end(), [&](const auto& step) {
        const bool follows = step.second == next;
        next = follows ? next * ir::axisSize(plan_, step.first) : next;
        return follows;
      });
      if (!even) {
        makePieces(shard, d, logical[d], part);
        continue;
      }
      std::vector<std::int32_t> axes;
      for (const auto& step : steps) axes.push_back(step.first);
      to_.evenBoxes[{e, s, d}] = shares_.shareOut(logical[d], shard.box[d].first, part, axes);
    }
    for (const auto& [axis, offsets] : shard.step) {
      if (std::count_if(offsets.begin(), offsets.end(), [](std::int64_t o) { return o != 0; }) >
              1 &&
          static_cast<std::int64_t>(kept_.of(axis).size()) < ir::axisSize(plan_, axis)) {
        throw Unsupported(
            "lineage of '" + name(entry) +
            "' steps along two dimensions at once over an axis of which ranks are left out");
      }
    }
  }

  // Axes that move a shard's box along one dimension, the least step first.
  static std::vector<std::pair<std::int32_t, std::int64_t>> stepsAlong(const Shard& shard,
                                                                       std::size_t d) {
    std::vector<std::pair<std::int32_t, std::int64_t>> steps;
    for (const auto& [axis, offsets] : shard.step) {
      if (offsets[d] != 0) steps.emplace_back(axis, offsets[d]);
    }
    std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) {
      return std::abs(a.second) < std::abs(b.second);
    });
    return steps;
  }

  // Boxes with gaps or overlaps.
  void makePieces(const Shard& shard, std::size_t d, Dim whole, Dim part) {
    const auto steps = stepsAlong(shard, d);
    std::vector<std::int64_t> lows{shard.box[d].first};
    for (const auto& [axis, offset] : steps) {
      std::vector<std::int64_t> more;
      for (const std::int64_t lo : lows) {
        for (const std::int32_t c : kept_.of(axis)) more.push_back(lo + c * offset);
      }
      lows = std::move(more);
    }
    moves_.insert({whole, shard.box[d].first, steps});
    for (const std::int64_t lo : lows) lines_.range(whole, lo, part);
  }

  void dropWhatGoes(std::size_t e) {
    const LineageEntry& entry = plan_.lineage[e];
    const auto& logical = to_.model.ofTensor[entry.tensor];
    for (std::size_t d = 0; d < logical.size(); ++d) {
      std::vector<std::pair<std::int64_t, std::int64_t>> held, all;
      for (std::size_t s = 0; s < entry.shards.size(); ++s) {
        // What is shared evenly has been seen to.
        const bool even = to_.evenBoxes.contains({e, s, d});
        cover(entry.shards[s], d, !even, held);
        cover(entry.shards[s], d, false, all);
      }
      dropTheRest(logical[d], held, all);
    }
  }

  // The part's tensor in each kept program that some kept rank which is meant runs.
  template <class F>
  void forEachLocal(const Part& part, F&& f) {
    for (const ProgramId p : firstIds<ProgramId>(plan_.programs.size())) {
      const Coordinates& own = plan_.programs[p].at;
      const bool meets = std::all_of(part.at.begin(), part.at.end(), [&](const auto& c) {
        return std::all_of(own.begin(), own.end(), [&](const auto& o) {
          return o.first != c.first || o.second == c.second;
        });
      });
      if (!meets || !kept_.keeps(own) || !kept_.keeps(part.at)) continue;
      const TensorId tensor = TensorId(find(p, part.local));
      if (tensor >= 0) f(to_.programs[p], tensor);
    }
  }

  std::int32_t find(std::size_t program, NameId local) {
    if (tensorByName_.empty()) tensorByName_.resize(plan_.programs.size());
    auto& index = tensorByName_[program];
    if (index.empty()) {
      const auto& tensors = plan_.programs[program].graph.tensors;
      for (const TensorId t : firstIds<TensorId>(tensors.size())) index.emplace(tensors[t].name, t);
    }
    const auto it = index.find(local);
    return it == index.end() ? -1 : it->second;
  }

  const std::string& name(const LineageEntry& entry) const {
    return problem_.names.text(problem_.model.graph.tensors[entry.tensor].name);
  }

  // The stretches of dimension d that a shard's boxes cover, at the kept coordinates or at all.
  void cover(const Shard& shard, std::size_t d, bool keptOnly,
             std::vector<std::pair<std::int64_t, std::int64_t>>& to) const {
    if (keptOnly && !kept_.keeps(shard.parts.front().at)) return;
    std::vector<std::pair<std::int64_t, std::int32_t>>
        steps;  // least first: boxes that adjoin become one
    for (const auto& [axis, offsets] : shard.step) {
      if (offsets[d] != 0) steps.emplace_back(offsets[d], axis);
    }
    std::sort(steps.begin(), steps.end(),
              [](const auto& a, const auto& b) { return std::abs(a.first) < std::abs(b.first); });
    std::vector<std::pair<std::int64_t, std::int64_t>> boxes{shard.box[d]};
    for (const auto& [offset, axis] : steps) {
      const std::int64_t size = ir::axisSize(plan_, axis);
      const bool everyOne = !keptOnly || static_cast<std::int64_t>(kept_.of(axis).size()) == size;
      if (everyOne && boxes.size() == 1 && std::abs(offset) <= boxes[0].second - boxes[0].first) {
        (offset > 0 ? boxes[0].second : boxes[0].first) += offset * (size - 1);
        continue;
      }
      std::vector<std::pair<std::int64_t, std::int64_t>> more;
      for (std::int64_t c = 0; c < size; ++c) {
        if (keptOnly && kept_.newCoordinate(axis, static_cast<std::int32_t>(c)) < 0) continue;
        for (const auto& [lo, hi] : boxes) more.emplace_back(lo + c * offset, hi + c * offset);
      }
      boxes = merged(std::move(more));
    }
    to.insert(to.end(), boxes.begin(), boxes.end());
  }

  static std::vector<std::pair<std::int64_t, std::int64_t>> merged(
      std::vector<std::pair<std::int64_t, std::int64_t>> list) {
    std::sort(list.begin(), list.end());
    std::vector<std::pair<std::int64_t, std::int64_t>> result;
    for (const auto& box : list) {
      if (!result.empty() && box.first <= result.back().second)
        result.back().second = std::max(result.back().second, box.second);
      else result.push_back(box);
    }
    return result;
  }

  // What the full plan holds of a dimension and the kept ranks do not.
  void dropTheRest(Dim d, const std::vector<std::pair<std::int64_t, std::int64_t>>& held,
                   const std::vector<std::pair<std::int64_t, std::int64_t>>& all) {
    const auto kept = merged(held);
    for (auto [lo, hi] : merged(all)) {
      for (const auto& [a, b] : kept) {
        if (b <= lo || a >= hi) continue;
        if (a > lo) lines_.drop(d, lo, a - lo);
        lo = b;
      }
      if (lo < hi) lines_.drop(d, lo, hi - lo);
    }
  }

  const Problem& problem_;
  const Plan& plan_;
  const KeptRanks& kept_;
  DimensionShares& shares_;
  PlanRelations& to_;
  PlanLines& lines_;
  std::set<Moves> moves_;
  std::vector<std::unordered_map<NameId, TensorId>> tensorByName_;
};

}  // namespace

void relateLineage(const Problem& problem, const KeptRanks& kept, DimensionShares& shares,
                   PlanRelations& to) {
  LineageRelations(problem, kept, shares, to).run();
}

}  // namespace shardproof
