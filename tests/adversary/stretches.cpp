// SPDX-License-Identifier: Apache-2.0
#include "adversary/stretches.h"

#include <algorithm>
#include <utility>

namespace shardproof::adversary {
namespace {

constexpr int kProgramCut = 60, kShardCut = 50;  // per cent of what could be cut

using Ends = std::pair<std::int64_t, std::int64_t>;

// Two or three stretches that are all of an axis.
std::vector<Ends> cut(std::int64_t size, Random& random) {
  std::vector<std::int64_t> edges{0, random.between(1, size - 1), size};
  if (random.chance(30)) edges.push_back(random.between(1, size - 1));
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<Ends> stretches;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) stretches.emplace_back(edges[i], edges[i + 1]);
  return stretches;
}

Json written(const Ends& ends, bool single) {
  if (single) return ends.first;
  return Json::array({ends.first, ends.second});
}

// The box at one coordinate of the axis, which is none of the shard's then.
void settle(Json& shard, const std::string& axis, std::int64_t coordinate) {
  if (!shard.contains("step") || !shard["step"].contains(axis)) return;
  const Json by = shard["step"][axis];
  shard["step"].erase(axis);
  for (std::size_t d = 0; d < by.size(); ++d)
    for (Json& end : shard["box"][d])
      end = end.get<std::int64_t>() + coordinate * by[d].get<std::int64_t>();
}

bool names(const Json& what, const std::string& axis) {
  return what.contains("at") && what["at"].contains(axis);
}

void cutPrograms(Json& plan, const std::string& axis, std::int64_t size, Random& random) {
  Json programs = Json::array();
  for (const Json& program : plan["programs"]) {
    if (names(program, axis) || !random.chance(kProgramCut)) {
      programs.push_back(program);
      continue;
    }
    for (const Ends& ends : cut(size, random)) {
      Json part = program;
      part["at"][axis] = written(ends, ends.second == ends.first + 1 && random.chance(50));
      programs.push_back(std::move(part));
    }
  }
  plan["programs"] = std::move(programs);
}

bool sums(const Json& shard, const std::string& axis) {
  const Json none = Json::array();
  const Json& sum = shard.contains("sum") ? shard["sum"] : none;
  return std::find(sum.begin(), sum.end(), axis) != sum.end();
}

// A shard whose parts do not name the axis is one for each stretch; where it sums over the axis,
// each part is.
void cutShards(Json& entry, const std::string& axis, std::int64_t size, Random& random) {
  Json shards = Json::array();
  for (const Json& shard : entry["shards"]) {
    const auto& parts = shard["parts"];
    if (std::any_of(
            parts.begin(), parts.end(),
            [&](const Json& part) { return names(part, axis) || part.contains("local_box"); }) ||
        !random.chance(kShardCut)) {
      shards.push_back(shard);
      continue;
    }
    const bool summed = sums(shard, axis);
    Json whole = shard;
    if (summed) whole["parts"] = Json::array();
    for (const Ends& ends : cut(size, random)) {
      Json own = shard;
      const bool single = !summed && ends.second == ends.first + 1 && random.chance(50);
      const Json at = written(ends, single);
      if (single) settle(own, axis, ends.first);
      for (Json& part : own["parts"]) part["at"][axis] = at;
      if (!summed) shards.push_back(std::move(own));
      else
        for (Json& part : own["parts"]) whole["parts"].push_back(std::move(part));
    }
    if (summed) shards.push_back(std::move(whole));
  }
  entry["shards"] = std::move(shards);
}

}  // namespace

void stretch(Case& made, Random& random) {
  Json& plan = made.plan;
  plan["version"] = 2;
  for (const Json& axis : plan["mesh"]) {
    const std::string name = axis[0];
    const std::int64_t size = axis[1];
    if (size < 2) continue;
    cutPrograms(plan, name, size, random);
    for (Json& entry : plan["lineage"]) cutShards(entry, name, size, random);
  }
}

std::string moveEnd(Case& made, Random& random) {
  Json& plan = made.plan;
  struct Named {
    Json* at;  // a stretch
    std::string of, axis;
    bool program;
  };
  std::vector<Named> found;
  const auto collect = [&](Json& what, const std::string& of, bool program) {
    if (!what.contains("at")) return;
    for (auto& [axis, at] : what["at"].items())
      if (at.is_array()) found.push_back({&at, of, axis, program});
  };
  for (Json& program : plan["programs"]) collect(program, "program", true);
  for (Json& entry : plan["lineage"])
    for (Json& shard : entry["shards"])
      for (Json& part : shard["parts"])
        collect(part, entry["role"].get<std::string>() + " " + entry["tensor"].get<std::string>(),
                false);
  if (found.empty()) return {};
  const Named& chosen = found[random.index(found.size())];
  const Ends before = *chosen.at;
  const bool low = random.chance(50);
  const std::int64_t end = low ? before.first : before.second;
  const std::int64_t by = random.pick({-1, 1});
  // Each rank runs one program: the neighbour follows.
  if (chosen.program) {
    for (Json& other : plan["programs"])
      if (names(other, chosen.axis) && other["at"][chosen.axis].is_array())
        for (Json& e : other["at"][chosen.axis])
          if (e == end) e = end + by;
  } else {
    (*chosen.at)[low ? 0 : 1] = end + by;
  }
  return chosen.of + " along " + chosen.axis + ": " + Json(before).dump() + " is " +
         chosen.at->dump();
}

}  // namespace shardproof::adversary
