// Communication in the plan's side of a stage: a node of a member becomes one of all members'
// operands, found in their own programs, with weights along collapsed axes. Only a symmetric
// combination (a sum, a maximum) keeps the members of a collapsed axis interchangeable; any other
// needs all coordinates.
#include <algorithm>
#include <stdexcept>

#include "shardproof/error.h"
#include "stages/local_slice.h"

namespace shardproof {

bool LocalSlice::share(LocalNode& made, const CommunicationSpec& spec, const Members& members,
                       std::vector<LocalInstance>& todo) {
  const bool scatters = spec.kind == Communication::kReduceScatter && members.size() > 1;
  if (!scatters && spec.kind != Communication::kAllReduce && spec.kind != Communication::kAllGather)
    return false;
  const RendezvousKey key{spec.comm, spec.kind, &members,
                          spec.tag ? Microbatch::none() : made.microbatch, spec.tag};
  const auto [it, first] = firstOfRendezvous_.emplace(key, LocalNodeId(localNodes_.size()));
  if (first && !scatters) return false;
  const LocalNode& other = first ? made : localNodes_[it->second];
  if (!first && cut_.planIndex.partners(other.rank, spec, made.microbatch, made.rank) !=
                    std::vector{other.node})
    return false;
  if (scatters) {
    if (other.microbatch != made.microbatch) return false;
    todo.push_back({other.program, combinedBy(other.node), other.rank, other.microbatch});
    made.member = placeIn(members, made.rank);
    made.communication = Communication::kPart;
  } else {
    const Graph& graph = cut_.plan.programs[other.program].graph;
    const TensorId result = graph.out(graph.nodes[other.node])[0];
    if (result < 0) return false;
    const bool perMicrobatch = graph.tensors[result].perMicrobatch;
    todo.push_back(
        {other.program, result, other.rank, perMicrobatch ? other.microbatch : Microbatch::none()});
    made.communication = Communication::kBroadcast;
  }
  made.weight.push_back(1);
  return true;
}

std::int32_t LocalSlice::placeIn(const Members& members, Rank rank) {
  const auto it = std::find(members.begin(), members.end(), rank);
  return it == members.end() ? 0 : static_cast<std::int32_t>(it - members.begin());
}

void LocalSlice::expandCommunication(LocalNode& made, const Node& node,
                                     std::vector<LocalInstance>& todo) {
  const CommunicationSpec& spec =
      cut_.plan.programs[made.program].communications[node.communication];
  made.communication = spec.kind;
  if (spec.kind == Communication::kScatter) {
    expandScatter(made, spec, todo);
    return;
  }
  if (spec.kind == Communication::kReduce) made.communication = Communication::kAllReduce;
  if (spec.kind == Communication::kGather) made.communication = Communication::kAllGather;
  const Members& members = membersOf(made, spec);
  if (!share(made, spec, members, todo)) addMembers(made, spec, members, todo);
}

void LocalSlice::expandScatter(LocalNode& made, const CommunicationSpec& spec,
                               std::vector<LocalInstance>& todo) {
  for (const std::int32_t axis : spec.groupAxes) {
    if (cut_.symmetry.collapsed(axis)) throw NeedsRefinement(axis);
  }
  made.communication = Communication::kPart;
  addMembers(made, spec, *groups_.insert({cut_.mesh.with(made.rank, spec.peer)}).first, todo);
  made.weight = {1};
  made.member = placeIn(cut_.planIndex.groupOf(spec, made.rank), made.rank);
}

const LocalSlice::Members& LocalSlice::membersOf(const LocalNode& made,
                                                 const CommunicationSpec& spec) {
  if (spec.kind == Communication::kReceive || spec.kind == Communication::kBroadcast)
    return *groups_.insert({cut_.mesh.with(made.rank, spec.peer)}).first;
  if (!spec.groupAt.empty()) return *groups_.insert(cut_.planIndex.groupOf(spec, made.rank)).first;
  // Only a symmetric combination keeps the members of a collapsed axis interchangeable.
  for (const std::int32_t axis : spec.groupAxes) {
    if (cut_.symmetry.collapsed(axis) && spec.kind != Communication::kAllReduce)
      throw NeedsRefinement(axis);
  }
  Rank origin = made.rank;
  for (const std::int32_t axis : spec.groupAxes) origin = cut_.mesh.with(origin, axis, 0);
  const Members*& known = groupsOfAxes_[{spec.groupAxes, origin}];  // once for all of them
  if (known) return *known;
  Members members{origin};
  for (const std::int32_t axis : spec.groupAxes) {
    Members wider;
    for (const Rank member : members) {
      for (const std::int32_t c : cut_.symmetry.of(axis).all)
        wider.push_back(cut_.mesh.with(member, axis, c));
    }
    members = std::move(wider);
  }
  std::sort(members.begin(), members.end());
  known = &*groups_.insert(std::move(members)).first;
  return *known;
}

void LocalSlice::addMembers(LocalNode& made, const CommunicationSpec& spec, const Members& members,
                            std::vector<LocalInstance>& todo) const {
  made.member = placeIn(members, made.rank);
  for (const Rank member : members) {
    std::int64_t weight = 1;
    if (spec.groupAt.empty()) {
      for (const std::int32_t axis : spec.groupAxes)
        weight *= cut_.symmetry.of(axis).weight(cut_.mesh.coordinate(member, axis));
    }
    const ProgramId p = cut_.planIndex.programOf(member);
    const Program& program = cut_.plan.programs[p];
    NodeId partner = made.node;
    if (member != made.rank) {
      const auto found = cut_.planIndex.partners(member, spec, made.microbatch, made.rank);
      if (found.size() != 1)
        throw Unsupported("a communication has no single partner");  // the checks of the plan
                                                                     // would have reported it
      partner = found[0];
    }
    const Node& other = program.graph.nodes[partner];
    const Operand& operand = program.graph.in(other)[0];
    LocalInstance instance{p, operand.tensor, member, Microbatch::none()};
    // Also where what is sent is the same in all microbatches: the partner of another one may
    // send something else.
    if ((operand.microbatch.isOne() || other.microbatch.isOne()) &&
        cut_.symmetry.collapsed(kMicrobatchAxis))
      throw NeedsRefinement(kMicrobatchAxis);
    if (program.graph.tensors[operand.tensor].perMicrobatch) {
      instance.microbatch = operand.microbatch.orElse(other.microbatch.at(made.microbatch));
    }
    todo.push_back(instance);
    made.weight.push_back(weight);
  }
}

}  // namespace shardproof
