// SPDX-License-Identifier: Apache-2.0
#include "ir/join_programs.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace shardproof::ir {

namespace {

bool sameConstants(const Graph& a, const Graph& b) {
  return std::equal(a.constants.begin(), a.constants.end(), b.constants.begin(), b.constants.end(),
                    [](const auto& x, const auto& y) { return x == y || *x == *y; });
}

bool sameGraph(const Graph& a, const Graph& b) {
  return a.nodes == b.nodes && a.operands == b.operands && a.results == b.results &&
         a.tensors == b.tensors && a.drawnMasks == b.drawnMasks &&
         a.tensorsAdded == b.tensorsAdded && sameConstants(a, b);
}

// In all but which ranks run them.
bool runTheSame(const Program& a, const Program& b) {
  return a.within == b.within && sameGraph(a.graph, b.graph) &&
         a.communications == b.communications && a.steps == b.steps && a.added == b.added &&
         a.issueOrder == b.issueOrder && a.asynchrony == b.asynchrony;
}

// Equal for programs that run the same.
std::size_t fingerprint(const Program& program) {
  std::uint64_t h = program.graph.tensors.size();
  const auto mix = [&](std::uint64_t x) { h = (h ^ x) * 0x9e3779b97f4a7c15ULL + (h >> 29); };
  for (const Node& node : program.graph.nodes) {
    mix(static_cast<std::uint64_t>(node.op.value));
    mix(static_cast<std::uint64_t>(node.attributes.value));
    mix(node.microbatch.hash());
  }
  for (const Operand& o : program.graph.operands) mix(static_cast<std::uint64_t>(o.tensor.value));
  for (const Tensor& t : program.graph.tensors) mix(static_cast<std::uint64_t>(t.name.value));
  return h;
}

using Ranks = std::map<Coordinates, std::size_t>;  // and the place of the program that they run

// Of programs that run the same: those whose coordinates make up the axis become one, which has the
// place of the first. Whether there were any.
bool joinAlong(std::int32_t axis, std::int32_t size, Ranks& ranks) {
  std::map<Coordinates, std::vector<Coordinates>> byOthers;
  for (const auto& [at, place] : ranks) {
    Coordinates others = at;
    if (std::erase_if(others, [&](const auto& c) { return c.first == axis; }) > 0)
      byOthers[std::move(others)].push_back(at);
  }
  bool any = false;
  for (const auto& [others, all] : byOthers) {
    if (all.size() != static_cast<std::size_t>(size)) continue;
    std::size_t first = ranks.at(all.front());
    for (const Coordinates& at : all) {
      first = std::min(first, ranks.at(at));
      ranks.erase(at);
    }
    ranks.emplace(others, first);
    any = true;
  }
  return any;
}

}  // namespace

void joinEqualPrograms(Plan& plan) {
  std::vector<Program>& programs = plan.programs;
  if (programs.size() < 2) return;
  std::vector<Ranks> alike;  // of programs that run the same
  std::unordered_map<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>> seen;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    auto& candidates = seen[fingerprint(programs[p])];
    const auto same = std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) {
      return runTheSame(programs[c.first], programs[p]);
    });
    const std::size_t kind = same != candidates.end() ? same->second : alike.size();
    if (same == candidates.end()) {
      candidates.emplace_back(p, kind);
      alike.emplace_back();
    }
    alike[kind].emplace(programs[p].at, p);
  }
  if (alike.size() == programs.size()) return;
  std::map<std::size_t, Coordinates> left;  // programs that stay, in their order
  for (Ranks& ranks : alike) {
    bool again = ranks.size() > 1;
    while (again) {
      again = false;
      for (std::size_t axis = 0; axis < plan.mesh.size(); ++axis)
        again |= joinAlong(static_cast<std::int32_t>(axis), plan.mesh[axis].size, ranks);
    }
    for (const auto& [at, place] : ranks) left.emplace(place, at);
  }
  if (left.size() == programs.size()) return;
  std::vector<Program> joined;
  for (const auto& [place, at] : left) {
    Program& program = programs[place];
    if (!program.inFile.valid()) program.inFile = ProgramId(place);
    program.at = at;
    joined.push_back(std::move(program));
  }
  programs = std::move(joined);
}

}  // namespace shardproof::ir
