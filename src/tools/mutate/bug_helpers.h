// SPDX-License-Identifier: Apache-2.0
// What the bugs have in common.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mutate/bug_lists.h"

namespace shardproof::mutate {

// Nodes on which an output depends, one for each line, for which `wanted` holds.
std::vector<NodeRef> liveLines(const PlanGraph& graph, const std::function<bool(NodeRef)>& wanted);

// Operand or result as a name; empty if absent.
std::string operand(const Json& node, std::size_t i);
std::string result(const Json& node, std::size_t i);
bool isAnyOf(const std::string& op, std::initializer_list<const char*> names);

// A collective whose members have something to tell each other: more than one, with different
// values.
bool mattersToMembers(const PlanGraph& graph, NodeRef ref);

// Whether ranks along the whole axis run this node, so that a group over the axis is complete.
bool hasMembersAlong(const PlanGraph& graph, NodeRef ref, const std::string& axis);

// The loss divided by the number of microbatches or ranks: a scalar over a constant, in the forward
// or in the backward pass.
bool isNormaliser(const PlanGraph& g, NodeRef r, bool backward);
// Times `factor`, divided by `divisor`: its constant, and for both passes its gradient's.
void scaleScalar(const PlanGraph& graph, NodeRef site, Editor& editor, std::int64_t factor,
                 std::int64_t divisor);
void scaleBothPasses(const PlanGraph& graph, NodeRef site, Editor& editor, std::int64_t divisor);

// Lets the readers of `from` read `to` in its place, in one program; touches them.
void rewire(Editor& editor, const std::vector<Editor::Handle>& readers, const std::string& from,
            const std::string& to);

// {"op": .., "in": .., "out": .., "attrs": ..}
Json makeNode(const std::string& op, const std::vector<std::string>& in,
              const std::vector<std::string>& out, Json attributes = nullptr);

}  // namespace shardproof::mutate
