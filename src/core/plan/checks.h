// SPDX-License-Identifier: Apache-2.0
// Proofs that a plan can run at all, made before any solving (docs/design.md, "Index"):
// declared shapes, single assignment, every read produced, every member of a group joins exactly
// once, no cyclic wait. Each violation is a defect of the plan, hence a verdict.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shardproof/graph.h"
#include "shardproof/report.h"
#include "util/union_find.h"

namespace shardproof {

class PlanIndex;

// Of one kind: enough to see what is wrong; a plan with one wrong program may have thousands.
constexpr std::size_t kMostDefects = 50;

void checkPlanShapes(const PlanIndex& planIndex, std::vector<Defect>& defects);
void checkAssignments(const PlanIndex& planIndex, std::vector<Defect>& defects);
void checkCommunication(const PlanIndex& planIndex, std::vector<Defect>& defects);
// No rank waits for ever (deadlock.cpp says for what it may wait). In two steps: nodes (program,
// node) of which some instances may be on a cycle of waiting, where `components` numbers the nodes
// of all programs in one row and has united those that meet; then whether some instances are.
std::vector<std::pair<ProgramId, NodeId>> nodesThatMayWait(const PlanIndex& planIndex,
                                                           UnionFind<std::uint32_t>& components);
void checkDeadlock(const PlanIndex& planIndex,
                   const std::vector<std::pair<ProgramId, NodeId>>& nodes,
                   std::vector<Defect>& defects);

// An instance that waits for its own result; `microbatch` none: it runs once.
Defect dataCycle(const PlanIndex& planIndex, ProgramId program, NodeId node, Rank rank,
                 Microbatch microbatch);

}  // namespace shardproof
