// SPDX-License-Identifier: Apache-2.0
#include "ir/clone.h"

#include <iterator>
#include <utility>

#include "ir/local_parts.h"

namespace shardproof {

std::unique_ptr<Problem> cloneProblem(const Problem& problem) {
  auto copy = std::make_unique<Problem>();
  for (std::size_t i = 0; i < problem.names.size(); ++i)
    copy->names.intern(problem.names.text(NameId(static_cast<std::int64_t>(i))));
  copy->attributes = problem.attributes;
  copy->model = problem.model;
  copy->plan = problem.plan;
  copy->lineageAdded = problem.lineageAdded;
  return copy;
}

std::unique_ptr<Problem> withoutInferred(const Problem& problem) {
  auto copy = cloneProblem(problem);
  std::vector<LineageEntry> kept;
  std::vector<EntryId> placeOf;
  for (LineageEntry& entry : copy->plan.lineage) {
    placeOf.emplace_back(kept.size());
    if (!entry.inferred) kept.push_back(std::move(entry));
  }
  copy->plan.lineage = std::move(kept);
  for (EntryId& e : copy->plan.positioning) e = placeOf[e];
  // The nodes that take parts out stay: they are what they were, and no file has them.
  std::erase_if(copy->plan.placed,
                [&](const PlacedPart& p) { return problem.plan.lineage[p.entry].inferred; });
  for (PlacedPart& p : copy->plan.placed) p.entry = placeOf[p.entry];
  return copy;
}

// Entries that place the masks of dropout stay the last.
void addInferred(Problem& problem, std::vector<LineageEntry> entries,
                 std::vector<PlacedPart> placed) {
  auto& lineage = problem.plan.lineage;
  const std::size_t place = lineage.size() - problem.lineageAdded;
  for (LineageEntry& entry : entries) entry.inferred = true;
  for (EntryId& e : problem.plan.positioning)
    if (e.index() >= place) e = EntryId(e.index() + entries.size());
  lineage.insert(lineage.begin() + static_cast<std::ptrdiff_t>(place),
                 std::make_move_iterator(entries.begin()), std::make_move_iterator(entries.end()));
  const std::size_t first = problem.plan.placed.size();
  for (PlacedPart& p : placed) {
    p.entry = EntryId(p.entry.index() + place);
    problem.plan.placed.push_back(std::move(p));
  }
  ir::takeOutParts(problem, first);
}

}  // namespace shardproof
