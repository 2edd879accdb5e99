// SPDX-License-Identifier: Apache-2.0
#include "diagnose/image.h"

#include <algorithm>
#include <map>
#include <set>

#include "executor/interpret.h"
#include "plan/mesh.h"
#include "shardproof/infer.h"

namespace shardproof::diagnose {

namespace {

// Of all ranks: below, the plan itself is looked at.
constexpr executor::Cost kOfFull{.bytes = 3e8, .flops = 3e8};

bool isDear(const Problem& problem) { return !executor::costsAtMost(problem, kOfFull); }

}  // namespace

Image::Image(const Problem& full) : full_(full) { takeOrder(); }

Image::Image(const Problem& full, double seconds) : full_(full) {
  if (isDear(full)) {
    ShrinkOptions options;
    options.seconds = seconds;
    shrunk_ = shrinkProblem(full, options);
    inferHere();
  }
  takeOrder();
}

Image::Image(const Problem& full, EntryId entry, double seconds)
    : full_(full), excerpt_(excerptOf(full, entry)) {
  if (isDear(*excerpt_->problem)) {
    ShrinkOptions options;
    options.seconds = seconds;
    shrunk_ = shrinkProblem(*excerpt_->problem, options);
    excerpt_->problem.reset();
  } else {
    const Plan& plan = excerpt_->problem->plan;
    for (const EntryId e : firstIds<EntryId>(plan.lineage.size())) shrunk_.entryOf.push_back(e);
    for (const ProgramId p : firstIds<ProgramId>(plan.programs.size()))
      shrunk_.programOf.push_back(p);
    for (const MeshAxis& axis : plan.mesh)
      for (std::int32_t c = (shrunk_.coordinatesOf.emplace_back(), 0); c < axis.size; ++c)
        shrunk_.coordinatesOf.back().push_back(c);
    for (std::int32_t m = 0; m < plan.microbatches; ++m) shrunk_.microbatchOf.push_back(m);
    shrunk_.problem = std::move(excerpt_->problem);
  }
  takeOrder();
}

NodeRef Image::fullNode(NodeRef here) const {
  if (!here.program.valid())
    return {here.program, excerpt_ ? excerpt_->modelNodeOf[here.node.index()] : here.node};
  const ProgramId program = fullProgram(here.program);
  NodeId node = here.node;
  if (!isFull() && !shrunk_.nodeOf.empty())
    node = shrunk_.nodeOf[here.program.index()][node.index()];
  return {program, excerpt_ ? excerpt_->nodeOf[program.index()][node.index()] : node};
}

void Image::takeOrder() {
  const PlanIndex planIndex(problem());
  for (std::size_t e = 0; e < problem().plan.lineage.size(); ++e)
    order_.emplace_back(planIndex.entryKey(EntryId(e)), e);
}

// What was inferred of the full plan is not in the smaller one: it is inferred there anew, and what
// says the same of the same tensors is the same entry.
void Image::inferHere() {
  const auto& lineage = full_.plan.lineage;
  if (std::none_of(lineage.begin(), lineage.end(),
                   [](const LineageEntry& entry) { return entry.inferred; }))
    return;
  InferOptions options;
  options.parts = InferParts::kNone;
  Inferred found = inferLineage(*shrunk_.problem, options);
  if (!found.problem) return;
  shrunk_.problem = std::move(found.problem);
  const auto keyOf = [&](const Problem& of, const LineageEntry& entry) {
    const Part& part = entry.shards.front().parts.front();
    std::string key =
        of.names.text(of.model.graph.tensors[entry.tensor].name) + '\0' + of.names.text(part.local);
    for (const auto& [axis, c] : part.at)
      key += '\0' + std::to_string(axis) + '=' +
             std::to_string(&of == &full_ ? c
                                          : shrunk_.coordinatesOf[static_cast<std::size_t>(axis)]
                                                                 [static_cast<std::size_t>(c)]);
    return key;
  };
  std::map<std::string, std::int32_t> here;
  const auto& own = shrunk_.problem->plan.lineage;
  for (std::size_t e = 0; e < own.size(); ++e)
    if (own[e].inferred)
      here.emplace(keyOf(*shrunk_.problem, own[e]), static_cast<std::int32_t>(e));
  for (std::size_t e = 0; e < lineage.size(); ++e) {
    if (!lineage[e].inferred) continue;
    const auto it = here.find(keyOf(full_, lineage[e]));
    if (it != here.end()) inferredHere_.emplace(static_cast<std::int32_t>(e), it->second);
  }
}

std::int32_t Image::entryHere(std::int32_t fullEntry) const {
  if (isFull()) return fullEntry;
  if (const auto it = inferredHere_.find(fullEntry); it != inferredHere_.end()) return it->second;
  const auto it = std::find_if(shrunk_.entryOf.begin(), shrunk_.entryOf.end(), [&](EntryId e) {
    return e.valid() && (excerpt_ ? excerpt_->entryOf[e.index()] : e) == fullEntry;
  });
  return it == shrunk_.entryOf.end() ? -1 : static_cast<std::int32_t>(it - shrunk_.entryOf.begin());
}

std::int64_t Image::fullMicrobatch(std::int64_t here) const {
  return isFull() ? here : shrunk_.microbatchOf[here];
}

std::vector<std::int64_t> Image::fullMicrobatches(const std::set<std::int64_t>& here) const {
  std::vector<std::int64_t> full;
  if (here.size() == static_cast<std::size_t>(problem().plan.microbatches)) {
    for (std::int64_t m = 0; m < full_.plan.microbatches; ++m) full.push_back(m);
    return full;
  }
  for (const std::int64_t m : here) full.push_back(fullMicrobatch(m));
  return full;
}

std::vector<Rank> Image::fullRanks(const std::vector<Rank>& here) const {
  if (isFull()) return here;
  const MeshView small(problem().plan.mesh), large(full_.plan.mesh);
  const std::set<Rank> given(here.begin(), here.end());
  std::set<Rank> ranks;
  for (const Rank r : given) {
    std::vector<Rank> found{Rank(0)};
    for (std::int32_t a = 0; a < small.axes(); ++a) {
      bool all = true;
      for (std::int32_t c = 0; c < small.size(a); ++c)
        all = all && given.contains(small.with(r, a, c));
      const auto& kept = shrunk_.coordinatesOf[a];
      const std::int32_t own = small.coordinate(r, a);
      const bool stayed = all && own == 0;  // the first of them brings those that went
      std::vector<Rank> wider;
      for (const Rank f : found) {
        for (std::int32_t c = 0; c < large.size(a); ++c) {
          const bool went = std::find(kept.begin(), kept.end(), c) == kept.end();
          if (c == kept[own] || (stayed && went)) wider.push_back(large.with(f, a, c));
        }
      }
      found = std::move(wider);
    }
    ranks.insert(found.begin(), found.end());
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace shardproof::diagnose
