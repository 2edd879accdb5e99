#include "stages/cutter.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

// Thrown when axes that were collapsed turn out to be told apart; the cut starts again with all
// their coordinates.
struct NotInterchangeable {
  explicit NotInterchangeable(std::int32_t axis) : axes{axis} {}
  explicit NotInterchangeable(std::vector<std::int32_t> axes_) : axes(std::move(axes_)) {}
  std::vector<std::int32_t> axes;
};

struct InstanceHash {
  std::size_t operator()(const LocalInstance& i) const noexcept {
    std::uint64_t h = static_cast<std::uint32_t>(i.tensor);
    h = h * 0x9E3779B97F4A7C15ULL + static_cast<std::uint32_t>(i.rank);
    h = h * 0x9E3779B97F4A7C15ULL + i.microbatch.hash() +
        (i.shapeOnly ? std::uint64_t{1} << 32 : 0);
    return h ^ (h >> 29);
  }
};

// How an axis is enumerated in a cut. A cut begins with kWhole where that leaves something out, and
// goes on to the next where it must.
enum class Collapse : std::uint8_t {
  kWhole,    // the stage meets nothing that names a coordinate of the axis: all are one class
  kClasses,  // by the symmetry classes of the whole plan (PlanIndex::symmetry)
  kNone,
};

// The coordinates of one axis in a cut.
struct AxisCoordinates {
  AxisCoordinates() = default;
  AxisCoordinates(const PlanIndex& planIndex, std::int32_t axis, std::int32_t size,
                  Collapse collapse_)
      : collapse(collapse_) {
    if (collapse == Collapse::kNone) {
      all.resize(static_cast<std::size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      claimed = all;
      return;
    }
    const auto& classes = collapse == Collapse::kClasses ? planIndex.symmetry().classes(axis)
                                                         : std::vector<std::vector<std::int32_t>>{};
    collapsed = collapse == Collapse::kWhole ? CollapsedAxis::whole(axis, size)
                                             : CollapsedAxis::ofClasses(axis, size, classes);
    for (const auto& [c, weight] : collapsed.kept) all.push_back(c);
    // The claim at one coordinate of a class is the claim at all of it.
    if (collapse == Collapse::kWhole) claimed = {0};
    for (const auto& cls : classes) claimed.push_back(cls.front());
  }
  // The next way that leaves something out.
  static Collapse after(Collapse collapse, const PlanIndex& planIndex, std::int32_t axis) {
    if (collapse != Collapse::kWhole || axis == kMicrobatchAxis) return Collapse::kNone;
    const auto& classes = planIndex.symmetry().classes(axis);
    const bool some = std::any_of(classes.begin(), classes.end(), [](const auto& cls) {
      return cls.size() > CollapsedAxis::kApart + 1;
    });
    return some ? Collapse::kClasses : Collapse::kNone;
  }
  std::int64_t weight(std::int32_t c) const {
    return collapse == Collapse::kNone ? 1 : collapsed.weight(c);
  }

  Collapse collapse = Collapse::kNone;
  std::vector<std::int32_t> all, claimed;
  CollapsedAxis collapsed;
};

class Cutter {
 public:
  // `collapse`: of each axis, that of microbatches last.
  Cutter(const PlanIndex& planIndex, std::vector<std::int32_t> entries, const CutOptions& options,
         const std::vector<Collapse>& collapse)
      : planIndex_(planIndex),
        plan_(planIndex.problem().plan),
        model_(planIndex.problem().model.graph),
        mesh_(planIndex.mesh()),
        entries_(std::move(entries)),
        options_(options) {
    for (std::int32_t a = 0; a < mesh_.axes(); ++a)
      axes_.emplace_back(planIndex, a, mesh_.size(a), collapse[static_cast<std::size_t>(a)]);
    axes_.emplace_back(planIndex, kMicrobatchAxis, plan_.microbatches, collapse.back());
    for (const AxisCoordinates& axis : axes_) {
      if (axis.collapse != Collapse::kNone) stage_.collapsedAxes.push_back(axis.collapsed);
    }
  }

  Stage run() {
    stage_.entry = entries_.front();
    stage_.names = &planIndex_.problem().names;
    for (const std::int32_t e : entries_) maxKey_[e] = order(e);
    sliceLocal();
    chooseLogicalCut();
    buildLogical();
    buildLocal();
    return std::move(stage_);
  }

 private:
  using Order = std::pair<std::int64_t, std::int32_t>;
  Order order(std::int32_t entry) const { return {planIndex_.entryKey(entry), entry}; }

  const AxisCoordinates& coordinatesOf(std::int32_t axis) const {
    return axis == kMicrobatchAxis ? axes_.back() : axes_[static_cast<std::size_t>(axis)];
  }
  bool collapsed(std::int32_t axis) const {
    return coordinatesOf(axis).collapse != Collapse::kNone;
  }

  // A program that names a coordinate of an axis tells it from the others. Where no program, group,
  // partner or lineage part that the stage meets does so, shifting all ranks of the stage along the
  // axis meets the same programs, partners and lineage again: P covers a rank without naming the
  // axis, so it covers the shifted one.
  void keepApartWhatIsNamed(std::int32_t program) const {
    std::vector<std::int32_t> named;
    for (std::int32_t a = 0; a < mesh_.axes(); ++a) {
      if (coordinatesOf(a).collapse == Collapse::kWhole && planIndex_.names(program, a))
        named.push_back(a);
    }
    if (!named.empty()) throw NotInterchangeable(std::move(named));
  }
  void keepApartWhatIsNamed(const Coordinates& at) const {
    for (const auto& [axis, c] : at) {
      if (coordinatesOf(axis).collapse == Collapse::kWhole) throw NotInterchangeable(axis);
    }
  }

