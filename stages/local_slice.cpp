// SPDX-License-Identifier: Apache-2.0
#include "stages/local_slice.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "ops/registry.h"
#include "shardproof/error.h"

namespace shardproof {

std::size_t InstanceHash::operator()(const LocalInstance& i) const noexcept {
  std::uint64_t h = static_cast<std::uint32_t>(i.tensor.value);
  h = h * 0x9E3779B97F4A7C15ULL + static_cast<std::uint32_t>(i.rank.value);
  h = h * 0x9E3779B97F4A7C15ULL + i.microbatch.hash() + (i.shapeOnly ? std::uint64_t{1} << 32 : 0);
  return h ^ (h >> 29);
}

LocalSlice::LocalSlice(const CutContext& cut) : cut_(cut), equations_(cut) {
  for (const EntryId e : cut_.entries) {
    const LineageEntry& entry = cut_.plan.lineage[e];
    for (std::size_t s = 0; s < entry.shards.size(); ++s) {
      const Shard& shard = entry.shards[s];
      const ShardEquations::ShardAxes& axes = equations_.axesOf(e, static_cast<std::int32_t>(s));
      const std::vector<std::vector<std::int32_t>> claimed = equations_.claimed(shard, axes);
      std::vector<std::size_t> at(axes.outer.size(), 0);  // indices into the claimed coordinates
      std::vector<std::int32_t> c(at.size(), 0);
      for (;;) {
        for (std::size_t i = 0; i < at.size(); ++i) c[i] = claimed[i][at[i]];
        BoundEquation claim{e,
                            static_cast<std::int32_t>(s),
                            equations_.instantiate(entry.tensor, shard, axes, c),
                            {}};
        for (const auto& [instance, weight] : claim.instances.parts)
          claim.ids.push_back(visit(instance));
        claims_.push_back(std::move(claim));
        std::size_t i = at.size();
        while (i-- > 0 && ++at[i] == claimed[i].size()) at[i] = 0;
        if (i == static_cast<std::size_t>(-1)) break;
      }
    }
  }
}

LocalId LocalSlice::find(const LocalInstance& instance) const {
  const auto it = local_.find(instance);
  return it == local_.end() ? LocalId() : it->second;
}

TensorId LocalSlice::shapedLike(const LocalInstance& instance) const {
  if (isPiece(instance)) return shapedLike(pieceOf(instance).whole);
  if (!isCombined(instance)) return instance.tensor;
  const Graph& graph = cut_.plan.programs[instance.program].graph;
  return graph.in(graph.nodes[combiningNode(instance)])[0].tensor;
}

Shape LocalSlice::shapeOf(const LocalInstance& instance) const {
  Shape shape = cut_.plan.programs[instance.program].graph.tensors[shapedLike(instance)].shape;
  if (isPiece(instance)) {
    const Piece& piece = pieceOf(instance);
    shape.at(static_cast<std::size_t>(piece.dim)) = piece.end - piece.begin;
  }
  return shape;
}

LocalId LocalSlice::idOf(const LocalInstance& instance, bool& fresh) {
  const auto [it, inserted] = local_.emplace(instance, LocalId(instances_.size()));
  fresh = inserted;
  if (inserted) {
    instances_.push_back(instance);
    origins_.push_back(Origin::kComputed);
    producerOfId_.emplace_back();
    if (instances_.size() > cut_.options.maxNodes)
      throw Unsupported("the stage is too large: more than " +
                        std::to_string(cut_.options.maxNodes) + " local tensors");
    constexpr std::size_t kBetweenLooks = 4096;  // at the clock
    if (cut_.options.budget != nullptr && instances_.size() % kBetweenLooks == 0 &&
        cut_.options.budget->over())
      throw Unsupported("the time for the run is over");
  }
  return it->second;
}

LocalId LocalSlice::visit(const LocalInstance& start) {
  bool fresh = false;
  const LocalId root = idOf(start, fresh);
  if (!fresh) return root;
  struct Frame {
    LocalNodeId node;
    std::vector<LocalInstance> todo;
    std::size_t next = 0;
  };
  std::vector<Frame> stack;
  const auto open = [&](LocalId id) {
    std::vector<LocalInstance> todo;
    const LocalNodeId node = settle(id, todo);
    if (node >= 0) stack.push_back({node, std::move(todo), 0});
    return node.valid();
  };
  open(root);
  while (!stack.empty()) {
    Frame& frame = stack.back();
    if (frame.next == frame.todo.size()) {
      order_.push_back(frame.node);
      finished_[frame.node] = 1;
      stack.pop_back();
      continue;
    }
    const LocalInstance instance = frame.todo[frame.next++];
    bool isNew = false;
    const LocalId id = idOf(instance, isNew);
    localNodes_[frame.node].in[slot(frame.node, frame.next - 1)] = id;
    if (isNew && open(id)) continue;
    // Not opened now: finished, without producer, or still open further down the stack, which is
    // a cycle.
    const LocalNodeId producer = producerOfId_[id];
    if (producer && !finished_[producer]) throwCycle(producer);
  }
  return root;
}

void LocalSlice::throwCycle(LocalNodeId node) const {
  const LocalNode& n = localNodes_[node];
  throw CyclicWait(n.program, n.node, n.rank, n.microbatch);
}

std::size_t LocalSlice::slot(LocalNodeId node, std::size_t k) const {
  return presentSlots_[node][k];
}

LocalNodeId LocalSlice::settle(LocalId id, std::vector<LocalInstance>& todo) {
  const LocalInstance instance = instances_[id];
  cut_.symmetry.keepApart(instance.program);
  if (isPiece(instance)) return settlePiece(id, instance, todo);
  if (isCombined(instance)) return settleCombined(id, instance, todo);
  const Graph& graph = cut_.plan.programs[instance.program].graph;
  const Tensor& tensor = graph.tensors[instance.tensor];
  if (instance.shapeOnly) {
    origins_[id] = Origin::kUnbound;
    return {};
  }
  if (tensor.kind == TensorKind::kConstant) {
    origins_[id] = Origin::kConstant;
    return {};
  }
  if (bind(id, instance)) return {};
  if (tensor.kind != TensorKind::kProduced) {
    origins_[id] = Origin::kUnbound;
    return {};
  }
  const Producer producer = cut_.planIndex.producerOf(instance);
  if (producer.node < 0)
    throw Unsupported("a local tensor that is never produced");  // the checks of the plan report it
  const Node& node = graph.nodes[producer.node];
  const Microbatch microbatch = node.microbatch.at(instance.microbatch);
  if (node.microbatch.isEach() && !microbatch.isOne())
    throw std::logic_error("an operator that runs for each microbatch is asked for none");
  if (node.microbatch.isOne() && cut_.symmetry.collapsed(kMicrobatchAxis))
    throw NeedsRefinement(kMicrobatchAxis);
  if (node.steps >= 0)
    cut_.symmetry.keepApart(cut_.plan.programs[instance.program].steps.at(node.steps));
  if (receivesNothing(cut_.plan.programs[instance.program], node, instance.rank)) {
    origins_[id] = Origin::kConstant;  // zeros
    return {};
  }
  const NodeKey key{instance.program, producer.node, instance.rank, microbatch};
  const auto [it, inserted] = nodeOf_.emplace(key, LocalNodeId(localNodes_.size()));
  producerOfId_[id] = it->second;
  if (!inserted) {
    localNodes_[it->second].out[producer.result] = id;
    return {};  // its operands are visited already (or wait for this very result: a cycle, which
                // the caller sees)
  }
  LocalNode made;
  made.program = instance.program;
  made.node = producer.node;
  made.rank = instance.rank;
  made.microbatch = microbatch;
  made.out.resize(node.outCount);
  made.out[producer.result] = id;
  std::vector<std::size_t> slots;
  if (node.communication >= 0) {
    expandCommunication(made, node, todo);
    for (std::size_t i = 0; i < todo.size(); ++i) slots.push_back(i);
    made.in.resize(todo.size());
  } else {
    const auto operands = graph.in(node);
    made.in.resize(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].present()) continue;
      const Tensor& operandTensor = graph.tensors[operands[i].tensor];
      LocalInstance operand{instance.program, operands[i].tensor, instance.rank,
                            Microbatch::none()};
      if (operandTensor.perMicrobatch) {
        operand.microbatch = named(operands[i].microbatch).orElse(microbatch);
      }
      // What only lends its shape needs no value: an instance of its own, which is not sliced.
      if (i > 0 && ops::Registry::instance().at(node.op).traits.rearranges)
        operand.shapeOnly = true;
      todo.push_back(operand);
      slots.push_back(i);
    }
  }
  localNodes_.push_back(std::move(made));
  finished_.push_back(0);
  presentSlots_.push_back(std::move(slots));
  return it->second;
}

