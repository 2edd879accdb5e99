// SPDX-License-Identifier: Apache-2.0
#include "plan/uneven_pieces.h"

#include <algorithm>
#include <vector>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "plan/plan_index.h"
#include "shardproof/error.h"
#include "util/shapes.h"

namespace shardproof {

bool lengthsDiffer(const CommunicationSpec& spec) {
  return !spec.sizes.empty() && !ops::collectiveOf(spec.kind).reduces;
}

std::string wrongPieces(const PlanIndex& planIndex, Rank rank, const Node& node,
                        Microbatch microbatch) {
  const Problem& problem = planIndex.problem();
  const auto graphOf = [&](Rank r) -> const Graph& {
    return problem.plan.programs[planIndex.programOf(r)].graph;
  };
  const CommunicationSpec& spec =
      problem.plan.programs[planIndex.programOf(rank)].communications[node.communication];
  const std::vector<Rank> group = planIndex.groupOf(spec, rank);
  if (ops::membersOf(spec) != static_cast<std::int64_t>(group.size()))
    return "has sizes for " + std::to_string(ops::membersOf(spec)) +
           " members, but its group has " + std::to_string(group.size());
  const auto place = std::find(group.begin(), group.end(), rank) - group.begin();
  const auto misses = [](const char* what) {
    return std::string("has no ") + what + ", but by the sizes a piece that is not empty";
  };
  const auto exceeds = [](const char* what) {
    return std::string("has ") + what + ", but by the sizes only empty pieces";
  };
  const std::int64_t given = ops::lengthGiven(spec, place);
  if (given > 0 && node.inCount == 0) return misses("operand");
  if (given == 0 && node.inCount > 0) return exceeds("an operand");
  const bool gets = !ops::windowsOf(spec, place).empty();
  if (gets && node.outCount == 0) return misses("result");
  if (!gets && node.outCount > 0) return exceeds("a result");
  const Graph& graph = graphOf(rank);
  std::vector<const Shape*> operands;
  for (const Rank member : group) {
    const auto found = planIndex.partners(member, spec, microbatch, rank);
    const Graph& other = graphOf(member);
    const Node& theirs = member == rank ? node : other.nodes[found.at(0)];
    const auto in = other.in(theirs);
    operands.push_back(in.empty() ? nullptr : &other.tensors[in[0].tensor].shape);
  }
  try {
    if (node.inCount > 0) ops::checkGiven(spec, *operands[place], place);
    if (!gets) return "";
    const Shape shape = ops::unevenShape(spec, operands, place);
    const Tensor& result = graph.tensors[graph.out(node)[0]];
    if (shape != result.shape)
      return "result '" + problem.names.text(result.name) + "' is declared with shape " +
             ops::toText(result.shape) + ", but the operator produces " + ops::toText(shape);
    if (node.inCount > 0 && graph.tensors[graph.in(node)[0].tensor].element != result.element)
      return "result '" + problem.names.text(result.name) +
             "' is declared with another kind of element (integer, real or complex) than the "
             "operand";
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "";
}

}  // namespace shardproof
