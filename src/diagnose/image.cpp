#include "diagnose/image.h"

#include <algorithm>
#include <set>

#include "interpret/interpret.h"
#include "plan/mesh.h"

namespace shardproof::diagnose {

namespace {

constexpr double kFlopsOfFull = 3e8;  // of all ranks: below, the plan itself is looked at
constexpr double kBytesOfFull = 3e8;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Image::Image(const Problem& full, double seconds) : full_(full) {
  const interpret::Cost cost = interpret::cost(full);
  if (cost.flops > kFlopsOfFull || cost.bytes > kBytesOfFull) {
    ShrinkOptions options;
    options.seconds = seconds;
    shrunk_ = shrinkProblem(full, options);
  }
  const PlanIndex planIndex(problem());
  for (std::size_t e = 0; e < problem().plan.lineage.size(); ++e)
    order_.emplace_back(planIndex.entryKey(static_cast<std::int32_t>(e)), e);
}

std::int32_t Image::entryHere(std::int32_t fullEntry) const {
  if (isFull()) return fullEntry;
  const auto it = std::find(shrunk_.entryOf.begin(), shrunk_.entryOf.end(), fullEntry);
  return it == shrunk_.entryOf.end() ? -1 : static_cast<std::int32_t>(it - shrunk_.entryOf.begin());
}

std::int64_t Image::fullMicrobatch(std::int64_t here) const {
  return isFull() ? here : shrunk_.microbatchOf[at(here)];
}

std::vector<std::int64_t> Image::fullRanks(const std::vector<std::int64_t>& here) const {
  if (isFull()) return here;
  const MeshView small(problem().plan.mesh), large(full_.plan.mesh);
  const std::set<std::int64_t> given(here.begin(), here.end());
  std::set<std::int64_t> ranks;
  for (const std::int64_t r : given) {
    std::vector<std::int64_t> found{0};
    for (std::int32_t a = 0; a < small.axes(); ++a) {
      bool all = true;
      for (std::int32_t c = 0; c < small.size(a); ++c)
        all = all && given.contains(small.with(r, a, c));
      const auto& kept = shrunk_.coordinatesOf[at(a)];
      const std::int32_t own = small.coordinate(r, a);
      const bool stayed = all && own == 0;  // the first of them brings those that went
      std::vector<std::int64_t> wider;
      for (const std::int64_t f : found) {
        for (std::int32_t c = 0; c < large.size(a); ++c) {
          const bool went = std::find(kept.begin(), kept.end(), c) == kept.end();
          if (c == kept[at(own)] || (stayed && went)) wider.push_back(large.with(f, a, c));
        }
      }
      found = std::move(wider);
    }
    ranks.insert(found.begin(), found.end());
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace shardproof::diagnose