  // May this stage assume entry f? Any strict linear order on entries makes the chain of proofs
  // well-founded; this one is by position in the indexed plan, then by index, so that what a stage
  // meets upstream is usable.
  bool usable(std::int32_t f) const {
    const LineageEntry& entry = plan_.lineage[static_cast<std::size_t>(f)];
    if (entry.role == Role::kInput) return true;
    if (options_.proved)
      return (*options_.proved)[static_cast<std::size_t>(f)] && !maxKey_.contains(f);
    if (options_.excluded && (*options_.excluded)[static_cast<std::size_t>(f)]) return false;
    if (std::binary_search(options_.deepened.begin(), options_.deepened.end(), f)) return false;
    for (const auto& [e, key] : maxKey_) {
      if (!(order(f) < key)) return false;
    }
    return true;
  }

  // ---- coordinates of a shard

  struct ShardAxes {
    std::vector<std::int32_t> outer, summed;  // axes and kMicrobatchAxis
  };
  const ShardAxes& axesOf(std::int32_t entry, std::int32_t shard) {
    const auto [it, inserted] = shardAxes_.try_emplace({entry, shard});
    if (inserted)
      it->second = axesOf(
          plan_.lineage[static_cast<std::size_t>(entry)].shards[static_cast<std::size_t>(shard)]);
    return it->second;
  }
  ShardAxes axesOf(const Shard& shard) const {
    ShardAxes axes;
    const auto add = [&](std::int32_t axis) {
      (std::binary_search(shard.sum.begin(), shard.sum.end(), axis) ? axes.summed : axes.outer)
          .push_back(axis);
    };
    for (std::int32_t a = 0; a < mesh_.axes(); ++a) {
      const bool named = std::any_of(shard.parts.begin(), shard.parts.end(), [&](const Part& p) {
        return std::any_of(p.at.begin(), p.at.end(), [&](const auto& c) { return c.first == a; });
      });
      if (!named) add(a);
    }
    const bool microbatches =
        std::any_of(shard.parts.begin(), shard.parts.end(), [&](const Part& p) {
          if (p.microbatch.isOne()) return false;
          const std::int64_t rank = mesh_.with(0, p.at);
          const std::int32_t program = planIndex_.programOf(rank);
          const std::int32_t t = planIndex_.findTensor(program, p.local);
          return plan_.programs[static_cast<std::size_t>(program)]
              .graph.tensors[static_cast<std::size_t>(t)]
              .perMicrobatch;
        });
    if (microbatches) add(kMicrobatchAxis);
    return axes;
  }

  // One SPMD instance of a shard's equation: the instances of tensors it adds up and the box.
  struct ShardInstances {
    std::vector<std::pair<LocalInstance, std::int64_t>> parts;
    std::vector<std::pair<std::int64_t, std::int64_t>> box;
    std::vector<Equation::Step> step;
  };
  // `logical`: the tensor. `coordinates`: a value for each of axes.outer.
  ShardInstances instantiate(std::int32_t logical, const Shard& shard, const ShardAxes& axes,
                             const std::vector<std::int32_t>& coordinates) const {
    for (const Part& part : shard.parts) keepApartWhatIsNamed(part.at);
    ShardInstances instances;
    instances.box = shard.box;
    for (const auto& [axis, offsets] : shard.step) {
      const auto it = std::find(axes.outer.begin(), axes.outer.end(), axis);
      if (it == axes.outer.end()) continue;
      const std::int64_t c = coordinates[static_cast<std::size_t>(it - axes.outer.begin())];
      for (std::size_t d = 0; d < offsets.size(); ++d) {
        std::int64_t moved = 0;
        if (__builtin_mul_overflow(c, offsets[d], &moved) ||
            __builtin_add_overflow(instances.box[d].first, moved, &instances.box[d].first) ||
            __builtin_add_overflow(instances.box[d].second, moved, &instances.box[d].second)) {
          throw std::logic_error("the place of a lineage box overflows");
        }
      }
      if (!collapsed(axis) ||
          std::all_of(offsets.begin(), offsets.end(), [](std::int64_t o) { return o == 0; }))
        continue;
      for (std::size_t l = 0; l < stage_.collapsedAxes.size(); ++l) {
        if (stage_.collapsedAxes[l].axis == axis)
          instances.step.push_back(
              {static_cast<std::int32_t>(l), static_cast<std::int32_t>(c), offsets});
      }
    }
    // The reader has checked the boxes of all coordinates: one outside belongs to a coordinate that
    // there is not, and a read there would be a shifted one.
    const Shape& whole = model_.tensors[static_cast<std::size_t>(logical)].shape;
    for (std::size_t d = 0; d < instances.box.size(); ++d) {
      if (instances.box[d].first < 0 || instances.box[d].second > whole.at(d))
        throw std::logic_error("a lineage box lies outside its tensor");
    }
    std::vector<std::size_t> summed(axes.summed.size(), 0);  // indices into the axes' coordinates
    for (;;) {
      std::int64_t weight = 1, rank = 0;
      Microbatch microbatch;
      const auto place = [&](std::int32_t axis, std::int32_t c) {
        if (axis == kMicrobatchAxis) microbatch = Microbatch::of(c);
        else rank = mesh_.with(rank, axis, c);
      };
      for (std::size_t i = 0; i < axes.outer.size(); ++i) place(axes.outer[i], coordinates[i]);
      for (std::size_t i = 0; i < axes.summed.size(); ++i) {
        const AxisCoordinates& along = coordinatesOf(axes.summed[i]);
        place(axes.summed[i], along.all[summed[i]]);
        weight *= along.weight(along.all[summed[i]]);
      }
      for (const Part& part : shard.parts) {
        LocalInstance instance;
        instance.rank = static_cast<std::int32_t>(mesh_.with(rank, part.at));
        instance.program = planIndex_.programOf(instance.rank);
        keepApartWhatIsNamed(instance.program);
        instance.tensor = planIndex_.findTensor(instance.program, part.local);
        const Tensor& tensor = plan_.programs[static_cast<std::size_t>(instance.program)]
                                   .graph.tensors[static_cast<std::size_t>(instance.tensor)];
        if (tensor.perMicrobatch) {
          if (part.microbatch.isOne() && collapsed(kMicrobatchAxis))
            throw NotInterchangeable(kMicrobatchAxis);
          instance.microbatch = part.microbatch.orElse(microbatch);
          if (!instance.microbatch.isOne())
            throw std::logic_error("lineage reads a tensor of each microbatch for none");
        }
        instances.parts.emplace_back(instance, weight);
      }
      std::size_t i = summed.size();
      while (i-- > 0 && ++summed[i] == coordinatesOf(axes.summed[i]).all.size()) summed[i] = 0;
      if (i == static_cast<std::size_t>(-1)) break;
    }
    return instances;
  }