// The microbatch that an operand names, or the one that stands for it.
Microbatch LocalSlice::named(Microbatch microbatch) const {
  if (!microbatch.isOne() || !cut_.symmetry.collapsed(kMicrobatchAxis)) return microbatch;
  if (!cut_.options.sameInMicrobatches) throw NeedsRefinement(kMicrobatchAxis);
  return Microbatch::of(cut_.symmetry.of(kMicrobatchAxis).collapsed.standIn(microbatch.number()));
}

LocalNodeId LocalSlice::settleCombined(LocalId id, const LocalInstance& instance,
                                       std::vector<LocalInstance>& todo) {
  const LocalNodeId made(localNodes_.size());
  producerOfId_[id] = made;
  LocalNode node;
  node.program = instance.program;
  node.node = combiningNode(instance);
  node.rank = instance.rank;
  node.microbatch = instance.microbatch;
  node.out = {id};
  node.communication = Communication::kAllReduce;
  const Program& program = cut_.plan.programs[node.program];
  const CommunicationSpec& spec =
      program.communications[program.graph.nodes[node.node].communication];
  addMembers(node, spec, membersOf(node, spec), todo);
  node.in.resize(todo.size());
  std::vector<std::size_t> slots(todo.size());
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  localNodes_.push_back(std::move(node));
  finished_.push_back(0);
  presentSlots_.push_back(std::move(slots));
  return made;
}

