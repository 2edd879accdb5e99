// SPDX-License-Identifier: Apache-2.0
#include "ir/input_sources.h"

#include <algorithm>
#include <string>

#include "ir/coordinates.h"
#include "shardproof/error.h"

namespace shardproof::ir {

namespace {

std::string pointerTo(std::uint32_t entry, std::uint32_t shard) {
  return "/lineage/" + std::to_string(entry) + "/shards/" + std::to_string(shard);
}

}  // namespace

InputSources::InputSources(const Problem& problem)
    : problem_(problem), sources_(problem.plan.programs.size()) {}

void InputSources::add(ProgramId program, TensorId tensor, std::size_t entry, std::size_t shard,
                       std::size_t part) {
  sources_[program].push_back({tensor, static_cast<std::uint32_t>(entry),
                               static_cast<std::uint32_t>(shard),
                               static_cast<std::uint32_t>(part)});
}

void InputSources::check() const {
  for (const std::vector<Source>& all : sources_) {
    std::vector<Source> sorted = all;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Source& a, const Source& b) { return a.tensor < b.tensor; });
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      for (std::size_t j = i + 1; j < sorted.size() && sorted[j].tensor == sorted[i].tensor; ++j)
        checkPair(sorted[i], sorted[j]);
    }
  }
}

void InputSources::checkPair(const Source& a, const Source& b) const {
  const Shard &first = shardOf(a), &second = shardOf(b);
  const Part &partA = first.parts[a.part], &partB = second.parts[b.part];
  if (!mayMeet(partA, partB)) return;
  if (partA.microbatch.isOne() && partB.microbatch.isOne() && partA.microbatch != partB.microbatch)
    return;
  const std::vector<LineageEntry>& lineage = problem_.plan.lineage;
  const bool sameSource = lineage[a.entry].tensor == lineage[b.entry].tensor &&
                          first.box == second.box && first.step == second.step &&
                          first.parts.size() == 1 && second.parts.size() == 1 &&
                          first.sum.empty() && second.sum.empty();
  if (sameSource) return;
  const bool input = lineage[a.entry].role == Role::kInput;
  throw InputError(problem_.plan.file, pointerTo(b.entry, b.shard),
                   "local tensor '" + problem_.names.text(partB.local) + "' already is the " +
                       (input ? "input" : "assumed") + " piece stated at " +
                       pointerTo(a.entry, a.shard) + "; expected one source for each " +
                       (input ? "local input" : "approved difference") +
                       ", because a second one would restrict the model's inputs");
}

}  // namespace shardproof::ir
