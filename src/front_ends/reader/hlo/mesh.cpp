// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/mesh.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "reader/hlo/parser.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

using Function = std::vector<std::int64_t>;  // of a device

// The strides of axes along which f is affine: it goes on as it began as far as it does, and what
// follows is looked at in steps of that.
std::set<std::int64_t> boundaries(const Function& f) {
  const auto n = static_cast<std::int64_t>(f.size());
  std::set<std::int64_t> found;
  for (std::int64_t s = 1; s < n;) {
    std::int64_t m = 1;
    const std::int64_t step = f[at(s)] - f[0];
    while (m * s < n && f[at(m * s)] == f[0] + m * step) ++m;
    while (m > 1 && n % (m * s) != 0) --m;
    if (m == 1) return found;
    s *= m;
    found.insert(s);
  }
  return found;
}

// For each device its place in its group, and the number of its group.
std::vector<Function> functionsOf(const std::vector<std::vector<std::int64_t>>& groups,
                                  std::int64_t devices) {
  Function place(at(devices), 0), number(at(devices), 0);
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t k = 0; k < groups[g].size(); ++k) {
      place[at(groups[g][k])] = static_cast<std::int64_t>(k);
      number[at(groups[g][k])] = static_cast<std::int64_t>(g);
    }
  return {place, number};
}

std::vector<Function> functionsOf(const Sharding& sharding, std::int64_t devices) {
  std::vector<Function> all;
  if (sharding.kind == Sharding::Kind::kTuple) {
    for (const Sharding& element : sharding.elements)
      for (Function& f : functionsOf(element, devices)) all.push_back(std::move(f));
    return all;
  }
  if (sharding.kind != Sharding::Kind::kTiled) return all;
  const std::size_t rank = sharding.tiles.size() - sharding.repeated;
  const auto tiling = tilingOf(sharding, rank, devices);
  if (!tiling) return all;
  for (std::size_t d = 0; d < rank; ++d) {
    if (tiling->tiles[d] == 1) continue;
    all.emplace_back();
    for (const Sizes& tile : tiling->tileOf) all.back().push_back(tile[d]);
  }
  return all;
}

}  // namespace

std::optional<Tiling> tilingOf(const Sharding& s, std::size_t rank, std::int64_t devices) {
  Tiling tiling;
  tiling.tiles.assign(rank, 1);
  tiling.tileOf.assign(at(devices), Sizes(rank, 0));
  if (s.kind == Sharding::Kind::kReplicated) return tiling;
  if (s.kind != Sharding::Kind::kTiled || s.noTiles || s.tiles.size() != rank + s.repeated ||
      s.devices.size() != at(devices))
    return std::nullopt;
  tiling.tiles.assign(s.tiles.begin(), s.tiles.begin() + static_cast<std::ptrdiff_t>(rank));
  for (std::size_t k = 0; k < s.devices.size(); ++k) {
    std::int64_t left = static_cast<std::int64_t>(k);
    for (std::size_t d = s.tiles.size(); d-- > 0;) {
      if (d < rank) tiling.tileOf[at(s.devices[k])][d] = left % s.tiles[d];
      left /= s.tiles[d];
    }
  }
  return tiling;
}

DeviceMesh::DeviceMesh(const Module& module, const std::string& file, std::int64_t devices)
    : devices_(devices) {
  std::set<Function> functions;
  std::set<std::string> seen;
  for (const Computation& computation : module.computations)
    for (const Instruction& i : computation.instructions)
      for (const Attribute& a : i.attributes) {
        const bool groups = a.name == "replica_groups";
        if ((!groups && a.name != "sharding") || !seen.insert(a.name + a.value).second) continue;
        const auto found = groups ? functionsOf(parseGroups(a, file, devices), devices)
                                  : functionsOf(parseSharding(a, file), devices);
        functions.insert(found.begin(), found.end());
      }
  // Those that divide one another, beginning with what is asked for most often.
  std::map<std::int64_t, std::size_t> votes;
  for (const Function& f : functions)
    for (const std::int64_t b : boundaries(f)) ++votes[b];
  std::vector<std::pair<std::size_t, std::int64_t>> ranked;
  for (const auto& [b, n] : votes) ranked.emplace_back(n, b);
  std::sort(ranked.rbegin(), ranked.rend());
  std::set<std::int64_t> chain{1, devices};
  for (const auto& [n, b] : ranked)
    if (std::all_of(chain.begin(), chain.end(),
                    [b = b](std::int64_t c) { return c % b == 0 || b % c == 0; }))
      chain.insert(b);
  for (auto it = chain.begin(); std::next(it) != chain.end(); ++it) {
    strides_.insert(strides_.begin(), *it);
    sizes_.insert(sizes_.begin(), *std::next(it) / *it);
  }
  if (sizes_.empty()) {
    sizes_ = {1};
    strides_ = {1};
  }
}

std::string DeviceMesh::axisName(std::size_t axis) const { return "x" + std::to_string(axis); }

std::string DeviceMesh::json() const {
  std::string text = "[";
  for (std::size_t a = 0; a < sizes_.size(); ++a)
    text +=
        (a == 0 ? "[" : ", [") + quotedJson(axisName(a)) + ", " + std::to_string(sizes_[a]) + "]";
  return text + "]";
}

std::string DeviceMesh::coordinatesOf(std::int64_t device,
                                      const std::vector<std::size_t>& which) const {
  std::string text = "{";
  for (std::size_t k = 0; k < which.size(); ++k)
    text += (k == 0 ? "" : ", ") + quotedJson(axisName(which[k])) + ": " +
            std::to_string(coordinate(device, which[k]));
  return text + "}";
}