bool LocalSlice::bind(LocalId id, const LocalInstance& instance) {
  bool any = false;
  for (const Mention& mention : cut_.planIndex.mentions(instance.program, instance.tensor)) {
    if (!cut_.usable(mention.entry)) continue;
    const Shard& shard = cut_.plan.lineage[mention.entry].shards[mention.shard];
    const Part& part = shard.parts[mention.part];
    const bool sums = shard.parts.size() > 1 || !shard.sum.empty();
    if (cut_.options.proved && sums && !isGiven(cut_.plan.lineage[mention.entry].role)) continue;
    cut_.symmetry.keepApart(part);
    if (!std::all_of(part.at.begin(), part.at.end(),
                     [&](const auto& c) {
                       return cut_.mesh.coordinate(instance.rank, c.first) == c.second;
                     }) ||
        !std::all_of(part.within.begin(), part.within.end(), [&](const Stretch& s) {
          return s.contains(cut_.mesh.coordinate(instance.rank, s.axis));
        }))
      continue;
    if (part.microbatch.isOne() && part.microbatch != instance.microbatch) continue;
    if (part.microbatch.isOne() && cut_.symmetry.collapsed(kMicrobatchAxis))
      throw NeedsRefinement(kMicrobatchAxis);
    const ShardEquations::ShardAxes& axes = equations_.axesOf(mention.entry, mention.shard);
    any = true;
    // An equation is its shard at the coordinates of its own axes: those that parts name or that
    // it sums over are the same in all parts of all.
    EquationKey key{mention.entry, mention.shard, Rank(0), Microbatch::none()};
    coordinates_.clear();
    for (const std::int32_t axis : axes.outer) {
      const std::int32_t c = axis == kMicrobatchAxis ? instance.microbatch.number()
                                                     : cut_.mesh.coordinate(instance.rank, axis);
      coordinates_.push_back(c);
      if (axis == kMicrobatchAxis) key.microbatch = instance.microbatch;
      else key.rank = cut_.mesh.with(key.rank, axis, c);
    }
    if (!boundKeys_.insert(key).second)
      continue;  // the same equation, met through another of its parts
    BoundEquation made{
        mention.entry,
        mention.shard,
        equations_.instantiate(cut_.plan.lineage[mention.entry].tensor, shard, axes, coordinates_),
        {}};
    // A sum that is stated twice would look over-determined.
    const bool known =
        made.instances.parts.size() > 1 &&
        std::any_of(bound_.begin(), bound_.end(), [&](const BoundEquation& b) {
          return cut_.plan.lineage[b.entry].tensor == cut_.plan.lineage[made.entry].tensor &&
                 b.instances.box == made.instances.box && b.instances.parts == made.instances.parts;
        });
    if (!known) bound_.push_back(std::move(made));
  }
  if (any) origins_[id] = Origin::kBoundary;
  return any;
}

}  // namespace shardproof
