// Proofs that a plan can run at all, made before any solving (docs/design.md, "Join"): declared shapes, single assignment, every read
// produced, every member of a group joins exactly once, no cyclic wait. Each violation is a defect of the plan, hence a verdict.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

class Join;

void checkPlanShapes(const Join& join, std::vector<Defect>& defects);
void checkAssignments(const Join& join, std::vector<Defect>& defects);
void checkCommunication(const Join& join, std::vector<Defect>& defects);
// Every rank runs its program in issue order and waits at each communication until all members arrive.
void checkDeadlock(const Join& join, std::vector<Defect>& defects);

// No instance of these nodes (program, node) waits for its own result; others are not in the way.
void checkDataCycles(const Join& join, const std::vector<std::pair<std::int32_t, std::int32_t>>& nodes, std::vector<Defect>& defects);

// An instance that does; `microbatch` -1: it runs once.
Defect dataCycle(const Join& join, std::int32_t program, std::int32_t node, std::int64_t rank, Microbatch microbatch);

// The result's shape of a communication node; throws ShapeError. `groupSize` is the number of members.
Shape communicationShape(const CommunicationSpec& spec, const Shape& in, std::int64_t groupSize);

}  // namespace shardproof