NodeAttributes DeviceMesh::groupOf(const std::vector<std::vector<std::int64_t>>& groups,
                                   std::int64_t device) const {
  const std::vector<std::int64_t>* own = nullptr;
  for (const auto& g : groups)
    if (std::find(g.begin(), g.end(), device) != g.end()) own = &g;
  std::vector<std::size_t> varying;
  std::int64_t size = 1;
  for (std::size_t a = 0; a < axes(); ++a)
    for (const std::int64_t member : *own)
      if (coordinate(member, a) != coordinate((*own)[0], a)) {
        varying.push_back(a);
        size *= sizes_[a];
        break;
      }
  if (size == static_cast<std::int64_t>(own->size()) && std::is_sorted(own->begin(), own->end())) {
    std::string text = "[";
    for (std::size_t k = 0; k < varying.size(); ++k)
      text += (k == 0 ? "" : ", ") + quotedJson(axisName(varying[k]));
    return {{"group", text + "]"}};
  }
  std::string text = "[";
  for (std::size_t k = 0; k < own->size(); ++k)
    text += (k == 0 ? "" : ", ") + coordinatesOf((*own)[k], varying);
  return {{"group_at", text + "]"}};
}

std::optional<std::vector<std::vector<std::int64_t>>> DeviceMesh::affineGroups(
    const std::vector<std::int64_t>& sourceOf) const {
  constexpr std::int64_t kMostMembers = 64;
  if (std::any_of(sourceOf.begin(), sourceOf.end(), [](std::int64_t s) { return s < 0; }))
    return std::nullopt;
  std::vector<std::size_t> varying;
  std::int64_t members = 1;
  for (std::size_t a = 0; a < axes(); ++a) {
    bool differs = false;
    for (std::int64_t d = 0; d < devices_; ++d)
      differs = differs || coordinate(sourceOf[at(d)], a) != coordinate(d, a);
    if (!differs) continue;
    varying.push_back(a);
    members *= sizes_[a];
  }
  if (members > kMostMembers) return std::nullopt;
  const auto placeOf = [&](std::int64_t d) {
    std::int64_t place = 0;
    for (const std::size_t a : varying) place = place * sizes_[a] + coordinate(d, a);
    return place;
  };
  const std::int64_t base = placeOf(sourceOf[0]);
  for (std::int64_t d = 0; d < devices_; ++d) {
    std::int64_t expected = base;
    for (std::size_t a = 0; a < axes(); ++a)
      if (sizes_[a] > 1) expected += (placeOf(sourceOf[at(strides_[a])]) - base) * coordinate(d, a);
    if (placeOf(sourceOf[at(d)]) != expected) return std::nullopt;
  }
  std::map<std::vector<std::int64_t>, std::vector<std::int64_t>> groups;
  for (std::int64_t d = 0; d < devices_; ++d) {
    std::vector<std::int64_t> others;
    for (std::size_t a = 0; a < axes(); ++a)
      others.push_back(std::count(varying.begin(), varying.end(), a) > 0 ? 0 : coordinate(d, a));
    groups[std::move(others)].push_back(d);
  }
  std::vector<std::vector<std::int64_t>> made;
  for (auto& [others, group] : groups) made.push_back(std::move(group));
  return made;
}

std::string DeviceMesh::shards(const std::string& name, const Sizes& sizes,
                               const std::vector<Sizes>& begin,
                               const std::vector<std::int64_t>& on) const {
  const auto box = [&](const Sizes& low) {
    std::string text = "\"box\": [";
    for (std::size_t d = 0; d < sizes.size(); ++d)
      text += (d == 0 ? "[" : ", [") + std::to_string(low[d]) + ", " +
              std::to_string(low[d] + sizes[d]) + "]";
    return text + "]";
  };
  const std::string part = "{\"local\": " + quotedJson(name);
  if (on.empty() || static_cast<std::int64_t>(on.size()) == devices_) {
    std::vector<Sizes> steps(axes(), Sizes(sizes.size(), 0));
    for (std::size_t a = 0; a < axes(); ++a)
      if (sizes_[a] > 1)
        for (std::size_t d = 0; d < sizes.size(); ++d)
          steps[a][d] = begin[at(strides_[a])][d] - begin[0][d];
    bool affine = true;
    for (std::int64_t device = 0; device < devices_ && affine; ++device)
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        std::int64_t expected = begin[0][d];
        for (std::size_t a = 0; a < axes(); ++a) expected += coordinate(device, a) * steps[a][d];
        affine = affine && expected == begin[at(device)][d];
      }
    if (affine) {
      std::string text = "{" + box(begin[0]), moved;
      for (std::size_t a = 0; a < axes(); ++a)
        if (std::any_of(steps[a].begin(), steps[a].end(), [](std::int64_t s) { return s != 0; }))
          moved +=
              (moved.empty() ? "" : ", ") + quotedJson(axisName(a)) + ": " + listJson(steps[a]);
      if (!moved.empty()) text += ", \"step\": {" + moved + "}";
      return text + ", \"parts\": [" + part + "}]}";
    }
  }
  std::vector<std::int64_t> devices = on;
  if (devices.empty()) {
    devices.resize(at(devices_));
    std::iota(devices.begin(), devices.end(), 0);
  }
  std::vector<std::size_t> all(axes());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::string text;
  for (const std::int64_t device : devices)
    text += (text.empty() ? "" : ",\n   ") + ("{" + box(begin[at(device)])) + ", \"parts\": [" +
            part + ", \"at\": " + coordinatesOf(device, all) + "}]}";
  return text;
}

}  // namespace shardproof::hlo
