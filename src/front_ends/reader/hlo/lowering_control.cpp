// SPDX-License-Identifier: Apache-2.0
// Loops, which are run, and branches, of which one is chosen.
#include <algorithm>
#include <utility>

#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

constexpr std::int64_t kMostTurns = 4096;  // of a loop

}  // namespace

// The loop is run: how often it turns must not depend on the input.
Value Lowering::lowerWhile(Frame& frame, const Instruction& i) {
  const Computation &condition = called(i, "condition"), &body = called(i, "body");
  Value state = operand(frame, i, 0);
  const Metadata metadata = parseMetadata(module_, i, file_);
  for (std::int64_t turn = 0;; ++turn) {
    const std::string path = frame.path + i.name + "[" + std::to_string(turn) + "]/";
    const Value more =
        own(lowerComputation(condition, {state}, path + "condition/", frame.operation));
    if (!more.isUniform() || !shared_.scalars.isRational(more.table->values[0]))
      unsupported(i, "how often the loop turns depends on the input");
    if (shared_.scalars.is(more.table->values[0], 0)) return state;
    if (turn == kMostTurns)
      unsupported(i, "a loop of more than " + std::to_string(kMostTurns) + " turns");
    state = lowerComputation(body, {state}, path, frame.operation);
  }
}

Value Lowering::lowerConditional(Frame& frame, const Instruction& i) {
  const Value which = own(operand(frame, i, 0));
  std::vector<std::string> branches;
  if (const Attribute* a = i.attribute("branch_computations")) {
    Cursor c(a->value, file_, a->place);
    c.take("{");
    do branches.push_back(c.name("a computation"));
    while (c.tryTake(","));
    c.take("}");
  } else {
    branches = {called(i, "false_computation").name, called(i, "true_computation").name};
  }
  if (!which.isUniform() || !shared_.scalars.isRational(which.table->values[0]))
    return lowerBranches(frame, i, which, branches);
  const Rational& value = shared_.scalars.value(which.table->values[0]);
  // Out of range is the last branch.
  const auto last = static_cast<std::int64_t>(branches.size()) - 1;
  std::int64_t taken = value.fitsInt64() ? value.toInt64() : last;
  if (taken < 0 || taken > last) taken = last;
  // Of two branches the operand of the true one stands first.
  const bool named = i.attribute("branch_computations") == nullptr;
  const std::size_t k = static_cast<std::size_t>(named ? 2 - taken : taken + 1);
  const auto found = module_.byName.find(branches[static_cast<std::size_t>(taken)]);
  if (found == module_.byName.end()) unsupported(i, "a branch that is no computation");
  return lowerComputation(module_.computations[found->second], {operand(frame, i, k)},
                          frame.path + i.name + "/", frame.operation);
}

// All branches are computed and one is chosen, element by element: where it is, the others must
// have values, too.
Value Lowering::lowerBranches(Frame& frame, const Instruction& i, const Value& which,
                              const std::vector<std::string>& branches) {
  const bool named = i.attribute("branch_computations") == nullptr;
  const auto communications = [&] {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                         [](const GraphNode& n) { return !n.communication.empty(); });
  };
  const auto before = communications();
  std::vector<Value> made;
  for (std::size_t b = 0; b < branches.size(); ++b) {
    const auto found = module_.byName.find(branches[b]);
    if (found == module_.byName.end()) unsupported(i, "a branch that is no computation");
    made.push_back(lowerComputation(
        module_.computations[found->second], {operand(frame, i, named ? 2 - b : b + 1)},
        frame.path + i.name + "/" + std::to_string(b) + "/", frame.operation));
  }
  // Each device computes both branches, so the members of a group have to take the same one.
  if (communications() != before && !isSameOnAll(which, frame.path + i.name))
    unsupported(i,
                "communication in a branch that depends on the input, and not on all devices in "
                "the same way");
  graph.begin(path_, graph.location());
  Value result = made.back();
  Instruction scalar = i;
  scalar.shape = {"pred", {}, {}, false};
  for (std::size_t b = made.size() - 1; b-- > 0;) {
    // Of a condition, false is the first branch.
    const Value number = tableValue(
        which.shape, uniformTable({}, shared_.scalars.rational(static_cast<std::int64_t>(b))));
    const Value chosen = elementwise(scalar, "compare", "EQ", {which, number});
    result = selected(i, chosen, made[b], result);
  }
  return result;
}

Value Lowering::selected(const Instruction& i, const Value& condition, const Value& first,
                         const Value& second) {
  const Value yes = own(first), no = own(second);
  if (yes.shape.tuple) {
    std::vector<Value> elements;
    for (std::size_t k = 0; k < yes.elements.size(); ++k)
      elements.push_back(selected(i, condition, yes.elements[k], no.elements.at(k)));
    return tupleValue(yes.shape, std::move(elements));
  }
  Instruction element = i;
  element.shape = yes.shape;
  Shape wide = yes.shape;
  wide.type = "pred";
  return elementwise(element, "select", {}, {broadcastValue(condition, wide, {}), yes, no});
}

}  // namespace shardproof::hlo