  struct BoundEquation {
    std::int32_t entry, shard;
    ShardInstances instances;
    std::vector<std::int32_t> ids;
  };
  struct NodeKey {
    std::int32_t program, node, rank;
    Microbatch microbatch;
    friend bool operator==(const NodeKey&, const NodeKey&) = default;
  };
  struct NodeKeyHash {
    std::size_t operator()(const NodeKey& k) const noexcept {
      return InstanceHash()(LocalInstance{k.program, k.node, k.rank, k.microbatch});
    }
  };

  // ---- local slice

  struct LocalState {
    std::int32_t id = -1;
    Origin origin = Origin::kComputed;
  };
  struct LocalNode {
    std::int32_t program, node, rank;
    Microbatch microbatch;
    std::vector<std::int32_t> in, out;  // ids of local tensors
    std::vector<std::int64_t> weight;
    std::int32_t member = 0;
    Communication communication = Communication::kNone;  // what it is in the stage
  };
  using Members = std::vector<std::int64_t>;
  struct RendezvousKey {
    std::int32_t comm;
    Communication kind;
    const Members* members;  // one for each list of ranks: groups_
    Microbatch microbatch;
    std::optional<std::int64_t> tag;
    friend auto operator<=>(const RendezvousKey&, const RendezvousKey&) = default;
  };

  void sliceLocal() {
    for (const std::int32_t e : entries_) {
      const LineageEntry& entry = plan_.lineage[static_cast<std::size_t>(e)];
      for (std::size_t s = 0; s < entry.shards.size(); ++s) {
        const Shard& shard = entry.shards[s];
        const ShardAxes& axes = axesOf(e, static_cast<std::int32_t>(s));
        std::vector<std::size_t> at(axes.outer.size(),
                                    0);  // indices into the axes' claimed coordinates
        std::vector<std::int32_t> c(at.size(), 0);
        for (;;) {
          for (std::size_t i = 0; i < at.size(); ++i)
            c[i] = coordinatesOf(axes.outer[i]).claimed[at[i]];
          BoundEquation claim{
              e, static_cast<std::int32_t>(s), instantiate(entry.tensor, shard, axes, c), {}};
          for (const auto& [instance, weight] : claim.instances.parts)
            claim.ids.push_back(visit(instance));
          claims_.push_back(std::move(claim));
          std::size_t i = at.size();
          while (i-- > 0 && ++at[i] == coordinatesOf(axes.outer[i]).claimed.size()) at[i] = 0;
          if (i == static_cast<std::size_t>(-1)) break;
        }
      }
    }
  }

  std::int32_t idOf(const LocalInstance& instance, bool& fresh) {
    const auto [it, inserted] =
        local_.emplace(instance, static_cast<std::int32_t>(instances_.size()));
    fresh = inserted;
    if (inserted) {
      instances_.push_back(instance);
      origins_.push_back(Origin::kComputed);
      producerOfId_.push_back(-1);
      if (instances_.size() > options_.maxNodes)
        throw Unsupported("the stage is too large: more than " + std::to_string(options_.maxNodes) +
                          " local tensors");
    }
    return it->second;
  }

