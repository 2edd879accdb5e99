// SPDX-License-Identifier: Apache-2.0
// The plan's side of a stage: from the claims' local tensors backward, through the nodes that make
// them on each rank, until lineage that the stage may assume, an input, a constant, or a tensor of
// which only the shape matters. It is complete: whatever a claim depends on is in it (docs/
// soundness.md, "Slicing"). Communication is made of its members' operands
// (local_communication.cpp). Internal to stages/.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stages/cut_context.h"
#include "stages/shard_equations.h"

namespace shardproof {

// Of a cut: local tensors (instances), and instances of program nodes.
using LocalId = Id<struct LocalTag>;
using LocalNodeId = Id<struct LocalNodeTag>;

struct InstanceHash {
  std::size_t operator()(const LocalInstance& i) const noexcept;
};

// One equation of a lineage entry, with the local tensors that it is about.
struct BoundEquation {
  EntryId entry;
  std::int32_t shard;
  ShardEquations::ShardInstances instances;
  std::vector<LocalId> ids;
};

class LocalSlice {
 public:
  struct LocalNode {
    ProgramId program;
    NodeId node;
    Rank rank;
    Microbatch microbatch;
    std::vector<LocalId> in, out;
    std::vector<std::int64_t> weight;
    std::int32_t member = 0;
    Communication communication = Communication::kNone;  // what it is in the stage
    // Where it is an operator in the stage although it is a communication of the plan.
    OperatorId op;
    std::shared_ptr<const Attributes> attributes;
  };

  // Throws Unsupported where it grows beyond CutOptions::maxNodes, CyclicWait, NeedsRefinement.
  explicit LocalSlice(const CutContext& cut);

  const std::vector<BoundEquation>& claims() const { return claims_; }
  const std::vector<BoundEquation>& assumptions() const { return bound_; }
  const std::vector<LocalNodeId>& order() const { return order_; }  // of execution
  const LocalNode& node(LocalNodeId n) const { return localNodes_[n]; }
  const LocalInstance& instance(LocalId id) const { return instances_[id]; }
  Origin origin(LocalId id) const { return origins_[id]; }
  // None: the slice does not meet it.
  LocalId find(const LocalInstance& instance) const;
  // The tensor of the plan that a local tensor is, or is made of in a communication.
  TensorId shapedLike(const LocalInstance& instance) const;
  // Its shape: that tensor's, or of a piece of it the piece's.
  Shape shapeOf(const LocalInstance& instance) const;

 private:
  using Members = std::vector<Rank>;
  struct NodeKey {
    ProgramId program;
    NodeId node;
    Rank rank;
    Microbatch microbatch;
    friend bool operator==(const NodeKey&, const NodeKey&) = default;
  };
  struct NodeKeyHash {
    std::size_t operator()(const NodeKey& k) const noexcept {
      return InstanceHash()(LocalInstance{k.program, TensorId(k.node.value), k.rank, k.microbatch});
    }
  };
  // One equation: its shard at the coordinates of its own axes.
  struct EquationKey {
    EntryId entry;
    std::int32_t shard;
    Rank rank;
    Microbatch microbatch;
    friend auto operator<=>(const EquationKey&, const EquationKey&) = default;
  };
  struct RendezvousKey {
    NameId comm;
    Communication kind;
    const Members* members;  // one for each list of ranks: groups_
    Microbatch microbatch;
    std::optional<std::int64_t> tag;
    friend auto operator<=>(const RendezvousKey&, const RendezvousKey&) = default;
  };

  // [begin, end) of a tensor along one dimension, as an uneven all_to_all sends it.
  struct Piece {
    LocalInstance whole;
    std::int32_t dim = 0;
    std::int64_t begin = 0, end = 0;
    NodeId node;  // of the member that gives it, for messages
  };

  LocalId idOf(const LocalInstance& instance, bool& fresh);

  // Depth first without recursion: a stage may span thousands of operators.
  LocalId visit(const LocalInstance& start);
  [[noreturn]] void throwCycle(LocalNodeId node) const;
  // Operand slot of the k-th present operand of a node.
  std::size_t slot(LocalNodeId node, std::size_t k) const;

  // LocalInstance::tensor of what the members of a reduce_scatter add up, before each takes its
  // part: this minus the node of the member that stands in the instance. No tensor of the plan; it
  // has the shape of that node's operand.
  static constexpr std::int32_t kCombined = -2;
  static TensorId combinedBy(NodeId node) { return TensorId(kCombined - node); }
  static bool isCombined(const LocalInstance& instance) {
    return instance.tensor <= kCombined && !isPiece(instance);
  }
  static NodeId combiningNode(const LocalInstance& instance) {
    return NodeId(kCombined - instance.tensor);
  }

