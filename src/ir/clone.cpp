#include "ir/clone.h"

#include <iterator>
#include <utility>

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
  return copy;
}

// Entries that place the masks of dropout stay the last.
void addInferred(Problem& problem, std::vector<LineageEntry> entries) {
  auto& lineage = problem.plan.lineage;
  const std::size_t place = lineage.size() - problem.lineageAdded;
  for (LineageEntry& entry : entries) entry.inferred = true;
  for (EntryId& e : problem.plan.positioning)
    if (e.index() >= place) e = EntryId(e.index() + entries.size());
  lineage.insert(lineage.begin() + static_cast<std::ptrdiff_t>(place),
                 std::make_move_iterator(entries.begin()), std::make_move_iterator(entries.end()));
}

}  // namespace shardproof
