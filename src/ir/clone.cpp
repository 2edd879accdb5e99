#include "ir/clone.h"

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

}  // namespace shardproof
