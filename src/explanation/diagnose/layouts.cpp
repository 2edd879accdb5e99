// SPDX-License-Identifier: Apache-2.0
#include "diagnose/layouts.h"

#include <algorithm>

namespace shardproof::diagnose {
namespace {

constexpr std::size_t kMostLayouts = 48, kMostAxes = 3, kMostExchanged = 6, kMostTold = 4;

using Axes = std::vector<std::int32_t>;

std::int64_t extentOf(const Shard& shard, std::size_t d) {
  return shard.box[d].second - shard.box[d].first;
}

// Offsets that are not 0 only, by axis.
std::vector<std::pair<std::int32_t, Shape>> stepsOf(const Shard& shard) {
  std::vector<std::pair<std::int32_t, Shape>> steps;
  for (const auto& step : shard.step)
    if (std::any_of(step.second.begin(), step.second.end(), [](std::int64_t n) { return n != 0; }))
      steps.push_back(step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool same(const Shard& a, const Shard& b) { return a.box == b.box && stepsOf(a) == stepsOf(b); }
bool same(const std::vector<Shard>& a, const std::vector<Shard>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Shard& x, const Shard& y) { return same(x, y); });
}

// All orders of axes that cut a dimension into so many pieces.
void cuts(const std::vector<MeshAxis>& mesh, std::int64_t pieces, Axes& taken,
          std::vector<Axes>& found) {
  if (pieces == 1) {
    found.push_back(taken);
    return;
  }
  if (taken.size() == kMostAxes) return;
  for (std::int32_t a = 0; a < static_cast<std::int32_t>(mesh.size()); ++a) {
    if (mesh[a].size < 2 || pieces % mesh[a].size != 0 ||
        std::find(taken.begin(), taken.end(), a) != taken.end())
      continue;
    taken.push_back(a);
    cuts(mesh, pieces / mesh[a].size, taken, found);
    taken.pop_back();
  }
}

// One part of the whole local tensor, on single ranks, which stays through all microbatches.
bool isSimple(const Shard& shard) {
  return shard.parts.size() == 1 && shard.sum.empty() && shard.parts.front().within.empty() &&
         std::none_of(shard.step.begin(), shard.step.end(),
                      [](const auto& s) { return s.first == kMicrobatchAxis; });
}

std::string textOf(const Problem& problem, const Shard& shard) {
  std::string text = "box [";
  for (std::size_t d = 0; d < shard.box.size(); ++d)
    text += (d > 0 ? ", [" : "[") + std::to_string(shard.box[d].first) + ", " +
            std::to_string(shard.box[d].second) + "]";
  text += "]";
  const auto steps = stepsOf(shard);
  if (steps.empty()) return text + (shard.step.empty() ? "" : " and no step");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    text += (i > 0 ? ", " : ", step {") + problem.plan.mesh[steps[i].first].name + ": [";
    for (std::size_t d = 0; d < steps[i].second.size(); ++d)
      text += (d > 0 ? ", " : "") + std::to_string(steps[i].second[d]);
    text += "]";
  }
  return text + "}";
}

}  // namespace

std::vector<Layout> otherLayouts(const Problem& problem, EntryId entry) {
  const LineageEntry& e = problem.plan.lineage[entry];
  const Shape& full = problem.model.graph.tensors[e.tensor].shape;
  std::vector<Layout> layouts;
  if (e.shards.empty() || !std::all_of(e.shards.begin(), e.shards.end(), isSimple)) return layouts;
  const auto add = [&](Layout layout) {
    const auto shards = withLayout(problem, entry, layout);
    if (shards && !same(*shards, e.shards) && layouts.size() < kMostLayouts)
      layouts.push_back(std::move(layout));
  };
  std::vector<Layout> partial = {{}};
  for (std::size_t d = 0; d < full.size(); ++d) {
    const std::int64_t extent = extentOf(e.shards.front(), d);
    std::vector<Axes> choices;
    Axes taken;
    if (full[d] % extent == 0) cuts(problem.plan.mesh, full[d] / extent, taken, choices);
    std::vector<Layout> longer;
    for (const Layout& layout : partial) {
      for (const Axes& axes : choices) {
        const bool apart = std::none_of(layout.cut.begin(), layout.cut.end(), [&](const Axes& o) {
          return std::any_of(o.begin(), o.end(), [&](std::int32_t a) {
            return std::find(axes.begin(), axes.end(), a) != axes.end();
          });
        });
        if (!apart || longer.size() >= kMostLayouts) continue;
        longer.push_back(layout);
        longer.back().cut.push_back(axes);
      }
    }
    partial = std::move(longer);
  }
  for (Layout& layout : partial) add(std::move(layout));
  for (std::size_t j = 0; j < std::min(e.shards.size(), kMostExchanged); ++j)
    for (std::size_t i = 0; i < j; ++i) add({{}, std::pair(i, j)});
  return layouts;
}

std::optional<std::vector<Shard>> withLayout(const Problem& problem, EntryId entry,
                                             const Layout& layout) {
  const LineageEntry& e = problem.plan.lineage[entry];
  std::vector<Shard> shards = e.shards;
  if (layout.exchanged) {
    const auto [i, j] = *layout.exchanged;
    if (i >= shards.size() || j >= shards.size()) return std::nullopt;
    for (std::size_t d = 0; d < shards[i].box.size(); ++d)
      if (extentOf(shards[i], d) != extentOf(shards[j], d)) return std::nullopt;
    std::swap(shards[i].box, shards[j].box);
    std::swap(shards[i].step, shards[j].step);
    return shards;
  }
  const Shape& full = problem.model.graph.tensors[e.tensor].shape;
  if (layout.cut.size() != full.size()) return std::nullopt;
  for (Shard& shard : shards) {
    if (!isSimple(shard)) return std::nullopt;
    shard.step.clear();
    for (std::size_t d = 0; d < full.size(); ++d) {
      const std::int64_t extent = extentOf(shard, d);
      std::int64_t low = 0, stride = extent;
      for (auto axis = layout.cut[d].rbegin(); axis != layout.cut[d].rend(); ++axis) {
        const Coordinates& at = shard.parts.front().at;
        const auto fixed =
            std::find_if(at.begin(), at.end(), [&](const auto& c) { return c.first == *axis; });
        if (fixed != at.end()) {
          low += fixed->second * stride;
        } else {
          shard.step.emplace_back(*axis, Shape(full.size(), 0));
          shard.step.back().second[d] = stride;
        }
        stride *= problem.plan.mesh[*axis].size;
      }
      if (stride != full[d]) return std::nullopt;
      shard.box[d] = {low, low + extent};
    }
    std::sort(shard.step.begin(), shard.step.end());
  }
  return shards;
}

std::pair<std::string, std::string> shardTexts(const Problem& problem,
                                               const std::vector<Shard>& are,
                                               const std::vector<Shard>& haveToBe) {
  std::pair<std::string, std::string> texts;
  std::size_t differ = 0;
  for (std::size_t s = 0; s < are.size(); ++s) {
    if (same(are[s], haveToBe[s]) || ++differ > kMostTold) continue;
    const std::string shard = are.size() > 1 ? "shard " + std::to_string(s) + " " : "";
    texts.first += (texts.first.empty() ? "" : "; ") + shard + textOf(problem, are[s]);
    texts.second += (texts.second.empty() ? "" : "; ") + shard + textOf(problem, haveToBe[s]);
  }
  if (differ > kMostTold) {
    texts.first += "; and so on";
    texts.second += "; and so on";
  }
  return texts;
}

}  // namespace shardproof::diagnose