  // LocalInstance::tensor of a piece that one member sends to another: this minus its place in
  // `pieces_`. No tensor of the plan, either.
  static constexpr std::int32_t kPiece = std::numeric_limits<std::int32_t>::min() / 2;
  static bool isPiece(const LocalInstance& instance) { return instance.tensor <= kPiece; }
  const Piece& pieceOf(const LocalInstance& instance) const {
    return pieces_[static_cast<std::size_t>(kPiece - instance.tensor)];
  }

  // Decides what a local tensor is. Returns its producing node (new or known to be new) when the
  // slice goes on through it, else none.
  LocalNodeId settle(LocalId id, std::vector<LocalInstance>& todo);

  // The sum (mean, maximum, minimum) of the members' operands, from which each takes its part.
  Microbatch named(Microbatch microbatch) const;
  LocalNodeId settleCombined(LocalId id, const LocalInstance& instance,
                             std::vector<LocalInstance>& todo);

  // A piece of an operand, which a `slice` makes.
  LocalNodeId settlePiece(LocalId id, const LocalInstance& instance,
                          std::vector<LocalInstance>& todo);
  void makeSlice(LocalNode& made, std::int32_t dim, std::int64_t begin, std::int64_t end);

  // What the members of a collective have in common is computed once in a stage: the result of an
  // all_reduce or all_gather by the member that comes first, from which the others receive it, and
  // what a reduce_scatter adds up. The members were found to agree on group, order, reduction and
  // dimension before anything was cut. So of n members n operands are visited, not n times n.
  bool share(LocalNode& made, const CommunicationSpec& spec, const Members& members,
             std::vector<LocalInstance>& todo);

  // 0 for who is no member: the receiver of a message or a broadcast.
  static std::int32_t placeIn(const Members& members, Rank rank);

  void expandCommunication(LocalNode& made, const Node& node, std::vector<LocalInstance>& todo);

  // A member's own piece of the root's operand.
  void expandScatter(LocalNode& made, const CommunicationSpec& spec,
                     std::vector<LocalInstance>& todo);

  // A result that is put together of uneven pieces: a `cat` of what the members send, or a `slice`
  // of what they have added up. docs/soundness.md, "Slicing".
  void expandUneven(LocalNode& made, const CommunicationSpec& spec,
                    std::vector<LocalInstance>& todo);

  // What a collective_permute's source gives. Not for a member that is no target.
  void expandPermute(LocalNode& made, const CommunicationSpec& spec,
                     std::vector<LocalInstance>& todo);
  // The place in the group of who sends to `rank` in a collective_permute; -1: nobody. Throws
  // NeedsRefinement where members are not told apart.
  std::int32_t sourceOf(const CommunicationSpec& spec, Rank rank) const;
  bool receivesNothing(const Program& program, const Node& node, Rank rank) const;

  // In group order; of a message or a broadcast the rank that it comes from. Equal lists are one
  // object.
  const Members& membersOf(const LocalNode& made, const CommunicationSpec& spec);

  void addMembers(LocalNode& made, const CommunicationSpec& spec, const Members& members,
                  std::vector<LocalInstance>& todo) const;
  // What a member gives to the communication of `made`, and by which node.
  std::pair<LocalInstance, NodeId> operandOf(const LocalNode& made, const CommunicationSpec& spec,
                                             Rank member) const;

  // Binds a local tensor to all usable lineage that mentions it. False when there is none.
  bool bind(LocalId id, const LocalInstance& instance);

  const CutContext& cut_;
  ShardEquations equations_;

  std::unordered_map<LocalInstance, LocalId, InstanceHash> local_;
  std::vector<LocalInstance> instances_;
  std::vector<Origin> origins_;
  std::vector<LocalNode> localNodes_;
  std::vector<std::vector<std::size_t>> presentSlots_;
  std::vector<LocalNodeId> order_;
  std::vector<LocalNodeId> producerOfId_;
  std::vector<char> finished_;  // of each local node: all its operands are visited
  std::unordered_map<NodeKey, LocalNodeId, NodeKeyHash> nodeOf_;
  std::map<RendezvousKey, LocalNodeId> firstOfRendezvous_;
  std::vector<BoundEquation> claims_, bound_;
  std::set<EquationKey> boundKeys_;
  std::vector<std::int32_t> coordinates_;
  std::vector<Piece> pieces_;
  std::set<Members> groups_;
  std::map<std::pair<std::vector<std::int32_t>, Rank>, const Members*>
      groupsOfAxes_;  // axes, first rank
};

}  // namespace shardproof
