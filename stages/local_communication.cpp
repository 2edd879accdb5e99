// SPDX-License-Identifier: Apache-2.0
// Communication in the plan's side of a stage: a node of a member becomes one of all members'
// operands, found in their own programs, with weights along collapsed axes. Only a symmetric
// combination (a sum, a maximum) keeps the members of a collapsed axis interchangeable; any other
// needs all coordinates.
#include <algorithm>
#include <stdexcept>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "stages/local_slice.h"

namespace shardproof {

bool LocalSlice::share(LocalNode& made, const CommunicationSpec& spec, const Members& members,
                       std::vector<LocalInstance>& todo) {
  const bool scatters =
      spec.kind == Communication::kReduceScatter && (members.size() > 1 || !spec.sizes.empty());
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
    if (spec.sizes.empty()) made.communication = Communication::kPart;
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
  if (spec.kind == Communication::kPermute) {
    expandPermute(made, spec, todo);
    return;
  }
  if (!spec.sizes.empty()) {
    expandUneven(made, spec, todo);
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

void LocalSlice::expandUneven(LocalNode& made, const CommunicationSpec& spec,
                              std::vector<LocalInstance>& todo) {
  const Members& members = membersOf(made, spec);
  const std::int32_t place = placeIn(members, made.rank);
  const std::vector<ops::Window> windows = ops::windowsOf(spec, place);
  if (windows.empty() || ops::membersOf(spec) != static_cast<std::int64_t>(members.size()))
    throw Unsupported("a communication's sizes do not fit");  // the checks would have reported it
  made.communication = Communication::kNone;
  if (spec.kind == Communication::kReduceScatter) {
    if (!share(made, spec, members, todo))
      todo = {{made.program, combinedBy(made.node), made.rank, made.microbatch}};
    made.weight.clear();
    makeSlice(made, spec.dim, windows[0].begin, windows[0].begin + windows[0].size);
    return;
  }
  if (share(made, spec, members, todo)) return;  // of an all_gather, from who comes first
  for (const ops::Window& window : windows) {
    auto [from, node] = operandOf(made, spec, members.at(static_cast<std::size_t>(window.member)));
    if (window.size < ops::lengthGiven(spec, window.member)) {
      const LocalInstance piece{from.program,
                                TensorId(kPiece - static_cast<std::int32_t>(pieces_.size())),
                                from.rank, from.microbatch};
      pieces_.push_back({from, spec.dim, window.begin, window.begin + window.size, node});
      from = piece;
    }
    todo.push_back(from);
  }
  made.op = ops::Registry::instance().find("cat");
  made.attributes = std::make_shared<const Attributes>(
      Attributes{{"dim", Rational(spec.kind == Communication::kAllToAll ? spec.odim : spec.dim)}});
}

LocalNodeId LocalSlice::settlePiece(LocalId id, const LocalInstance& instance,
                                    std::vector<LocalInstance>& todo) {
  const Piece& piece = pieceOf(instance);
  const LocalNodeId made(localNodes_.size());
  producerOfId_[id] = made;
  LocalNode node;
  node.program = instance.program;
  node.node = piece.node;
  node.rank = instance.rank;
  node.microbatch = instance.microbatch;
  node.in.resize(1);
  node.out = {id};
  makeSlice(node, piece.dim, piece.begin, piece.end);
  todo = {piece.whole};
  localNodes_.push_back(std::move(node));
  finished_.push_back(0);
  presentSlots_.push_back({0});
  return made;
}

void LocalSlice::makeSlice(LocalNode& made, std::int32_t dim, std::int64_t begin,
                           std::int64_t end) {
  made.op = ops::Registry::instance().find("slice");
  made.attributes = std::make_shared<const Attributes>(
      Attributes{{"dim", Rational(dim)}, {"start", Rational(begin)}, {"stop", Rational(end)}});
}

std::int32_t LocalSlice::sourceOf(const CommunicationSpec& spec, Rank rank) const {
  for (const std::int32_t axis : spec.groupAxes) {
    if (cut_.symmetry.collapsed(axis)) throw NeedsRefinement(axis);
  }
  const std::int32_t place = placeIn(cut_.planIndex.groupOf(spec, rank), rank);
  for (const auto& [source, target] : spec.pairs) {
    if (target == place) return source;
  }
  return -1;
}

bool LocalSlice::receivesNothing(const Program& program, const Node& node, Rank rank) const {
  if (node.communication < 0) return false;
  const CommunicationSpec& spec = program.communications[node.communication];
  return spec.kind == Communication::kPermute && sourceOf(spec, rank) < 0;
}

void LocalSlice::expandPermute(LocalNode& made, const CommunicationSpec& spec,
                               std::vector<LocalInstance>& todo) {
  const auto source = static_cast<std::size_t>(sourceOf(spec, made.rank));
  const Rank from = cut_.planIndex.groupOf(spec, made.rank).at(source);
  made.communication = Communication::kBroadcast;
  addMembers(made, spec, *groups_.insert({from}).first, todo);
  made.weight = {1};
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
    todo.push_back(operandOf(made, spec, member).first);
    made.weight.push_back(weight);
  }
}

std::pair<LocalInstance, NodeId> LocalSlice::operandOf(const LocalNode& made,
                                                       const CommunicationSpec& spec,
                                                       Rank member) const {
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
  if (other.inCount == 0) throw Unsupported("a member of a communication has no operand");
  const Operand& operand = program.graph.in(other)[0];
  LocalInstance instance{p, operand.tensor, member, Microbatch::none()};
  // Also where what is sent is the same in all microbatches: the partner of another one may
  // send something else.
  if ((operand.microbatch.isOne() || other.microbatch.isOne()) &&
      cut_.symmetry.collapsed(kMicrobatchAxis))
    throw NeedsRefinement(kMicrobatchAxis);
  if (program.graph.tensors[operand.tensor].perMicrobatch)
    instance.microbatch = operand.microbatch.orElse(other.microbatch.at(made.microbatch));
  return {instance, partner};
}

}  // namespace shardproof