  // Depth first without recursion: a stage may span thousands of operators.
  std::int32_t visit(const LocalInstance& start) {
    bool fresh = false;
    const std::int32_t root = idOf(start, fresh);
    if (!fresh) return root;
    struct Frame {
      std::int32_t node;  // index into localNodes_, -1: settled
      std::vector<LocalInstance> todo;
      std::size_t next = 0;
    };
    std::vector<Frame> stack;
    const auto open = [&](std::int32_t id) {
      std::vector<LocalInstance> todo;
      const std::int32_t node = settle(id, todo);
      if (node >= 0) stack.push_back({node, std::move(todo), 0});
      return node >= 0;
    };
    open(root);
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.next == frame.todo.size()) {
        order_.push_back(frame.node);
        finished_[static_cast<std::size_t>(frame.node)] = 1;
        stack.pop_back();
        continue;
      }
      const LocalInstance instance = frame.todo[frame.next++];
      bool isNew = false;
      const std::int32_t id = idOf(instance, isNew);
      localNodes_[static_cast<std::size_t>(frame.node)].in[slot(frame.node, frame.next - 1)] = id;
      if (isNew && open(id)) continue;
      // Not opened now: finished, without producer, or still open further down the stack, which is
      // a cycle.
      const std::int32_t producer = producerOfId_[static_cast<std::size_t>(id)];
      if (producer >= 0 && !finished_[static_cast<std::size_t>(producer)]) throwCycle(producer);
    }
    return root;
  }
  [[noreturn]] void throwCycle(std::int32_t node) const {
    const LocalNode& n = localNodes_[static_cast<std::size_t>(node)];
    throw CyclicWait(n.program, n.node, n.rank, n.microbatch);
  }
  // Operand slot of the k-th present operand of a node.
  std::size_t slot(std::int32_t node, std::size_t k) const {
    return presentSlots_[static_cast<std::size_t>(node)][k];
  }

  // LocalInstance::tensor of what the members of a reduce_scatter add up, before each takes its
  // part: this minus the node of the member that stands in the instance. No tensor of the plan; it
  // has the shape of that node's operand.
  static constexpr std::int32_t kCombined = -2;
  static bool isCombined(const LocalInstance& instance) { return instance.tensor <= kCombined; }
  static std::int32_t combiningNode(const LocalInstance& instance) {
    return kCombined - instance.tensor;
  }

  // Decides what a local tensor is. Returns its producing node (new or known to be new) when the
  // slice goes on through it.
  std::int32_t settle(std::int32_t id, std::vector<LocalInstance>& todo) {
    const LocalInstance instance = instances_[static_cast<std::size_t>(id)];
    keepApartWhatIsNamed(instance.program);
    if (isCombined(instance)) return settleCombined(id, instance, todo);
    const Graph& graph = plan_.programs[static_cast<std::size_t>(instance.program)].graph;
    const Tensor& tensor = graph.tensors[static_cast<std::size_t>(instance.tensor)];
    if (instance.shapeOnly) {
      origins_[static_cast<std::size_t>(id)] = Origin::kUnbound;
      return -1;
    }
    if (tensor.kind == TensorKind::kConstant) {
      origins_[static_cast<std::size_t>(id)] = Origin::kConstant;
      return -1;
    }
    if (bind(id, instance)) return -1;
    if (tensor.kind != TensorKind::kProduced) {
      origins_[static_cast<std::size_t>(id)] = Origin::kUnbound;
      return -1;
    }
    const Producer producer = planIndex_.producerOf(instance);
    if (producer.node < 0)
      throw Unsupported(
          "a local tensor that is never produced");  // the checks of the plan report it
    const Node& node = graph.nodes[static_cast<std::size_t>(producer.node)];
    const Microbatch microbatch = node.microbatch.at(instance.microbatch);
    if (node.microbatch.isEach() && !microbatch.isOne())
      throw std::logic_error("an operator that runs for each microbatch is asked for none");
    if (node.microbatch.isOne() && collapsed(kMicrobatchAxis))
      throw NotInterchangeable(kMicrobatchAxis);
    const NodeKey key{instance.program, producer.node, instance.rank, microbatch};
    const auto [it, inserted] = nodeOf_.emplace(key, static_cast<std::int32_t>(localNodes_.size()));
    producerOfId_[static_cast<std::size_t>(id)] = it->second;
    if (!inserted) {
      localNodes_[static_cast<std::size_t>(it->second)]
          .out[static_cast<std::size_t>(producer.result)] = id;
      return -1;  // its operands are visited already (or wait for this very result: a cycle, which
                  // the caller sees)
    }
    LocalNode made{instance.program,
                   producer.node,
                   instance.rank,
                   microbatch,
                   {},
                   std::vector<std::int32_t>(node.outCount, -1),
                   {},
                   0};
    made.out[static_cast<std::size_t>(producer.result)] = id;
    std::vector<std::size_t> slots;
    if (node.communication >= 0) {
      expandCommunication(made, node, todo);
      for (std::size_t i = 0; i < todo.size(); ++i) slots.push_back(i);
      made.in.assign(todo.size(), -1);
    } else {
      const auto operands = graph.in(node);
      made.in.assign(operands.size(), -1);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        if (!operands[i].present()) continue;
        const Tensor& operandTensor = graph.tensors[static_cast<std::size_t>(operands[i].tensor)];
        LocalInstance operand{instance.program, operands[i].tensor, instance.rank,
                              Microbatch::none()};
        if (operandTensor.perMicrobatch) {
          if (operands[i].microbatch.isOne() && collapsed(kMicrobatchAxis))
            throw NotInterchangeable(kMicrobatchAxis);
          operand.microbatch = operands[i].microbatch.orElse(microbatch);
        }
        // What only lends its shape needs no value: an instance of its own, which is not sliced.
        if (i > 0 && ops::Registry::instance().at(node.op).rearranges) operand.shapeOnly = true;
        todo.push_back(operand);
        slots.push_back(i);
      }
    }
    localNodes_.push_back(std::move(made));
    finished_.push_back(0);
    presentSlots_.push_back(std::move(slots));
    return it->second;
  }

  // The sum (mean, maximum, minimum) of the members' operands, from which each takes its part.
  std::int32_t settleCombined(std::int32_t id, const LocalInstance& instance,
                              std::vector<LocalInstance>& todo) {
    const auto made = static_cast<std::int32_t>(localNodes_.size());
    producerOfId_[static_cast<std::size_t>(id)] = made;
    LocalNode node{instance.program,
                   combiningNode(instance),
                   instance.rank,
                   instance.microbatch,
                   {},
                   {id},
                   {},
                   0,
                   Communication::kAllReduce};
    const Program& program = plan_.programs[static_cast<std::size_t>(node.program)];
    const CommunicationSpec& spec = program.communications[static_cast<std::size_t>(
        program.graph.nodes[static_cast<std::size_t>(node.node)].communication)];
    addMembers(node, spec, membersOf(node, spec), todo);
    node.in.assign(todo.size(), -1);
    std::vector<std::size_t> slots(todo.size());
    std::iota(slots.begin(), slots.end(), std::size_t{0});
    localNodes_.push_back(std::move(node));
    finished_.push_back(0);
    presentSlots_.push_back(std::move(slots));
    return made;
  }

  // What the members of a collective have in common is computed once in a stage: the result of an
  // all_reduce or all_gather by the member that comes first, from which the others receive it, and
  // what a reduce_scatter adds up. The members were found to agree on group, order, reduction and
  // dimension before anything was cut. So of n members n operands are visited, not n times n.
  bool share(LocalNode& made, const CommunicationSpec& spec, const Members& members,
             std::vector<LocalInstance>& todo) {
    const bool scatters = spec.kind == Communication::kReduceScatter && members.size() > 1;
    if (!scatters && spec.kind != Communication::kAllReduce &&
        spec.kind != Communication::kAllGather)
      return false;
    const RendezvousKey key{static_cast<std::int32_t>(spec.comm.value), spec.kind, &members,
                            spec.tag ? Microbatch::none() : made.microbatch, spec.tag};
    const auto [it, first] =
        firstOfRendezvous_.emplace(key, static_cast<std::int32_t>(localNodes_.size()));
    if (first && !scatters) return false;
    const LocalNode& other = first ? made : localNodes_[static_cast<std::size_t>(it->second)];
    if (!first && planIndex_.partners(other.rank, spec, made.microbatch, made.rank) !=
                      std::vector{other.node})
      return false;
    if (scatters) {
      if (other.microbatch != made.microbatch) return false;
      todo.push_back({other.program, kCombined - other.node, other.rank, other.microbatch});
      made.member = placeIn(members, made.rank);
      made.communication = Communication::kPart;
    } else {
      const Graph& graph = plan_.programs[static_cast<std::size_t>(other.program)].graph;
      const std::int32_t result = graph.out(graph.nodes[static_cast<std::size_t>(other.node)])[0];
      if (result < 0) return false;
      const bool perMicrobatch = graph.tensors[static_cast<std::size_t>(result)].perMicrobatch;
      todo.push_back({other.program, result, other.rank,
                      perMicrobatch ? other.microbatch : Microbatch::none()});
      made.communication = Communication::kBroadcast;
    }
    made.weight.push_back(1);
    return true;
  }

  // 0 for who is no member: the receiver of a message or a broadcast.
  static std::int32_t placeIn(const Members& members, std::int64_t rank) {
    const auto it = std::find(members.begin(), members.end(), rank);
    return it == members.end() ? 0 : static_cast<std::int32_t>(it - members.begin());
  }

  void expandCommunication(LocalNode& made, const Node& node, std::vector<LocalInstance>& todo) {
    const CommunicationSpec& spec =
        plan_.programs[static_cast<std::size_t>(made.program)]
            .communications[static_cast<std::size_t>(node.communication)];
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

  // A member's own piece of the root's operand.
  void expandScatter(LocalNode& made, const CommunicationSpec& spec,
                     std::vector<LocalInstance>& todo) {
    for (const std::int32_t axis : spec.groupAxes) {
      if (collapsed(axis)) throw NotInterchangeable(axis);
    }
    made.communication = Communication::kPart;
    addMembers(made, spec, *groups_.insert({mesh_.with(made.rank, spec.peer)}).first, todo);
    made.weight = {1};
    made.member = placeIn(planIndex_.groupOf(spec, made.rank), made.rank);
  }

  // In group order; of a message or a broadcast the rank that it comes from. Equal lists are one
  // object.
  const Members& membersOf(const LocalNode& made, const CommunicationSpec& spec) {
    if (spec.kind == Communication::kReceive || spec.kind == Communication::kBroadcast)
      return *groups_.insert({mesh_.with(made.rank, spec.peer)}).first;
    if (!spec.groupAt.empty()) return *groups_.insert(planIndex_.groupOf(spec, made.rank)).first;
    // Only a symmetric combination keeps the members of a collapsed axis interchangeable.
    for (const std::int32_t axis : spec.groupAxes) {
      if (collapsed(axis) && spec.kind != Communication::kAllReduce) throw NotInterchangeable(axis);
    }
    std::int64_t origin = made.rank;
    for (const std::int32_t axis : spec.groupAxes) origin = mesh_.with(origin, axis, 0);
    const Members*& known = groupsOfAxes_[{spec.groupAxes, origin}];  // once for all of them
    if (known) return *known;
    Members members{origin};
    for (const std::int32_t axis : spec.groupAxes) {
      Members wider;
      for (const std::int64_t member : members) {
        for (const std::int32_t c : coordinatesOf(axis).all)
          wider.push_back(mesh_.with(member, axis, c));
      }
      members = std::move(wider);
    }
    std::sort(members.begin(), members.end());
    known = &*groups_.insert(std::move(members)).first;
    return *known;
  }

  void addMembers(LocalNode& made, const CommunicationSpec& spec, const Members& members,
                  std::vector<LocalInstance>& todo) const {
    made.member = placeIn(members, made.rank);
    for (const std::int64_t member : members) {
      std::int64_t weight = 1;
      if (spec.groupAt.empty()) {
        for (const std::int32_t axis : spec.groupAxes)
          weight *= coordinatesOf(axis).weight(mesh_.coordinate(member, axis));
      }
      const std::int32_t p = planIndex_.programOf(member);
      const Program& program = plan_.programs[static_cast<std::size_t>(p)];
      std::int32_t partner = made.node;
      if (member != made.rank) {
        const auto found = planIndex_.partners(member, spec, made.microbatch, made.rank);
        if (found.size() != 1)
          throw Unsupported("a communication has no single partner");  // the checks of the plan
                                                                       // would have reported it
        partner = found[0];
      }
      const Node& other = program.graph.nodes[static_cast<std::size_t>(partner)];
      const Operand& operand = program.graph.in(other)[0];
      LocalInstance instance{p, operand.tensor, static_cast<std::int32_t>(member),
                             Microbatch::none()};
      // Also where what is sent is the same in all microbatches: the partner of another one may
      // send something else.
      if ((operand.microbatch.isOne() || other.microbatch.isOne()) && collapsed(kMicrobatchAxis))
        throw NotInterchangeable(kMicrobatchAxis);
      if (program.graph.tensors[static_cast<std::size_t>(operand.tensor)].perMicrobatch) {
        instance.microbatch = operand.microbatch.orElse(other.microbatch.at(made.microbatch));
      }
      todo.push_back(instance);
      made.weight.push_back(weight);
    }
  }

  // Binds a local tensor to all usable lineage that mentions it. False when there is none.
  bool bind(std::int32_t id, const LocalInstance& instance) {
    bool any = false;
    for (const Mention& mention : planIndex_.mentions(instance.program, instance.tensor)) {
      if (!usable(mention.entry)) continue;
      const Shard& shard = plan_.lineage[static_cast<std::size_t>(mention.entry)]
                               .shards[static_cast<std::size_t>(mention.shard)];
      const Part& part = shard.parts[static_cast<std::size_t>(mention.part)];
      const bool sums = shard.parts.size() > 1 || !shard.sum.empty();
      if (options_.proved && sums &&
          plan_.lineage[static_cast<std::size_t>(mention.entry)].role != Role::kInput)
        continue;
      keepApartWhatIsNamed(part.at);
      if (!std::all_of(part.at.begin(), part.at.end(), [&](const auto& c) {
            return mesh_.coordinate(instance.rank, c.first) == c.second;
          }))
        continue;
      if (part.microbatch.isOne() && part.microbatch != instance.microbatch) continue;
      if (part.microbatch.isOne() && collapsed(kMicrobatchAxis))
        throw NotInterchangeable(kMicrobatchAxis);
      const ShardAxes& axes = axesOf(mention.entry, mention.shard);
      any = true;
      // An equation is its shard at the coordinates of its own axes: those that parts name or that
      // it sums over are the same in all parts of all.
      NodeKey key{mention.entry, mention.shard, 0, Microbatch::none()};
      coordinates_.clear();
      for (const std::int32_t axis : axes.outer) {
        const std::int32_t c = axis == kMicrobatchAxis ? instance.microbatch.number()
                                                       : mesh_.coordinate(instance.rank, axis);
        coordinates_.push_back(c);
        if (axis == kMicrobatchAxis) key.microbatch = instance.microbatch;
        else key.rank = static_cast<std::int32_t>(mesh_.with(key.rank, axis, c));
      }
      if (!boundKeys_.insert(key).second)
        continue;  // the same equation, met through another of its parts
      BoundEquation made{mention.entry,
                         mention.shard,
                         instantiate(plan_.lineage[static_cast<std::size_t>(mention.entry)].tensor,
                                     shard, axes, coordinates_),
                         {}};
      // A sum that is stated twice would look over-determined.
      const bool known = made.instances.parts.size() > 1 &&
                         std::any_of(bound_.begin(), bound_.end(), [&](const BoundEquation& b) {
                           return plan_.lineage[static_cast<std::size_t>(b.entry)].tensor ==
                                      plan_.lineage[static_cast<std::size_t>(made.entry)].tensor &&
                                  b.instances.box == made.instances.box &&
                                  b.instances.parts == made.instances.parts;
                         });
      if (!known) bound_.push_back(std::move(made));
    }
    if (any) origins_[static_cast<std::size_t>(id)] = Origin::kBoundary;
    return any;
  }

  // ---- logical slice

  // The operands that a logical operator's results depend on: what only lends its shape (the
  // operand of view_backward) is left a variable.
  std::span<const Operand> relevantOperands(const Node& node) const {
    const auto operands = model_.in(node);
    return ops::Registry::instance().at(node.op).rearranges && !operands.empty() ? operands.first(1)
                                                                                 : operands;
  }

  // Tensors reached backward from `from` (itself included) without passing through `stop`.
  std::unordered_set<std::int32_t> reach(const std::vector<std::int32_t>& from,
                                         const std::unordered_set<std::int32_t>& stop,
                                         bool passStart) const {
    std::unordered_set<std::int32_t> seen(from.begin(), from.end());
    std::vector<std::int32_t> stack(from.begin(), from.end());
    while (!stack.empty()) {
      const std::int32_t t = stack.back();
      stack.pop_back();
      if (stop.contains(t) && !(passStart && std::find(from.begin(), from.end(), t) != from.end()))
        continue;
      const std::int32_t n = planIndex_.modelProducer(t);
      if (n < 0) continue;
      for (const Operand& operand : relevantOperands(model_.nodes[static_cast<std::size_t>(n)])) {
        if (operand.present() && seen.insert(operand.tensor).second)
          stack.push_back(operand.tensor);
      }
    }
    return seen;
  }

  void chooseLogicalCut() {
    cut_.clear();
    if (options_.proved) return;  // the model begins at its inputs
    std::vector<std::int32_t> claimed;
    for (const std::int32_t e : entries_)
      claimed.push_back(plan_.lineage[static_cast<std::size_t>(e)].tensor);
    std::unordered_map<std::int32_t, std::vector<std::int32_t>>
        perInstance;  // local id -> logical tensors it is bound to
    for (const BoundEquation& equation : bound_) {
      const std::int32_t tensor =
          sourceOf(plan_.lineage[static_cast<std::size_t>(equation.entry)].tensor);
      cut_.insert(tensor);
      for (const auto& [instance, weight] : equation.instances.parts) {
        const auto it = local_.find(instance);
        if (it != local_.end()) perInstance[it->second].push_back(tensor);
      }
    }
    // A claim about a tensor that is itself assumed (two lineages of one gradient) needs no logical
    // operator.
    for (;;) {
      reached_ = reach(claimed, cut_, false);
      // A local tensor none of whose logical tensors the claim reaches: something between hides it.
      // Compute the hiding ones instead.
      std::unordered_set<std::int32_t> hidden;
      for (const auto& [id, tensors] : perInstance) {
        if (std::none_of(tensors.begin(), tensors.end(),
                         [&](std::int32_t t) { return reached_.contains(t); }))
          hidden.insert(tensors.begin(), tensors.end());
      }
      std::vector<std::int32_t> opened;
      if (!hidden.empty()) {
        for (const std::int32_t t : reached_) {
          if (!cut_.contains(t) || planIndex_.modelProducer(t) < 0) continue;
          const auto above = reach({t}, {}, true);
          if (std::any_of(hidden.begin(), hidden.end(),
                          [&](std::int32_t h) { return h != t && above.contains(h); }))
            opened.push_back(t);
        }
      }
      if (opened.empty()) break;
      for (const std::int32_t t : opened) cut_.erase(t);
    }
  }

  // Copies and rearrangements of one tensor (multiref, float, view, ...) must not become unrelated
  // variables when the slice stops at several of them: it stops at their common source instead, and
  // they are computed from it.
  std::int32_t sourceOf(std::int32_t t) const {
    for (;;) {
      const std::int32_t n = planIndex_.modelProducer(t);
      if (n < 0) return t;
      const Node& node = model_.nodes[static_cast<std::size_t>(n)];
      const auto operands = model_.in(node);
      if (operands.empty() || !operands[0].present() ||
          !ops::Registry::instance().at(node.op).rearranges)
        return t;
      t = operands[0].tensor;
    }
  }

  void buildLogical() {
    std::vector<std::int32_t> claimed;
    for (const std::int32_t e : entries_)
      claimed.push_back(plan_.lineage[static_cast<std::size_t>(e)].tensor);
    std::vector<std::int32_t> nodes;
    std::unordered_set<std::int32_t> nodeSeen;
    // Canonical order: operands first, starting at the claim.
    struct Frame {
      std::int32_t tensor;
      std::size_t next = 0;
    };
    std::unordered_set<std::int32_t> seen;
    const auto walk = [&](std::int32_t start) {
      std::vector<Frame> stack;
      if (seen.insert(start).second) stack.push_back({start});
      while (!stack.empty()) {
        Frame& frame = stack.back();
        const std::int32_t n =
            cut_.contains(frame.tensor) ? -1 : planIndex_.modelProducer(frame.tensor);
        if (n >= 0) {
          const auto operands = relevantOperands(model_.nodes[static_cast<std::size_t>(n)]);
          if (frame.next < operands.size()) {
            const Operand& operand = operands[frame.next++];
            if (operand.present() && seen.insert(operand.tensor).second)
              stack.push_back({operand.tensor});
            continue;
          }
          if (nodeSeen.insert(n).second) nodes.push_back(n);
        }
        logicalTensor(frame.tensor, n >= 0);
        stack.pop_back();
      }
    };
    for (const std::int32_t t : claimed) walk(t);
    for (const BoundEquation& equation : bound_) {
      const std::int32_t t = plan_.lineage[static_cast<std::size_t>(equation.entry)].tensor;
      if (options_.proved || seen.contains(sourceOf(t)))
        walk(t);  // what the lineage names, computed from its source
    }
    for (const std::int32_t n : nodes) {
      const Node& node = model_.nodes[static_cast<std::size_t>(n)];
      StageNode made;
      made.logical = true;
      made.op = node.op;
      made.attributes = planIndex_.problem().attributes.share(node.attributes);
      made.node = n;
      const std::size_t relevant = relevantOperands(node).size();
      for (const Operand& operand : model_.in(node)) {
        const bool shapeOnly = made.in.size() >= relevant;
        made.in.push_back(!operand.present() ? -1
                          : shapeOnly        ? shapeOnlyTensor(operand.tensor)
                                             : logicalTensor(operand.tensor, false));
      }
      for (const std::int32_t t : model_.out(node))
        made.out.push_back(t >= 0 && seen.contains(t) && !cut_.contains(t) ? logicalTensor(t, true)
                                                                           : -1);
      stage_.nodes.push_back(std::move(made));
    }
  }

  TensorFacts factsOf(std::int32_t t) const {
    if (options_.facts) return options_.facts->at(static_cast<std::size_t>(t));
    return model_.tensors[static_cast<std::size_t>(t)].kind == TensorKind::kProduced
               ? TensorFacts::unknown()
               : TensorFacts{};
  }

  // A tensor of its own with the shape of a logical one: the latter may be computed only later in
  // the stage.
  std::int32_t shapeOnlyTensor(std::int32_t t) {
    return addLogical(shapeOnlyIds_, t, Origin::kVariable);
  }

  std::int32_t logicalTensor(std::int32_t t, bool computed) {
    const bool constant = model_.tensors[static_cast<std::size_t>(t)].kind == TensorKind::kConstant;
    return addLogical(logicalIds_, t,
                      constant   ? Origin::kConstant
                      : computed ? Origin::kComputed
                                 : Origin::kVariable);
  }

  std::int32_t addLogical(std::unordered_map<std::int32_t, std::int32_t>& ids, std::int32_t t,
                          Origin origin) {
    const auto [it, inserted] = ids.emplace(t, static_cast<std::int32_t>(stage_.tensors.size()));
    if (inserted) {
      const Tensor& tensor = model_.tensors[static_cast<std::size_t>(t)];
      StageTensor made;
      made.info = {tensor.shape, tensor.element};
      made.logical = true;
      if (origin == Origin::kVariable) made.facts = factsOf(t);
      made.tensor = t;
      made.origin = origin;
      describe(made, tensor, model_);
      stage_.tensors.push_back(std::move(made));
    }
    return it->second;
  }

  // ---- assembly

  static void describe(StageTensor& made, const Tensor& tensor, const Graph& graph) {
    made.kind = tensor.kind;
    made.name = tensor.name;
    if (made.origin == Origin::kVariable) made.known = tensor.known;
    if (made.origin == Origin::kConstant)
      made.constant = graph.constants[static_cast<std::size_t>(tensor.constant)];
  }

  std::int32_t localTensor(const LocalInstance& instance, Origin origin) {
    const auto [it, inserted] =
        stageIds_.emplace(instance, static_cast<std::int32_t>(stage_.tensors.size()));
    if (inserted) {
      const Graph& graph = plan_.programs[static_cast<std::size_t>(instance.program)].graph;
      const std::int32_t shapedLike =
          isCombined(instance)
              ? graph.in(graph.nodes[static_cast<std::size_t>(combiningNode(instance))])[0].tensor
              : instance.tensor;
      const Tensor& tensor = graph.tensors[static_cast<std::size_t>(shapedLike)];
      StageTensor made;
      made.info = {tensor.shape, tensor.element};
      made.origin = origin;
      made.tensor = shapedLike;
      made.program = instance.program;
      made.rank = instance.rank;
      made.microbatch = instance.microbatch;
      describe(made, tensor, graph);
      stage_.tensors.push_back(std::move(made));
    }
    return it->second;
  }

  Equation equation(const BoundEquation& from) {
    Equation made;
    made.logical = logicalTensor(plan_.lineage[static_cast<std::size_t>(from.entry)].tensor, false);
    made.box = from.instances.box;
    made.step = from.instances.step;
    made.entry = from.entry;
    made.shard = from.shard;
    made.output = plan_.lineage[static_cast<std::size_t>(from.entry)].role == Role::kOutput;
    for (const auto& [instance, weight] : from.instances.parts) {
      const auto it = local_.find(instance);
      made.parts.emplace_back(
          localTensor(instance, it == local_.end()
                                    ? Origin::kBoundary
                                    : origins_[static_cast<std::size_t>(it->second)]),
          weight);
    }
    return made;
  }

  void buildLocal() {
    for (const std::int32_t n : order_) {
      const LocalNode& from = localNodes_[static_cast<std::size_t>(n)];
      const Node& node = plan_.programs[static_cast<std::size_t>(from.program)]
                             .graph.nodes[static_cast<std::size_t>(from.node)];
      StageNode made;
      made.op = node.op;
      made.attributes = planIndex_.problem().attributes.share(node.attributes);
      made.program = from.program;
      made.node = from.node;
      made.rank = from.rank;
      made.microbatch = from.microbatch;
      made.weight = from.weight;
      made.member = from.member;
      if (node.communication >= 0) {
        const CommunicationSpec& spec =
            plan_.programs[static_cast<std::size_t>(from.program)]
                .communications[static_cast<std::size_t>(node.communication)];
        made.communication = from.communication;
        if (ops::collectiveOf(made.communication).reduces) made.reduction = spec.reduction;
        made.dim = spec.dim;
        made.odim = spec.odim;
      }
      const auto id = [&](std::int32_t local) {
        return local < 0 ? -1
                         : localTensor(instances_[static_cast<std::size_t>(local)],
                                       origins_[static_cast<std::size_t>(local)]);
      };
      for (const std::int32_t t : from.in) made.in.push_back(id(t));
      // A result that is a boundary elsewhere in the stage is not computed here.
      for (const std::int32_t t : from.out)
        made.out.push_back(
            t >= 0 && origins_[static_cast<std::size_t>(t)] == Origin::kComputed ? id(t) : -1);
      stage_.nodes.push_back(std::move(made));
    }
    for (const BoundEquation& claim : claims_) stage_.claims.push_back(equation(claim));
    std::set<std::int32_t> used;
    for (const BoundEquation& bound : bound_) {
      stage_.assumptions.push_back(equation(bound));
      if (plan_.lineage[static_cast<std::size_t>(bound.entry)].role != Role::kInput)
        used.insert(bound.entry);
    }
    stage_.usedEntries.assign(used.begin(), used.end());
  }

  const PlanIndex& planIndex_;
  const Plan& plan_;
  const Graph& model_;
  const MeshView& mesh_;
  std::vector<std::int32_t> entries_;
  const CutOptions& options_;
  std::vector<AxisCoordinates> axes_;  // of the mesh, and of microbatches
  Stage stage_;
  std::unordered_map<std::int32_t, Order> maxKey_;

  std::unordered_map<LocalInstance, std::int32_t, InstanceHash> local_;
  std::vector<LocalInstance> instances_;
  std::vector<Origin> origins_;
  std::vector<LocalNode> localNodes_;
  std::vector<std::vector<std::size_t>> presentSlots_;
  std::vector<std::int32_t> order_;
  std::vector<std::int32_t> producerOfId_;  // local tensor -> index into localNodes_, -1
  std::vector<char> finished_;              // of each local node: all its operands are visited
  std::unordered_map<NodeKey, std::int32_t, NodeKeyHash> nodeOf_;
  std::map<RendezvousKey, std::int32_t> firstOfRendezvous_;  // local nodes
  std::vector<BoundEquation> claims_, bound_;
  std::unordered_set<NodeKey, NodeKeyHash>
      boundKeys_;  // entry, shard, rank and microbatch of its own axes' coordinates
  std::map<std::pair<std::int32_t, std::int32_t>, ShardAxes> shardAxes_;
  std::vector<std::int32_t> coordinates_;
  std::set<Members> groups_;
  std::map<std::pair<std::vector<std::int32_t>, std::int64_t>, const Members*>
      groupsOfAxes_;  // axes, first rank

  std::unordered_set<std::int32_t> cut_, reached_;
  std::unordered_map<std::int32_t, std::int32_t> logicalIds_, shapeOnlyIds_;
  std::unordered_map<LocalInstance, std::int32_t, InstanceHash> stageIds_;
};

}  // namespace

Stage cutStages(const PlanIndex& planIndex, const std::vector<std::int32_t>& entries,
                const CutOptions& options) {
  const Plan& plan = planIndex.problem().plan;
  // Collapsing pays only where something is left out.
  const auto first = [&](std::int32_t size) {
    return options.collapse && size > CollapsedAxis::kApart + 1 ? Collapse::kWhole
                                                                : Collapse::kNone;
  };
  std::vector<Collapse> collapse;
  for (const MeshAxis& axis : plan.mesh) collapse.push_back(first(axis.size));
  collapse.push_back(first(plan.microbatches));
  for (;;) {
    try {
      return Cutter(planIndex, entries, options, collapse).run();
    } catch (const NotInterchangeable& apart) {
      for (const std::int32_t axis : apart.axes) {
        Collapse& l =
            axis == kMicrobatchAxis ? collapse.back() : collapse[static_cast<std::size_t>(axis)];
        l = AxisCoordinates::after(l, planIndex, axis);
      }
    }
  }
}

Stage cutStage(const PlanIndex& planIndex, std::int32_t entry, const CutOptions& options) {
  return cutStages(planIndex, {entry}, options);
}

}  // namespace shardproof
