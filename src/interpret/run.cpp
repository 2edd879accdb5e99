#include "interpret/run.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "interpret/collectives.h"
#include "interpret/given_values.h"
#include "interpret/meaning.h"
#include "interpret/schedule.h"
#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::interpret {
namespace {

// By the registry's ids.
template <class T>
const std::vector<Kernel<T>>& kernels() {
  static const std::vector<Kernel<T>> table = [] {
    std::vector<Kernel<T>> k;
    const ops::Registry& registry = ops::Registry::instance();
    for (std::size_t i = 0; i < registry.size(); ++i)
      k.push_back(findKernel<T>(registry.at(OperatorId(static_cast<std::int64_t>(i))).name));
    return k;
  }();
  return table;
}

// Reductions to one number may be declared [1] where they yield [].
bool mayBeOne(std::string_view op) {
  constexpr std::string_view list[] = {"sum",       "mean",          "amax",     "amin",
                                       "logsumexp", "cross_entropy", "grad_norm"};
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

template <class T>
class PlainRun {
 public:
  PlainRun(const Setup& setup, const Draw& draw, double tolerance, const Limits& limits,
           const Arrays& keep, const Hooks<T>& hooks)
      : setup_(setup),
        problem_(setup.problem),
        programs_(setup.programs),
        draw_(draw),
        tolerance_(tolerance),
        limits_(limits),
        keep_(keep),
        hooks_(hooks),
        context_{memory_} {
    memory_.limit = limits.maxBytes;
  }

  RunResult go() {
    // Only where rounding has to be told from a difference: not in the first run.
    meaning_.measures = std::is_same_v<T, long double> || (!kIsField<T> && draw_.moved != 0);
    for (const std::int32_t e : setup_.entries) result_.entries[e];
    if (hooks_.logical != nullptr) takeModel();
    else runModel();
    runPlan();
    result_.flops = context_.flops;
    result_.peakBytes = memory_.peak;
    result_.closeDecisions = context_.closeDecisions;
    result_.saturated = context_.saturated;
    return std::move(result_);
  }

  // --- the schedule's host ---

  void compute(Rank rank, std::int32_t instance) {
    checkLimits();
    const ProgramLayout& layout = programs_.layout(rank);
    const Graph& graph = programs_.program(rank).graph;
    graph_ = &graph;
    const Instance& i = layout.instances[instance];
    const NodeView& view = setup_.plans[programs_.programOf(rank)].nodes[i.node];
    const Node& node = graph.nodes[i.node];
    std::vector<Value<T>>& values = local_[rank];
    in_.clear();
    for (const Operand& o : view.in) {
      if (!o.present()) {
        in_.push_back(nullptr);
        continue;
      }
      const std::int32_t slot = programs_.slotOf(
          layout, graph, o.tensor, o.microbatch.isOne() ? o.microbatch.number() : i.microbatch);
      in_.push_back(&values[slot]);
    }
    Value<T> mask;
    try {
      if (view.draws) mask = localMask(rank, instance, view);
      apply(node, view, mask ? &mask : nullptr);
      for (std::size_t r = 0; r < view.out.size(); ++r)
        if (view.out[r] >= 0) {
          checkDeclared(node, graph.tensors[view.out[r]], out_[r]);
          checkKind(rank, view.out[r], out_[r]);
        }
    } catch (const Misfit& misfit) {
      throw CannotRun(programs_.place(rank, instance) + ": " + misfit.what());
    }
    std::vector<Value<T>> results = std::move(out_);
    out_.clear();
    for (std::size_t r = 0; r < view.out.size(); ++r)
      if (view.out[r] >= 0)
        produce(rank, programs_.slotOf(layout, graph, view.out[r], i.microbatch),
                std::move(results[r]));
    for (const Operand& o : view.in)
      if (o.present())
        release(rank,
                programs_.slotOf(layout, graph, o.tensor,
                                 o.microbatch.isOne() ? o.microbatch.number() : i.microbatch));
  }

  void communicate(const Rendezvous& rendezvous) {
    checkLimits();
    std::vector<const Value<T>*> operands;
    for (const Member& m : rendezvous.members) {
      const bool gives = programs_.node(m.rank, m.instance).inCount == 1;
      operands.push_back(gives ? &local_[m.rank][programs_.operandSlot(m.rank, m.instance, 0)]
                               : nullptr);
    }
    const Member& first = rendezvous.members.front();
    std::vector<Value<T>> results;
    try {
      results =
          communicated(context_, *programs_.communication(first.rank, first.instance), operands);
    } catch (const Misfit& misfit) {
      throw CannotRun(programs_.place(first.rank, first.instance) + ": " + misfit.what());
    } catch (const NoMeaning& nothing) {
      results.resize(rendezvous.members.size());
      for (std::size_t m = 0; m < rendezvous.members.size(); ++m) {
        const Member& member = rendezvous.members[m];
        if (programs_.node(member.rank, member.instance).outCount > 0)
          results[m] = meaningless(declared(member), nothing.what());
      }
    }
    double reach = 0;
    bool masked = false;
    for (const Value<T>* v : operands) {
      reach = std::max(reach, v == nullptr ? 0 : v->reach);
      masked = masked || (v != nullptr && v->masked);
    }
    operands.clear();
    for (std::size_t m = 0; m < rendezvous.members.size(); ++m) {
      const Member& member = rendezvous.members[m];
      if (programs_.node(member.rank, member.instance).outCount == 0) continue;
      const Tensor& tensor = declared(member);
      if (results[m].shape != tensor.shape ||
          (tensor.elementDeclared && results[m].element != tensor.element))
        throw CannotRun(
            programs_.place(member.rank, member.instance) + ": the result '" +
            problem_.names.text(tensor.name) + "' is declared with shape " + text(tensor.shape) +
            ", but the communication gives " + text(results[m].shape) +
            (results[m].element != tensor.element ? " of another kind of element" : ""));
      try {
        checkKind(member.rank,
                  programs_.program(member.rank)
                      .graph.out(programs_.node(member.rank, member.instance))[0],
                  results[m]);
      } catch (const Misfit& misfit) {
        throw CannotRun(programs_.place(member.rank, member.instance) + ": " + misfit.what());
      }
      results[m].masked = masked;
      meaning_.measure(results[m], reach);
      produce(member.rank, programs_.resultSlot(member.rank, member.instance, 0),
              std::move(results[m]));
    }
    for (const Member& m : rendezvous.members)
      if (programs_.node(m.rank, m.instance).inCount == 1)
        release(m.rank, programs_.operandSlot(m.rank, m.instance, 0));
  }

 private:
  void checkLimits() {
    if (limits_.cancel != nullptr && limits_.cancel->load(std::memory_order_relaxed))
      throw Stopped("cancelled");
    if (limits_.threads != nullptr) limits_.threads->adapt();
    if ((++steps_ & 15) == 0 && limits_.end != std::chrono::steady_clock::time_point::max() &&
        std::chrono::steady_clock::now() > limits_.end)
      throw Stopped("out of time");
  }

  const Tensor& declared(const Member& m) const {
    const Graph& graph = programs_.program(m.rank).graph;
    const Node& node = programs_.node(m.rank, m.instance);
    return graph.tensors[node.outCount > 0 ? graph.out(node)[0] : graph.in(node)[0].tensor];
  }

  Value<T> meaningless(const Tensor& tensor, const std::string& why) {
    Value<T> v(memory_, tensor.shape, tensor.element);
    std::fill(v.writable(), v.writable() + v.size(), undefined<T>());
    v.unknown = std::make_shared<const std::string>(why);
    return v;
  }

  void checkDeclared(const Node& node, const Tensor& tensor, Value<T>& value) const {
    const std::string_view op = ops::Registry::instance().at(node.op).name;
    if (!value)
      throw Misfit("there is no such result as '" + problem_.names.text(tensor.name) + "'");
    if (value.shape != tensor.shape) {
      if (!(value.shape.empty() && tensor.shape == Shape{1} && mayBeOne(op)))
        throw Misfit("the result '" + problem_.names.text(tensor.name) +
                     "' is declared with shape " + text(tensor.shape) +
                     ", but the operator gives " + text(value.shape));
      value.shape = tensor.shape;
    }
    if (tensor.elementDeclared && value.element != tensor.element)
      throw Misfit("the result '" + problem_.names.text(tensor.name) +
                   "' is declared with another kind of element than the operator gives");
  }

  // What is not declared follows from what produces it. A tensor is of one kind on all ranks that
  // run the program and for all microbatches.
  void checkKind(Rank rank, TensorId t, const Value<T>& value) {
    auto& kinds = kinds_[programs_.programOf(rank)];
    const auto [it, added] = kinds.emplace(t, value.element);
    if (!added && it->second != value.element)
      throw Misfit("the result '" +
                   problem_.names.text(programs_.program(rank).graph.tensors[t].name) +
                   "' holds another kind of element than what else is produced under that name");
  }

  // in_ -> out_. `mask`: an operand to be added.
  void apply(const Node& node, const NodeView& view, const Value<T>* mask) {
    const Kernel<T> kernel = kernels<T>()[node.op.index()];
    const std::string& name = ops::Registry::instance().at(node.op).name;
    out_.clear();
    out_.resize(std::max<std::size_t>(view.out.size(), 6));  // kernels may fill all that they have
    wanted_.clear();
    for (const TensorId t : view.out) wanted_.push_back(t >= 0);
    std::shared_ptr<const std::string> unknown;
    for (const Value<T>* v : in_)
      if (v != nullptr && v->unknown) unknown = v->unknown;
    if (mask != nullptr) {
      if (mask->unknown) unknown = mask->unknown;
      const std::size_t place = name.ends_with("_backward") ? 2 : 1;
      in_.resize(std::max(in_.size(), place + 1), nullptr);
      in_[place] = mask;
    }
    if (kernel == nullptr) throw std::logic_error("no kernel for operator '" + name + "'");
    Call<T> call{context_, problem_.attributes.at(view.attributes), in_, wanted_, out_};
    try {
      kernel(call);
    } catch (const NoMeaning& nothing) {
      fillUnknown(view, name + ": " + nothing.what());
      return;
    }
    if (unknown)
      for (Value<T>& v : out_) v.unknown = unknown;
    if (std::any_of(in_.begin(), in_.end(),
                    [](const Value<T>* v) { return v != nullptr && v->masked; }) ||
        name == "create_mask")
      meaning_.refusePlusInfinity(out_);
    if (name == "sigmoid" || name == "tanh") meaning_.countSaturated(out_[0]);
    if (!meaning_.measures) return;
    meaning_.refuseSingularity(name, call.attributes, in_, out_);
    meaning_.measureResults(in_, out_);
    if (name == "exp" || name == "sigmoid" || name == "softmax") meaning_.refuseZero(in_, out_);
    if (name == "exp") meaning_.refuseOne(*in_[0], out_[0]);
  }

  void fillUnknown(const NodeView& view, const std::string& why) {
    const Graph& graph = *graph_;
    for (std::size_t r = 0; r < view.out.size(); ++r)
      if (view.out[r] >= 0) out_[r] = meaningless(graph.tensors[view.out[r]], why);
  }

  static std::uint64_t maskKey(const Attributes& attributes, const Shape& shape) {
    return keyOf("mask " + std::to_string(integerOf(attributes, "seed")) + " " +
                 numberOf(attributes, "p").toString() + " " + text(shape));
  }

  // The piece of a logical mask that belongs where what is dropped out lies, or the result.
  Value<T> localMask(Rank rank, std::int32_t instance, const NodeView& view) {
    const ProgramLayout& layout = programs_.layout(rank);
    const Graph& graph = programs_.program(rank).graph;
    const Instance& i = layout.instances[instance];
    const Placement* placement = nullptr;
    const auto look = [&](TensorId tensor, std::int32_t microbatch) {
      if (placement == nullptr && tensor >= 0)
        placement = setup_.placementOf(
            programs_.slot(rank, programs_.slotOf(layout, graph, tensor, microbatch)));
    };
    const Operand& dropped = view.in.back();
    look(dropped.tensor, dropped.microbatch.isOne() ? dropped.microbatch.number() : i.microbatch);
    if (view.in.size() == 1) {
      look(view.out[0], i.microbatch);
    } else if (!dropped.microbatch.isOne()) {  // backward: what the dropout gave that read the same
      const std::vector<NodeView>& views = setup_.plans.at(at(programs_.programOf(rank))).nodes;
      const Node& own = graph.nodes[&view - views.data()];
      for (std::size_t n = 0; n < views.size(); ++n) {
        const NodeView& forward = views[n];
        if (!forward.draws || forward.in.size() != 1 || forward.in[0].tensor != dropped.tensor ||
            forward.in[0].microbatch.isOne() || graph.nodes[n].microbatch != own.microbatch)
          continue;
        const Attributes &x = problem_.attributes.at(forward.attributes),
                         &y = problem_.attributes.at(view.attributes);
        if (integerOf(x, "seed") == integerOf(y, "seed") && numberOf(x, "p") == numberOf(y, "p"))
          look(forward.out[0], i.microbatch);
      }
    }
    const Shape& extent = in_.back() != nullptr ? in_.back()->shape : in_.front()->shape;
    if (placement != nullptr && placement->tensor >= 0) {
      const Shape& whole = problem_.model.graph.tensors[placement->tensor].shape;
      if (whole.size() == extent.size())
        return drawnMask<T>(memory_, maskKey(problem_.attributes.at(view.attributes), whole), whole,
                            placement->low, extent, draw_);
    }
    Value<T> mask = drawnMask<T>(memory_, mixed(static_cast<std::uint64_t>(rank) + 1), extent,
                                 Shape(extent.size(), 0), extent, draw_);
    mask.unknown = std::make_shared<const std::string>(
        programs_.place(rank, instance) +
        ": no lineage says for which positions the mask is drawn" +
        (placement != nullptr ? ", or it says two things" : ""));
    return mask;
  }

  // --- the model ---

  void takeModel() {
    logical_ = *hooks_.logical;
    logicalReads_.assign(logical_.size(), std::numeric_limits<std::int32_t>::max());
  }

  void runModel() {
    const Graph& graph = problem_.model.graph;
    graph_ = &graph;
    logical_.resize(graph.tensors.size());
    logicalReads_.assign(graph.tensors.size(), 0);
    for (const NodeView& view : setup_.model.nodes)
      for (const Operand& o : view.in)
        if (o.present()) ++logicalReads_[o.tensor];
    // Needed by the plan: once for each claim.
    for (const Claim& claim : setup_.claims)
      ++logicalReads_[problem_.plan.lineage[claim.entry].tensor];
    for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind == TensorKind::kProduced || setup_.model.added[t]) continue;
      logical_[t] = tensor.kind == TensorKind::kConstant ? given_.constant(graph, tensor)
                                                         : given_.input(TensorId(t), tensor);
      meaning_.measure(logical_[t]);
      stored(TensorId(t));
    }
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      checkLimits();
      const NodeView& view = setup_.model.nodes[n];
      in_.clear();
      for (const Operand& o : view.in) in_.push_back(o.present() ? &logical_[o.tensor] : nullptr);
      Value<T> mask;
      try {
        if (view.draws) {
          const Shape& whole = in_.back() != nullptr ? in_.back()->shape : in_.front()->shape;
          mask = drawnMask<T>(memory_, maskKey(problem_.attributes.at(view.attributes), whole),
                              whole, Shape(whole.size(), 0), whole, draw_);
        }
        apply(graph.nodes[n], view, mask ? &mask : nullptr);
        for (std::size_t r = 0; r < view.out.size(); ++r)
          if (view.out[r] >= 0) checkDeclared(graph.nodes[n], graph.tensors[view.out[r]], out_[r]);
      } catch (const Misfit& misfit) {
        throw std::logic_error("the model's " + Model::nodePointer(NodeId(n)) + ": " +
                               misfit.what());
      }
      for (std::size_t r = 0; r < view.out.size(); ++r) {
        if (view.out[r] < 0) continue;
        logical_[view.out[r]] = std::move(out_[r]);
        stored(view.out[r]);
      }
      out_.clear();
      for (const Operand& o : view.in)
        if (o.present()) releaseLogical(o.tensor);
    }
  }

  void stored(TensorId t) {
    if (hooks_.ofModel) hooks_.ofModel(t, logical_[t]);
    if (keep_.model != nullptr) (*keep_.model)[setup_.tensorName(t)] = arrayOf(logical_[t]);
    if (logicalReads_[t] == 0) logical_[t] = {};
  }

  void releaseLogical(TensorId t) {
    if (--logicalReads_[t] == 0) logical_[t] = {};
  }

  static Array arrayOf(const Value<T>& v) {
    Array a;
    a.shape = v.shape;
    a.element = v.element;
    a.data.resize(at(v.size()));
    std::transform(v.data(), v.data() + v.size(), a.data.begin(), [](T x) { return toDouble(x); });
    return a;
  }

  // --- the plan ---

  void runPlan() {
    const std::int64_t ranks = programs_.mesh().ranks();
    local_.resize(at(ranks));
    reads_.resize(at(ranks));
    remaining_.assign(setup_.compared, 0);
    sums_.resize(setup_.compared);
    for (std::size_t c = 0; c < setup_.compared; ++c)
      remaining_[c] = static_cast<std::int32_t>(setup_.claims[c].parts.size());
    for (const Rank r : firstIds<Rank>(ranks)) {
      local_[r].resize(at(programs_.layout(r).slots()));
      reads_[r] = programs_.layout(r).reads;
    }
    constants_.resize(problem_.plan.programs.size());
    kinds_.resize(problem_.plan.programs.size());
    divided_.assign(setup_.claims.size(), 0);
    for (const Rank r : firstIds<Rank>(ranks)) give(r);
    pieces_.clear();
    constants_.clear();
    for (std::size_t c = setup_.compared; c < setup_.claims.size(); ++c)
      releaseLogical(problem_.plan.lineage[setup_.claims[c].entry].tensor);
    runSchedule(programs_, *this);
  }

  // What no node of a rank produces.
  void give(Rank rank) {
    const ProgramLayout& layout = programs_.layout(rank);
    const Program& program = programs_.program(rank);
    const auto p = static_cast<std::size_t>(programs_.programOf(rank));
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      const TensorId t = layout.tensorOfSlot[slot];
      const Tensor& tensor = program.graph.tensors[t];
      if (tensor.kind == TensorKind::kProduced || setup_.plans[p].added[t]) continue;
      const std::int64_t number = programs_.slot(rank, slot);
      const std::int32_t source = setup_.sourceOf(number);
      const bool needed = layout.reads[slot] > 0 || !setup_.claimsOfSlot(number).empty() ||
                          keep_.local != nullptr || hooks_.ofPlan;
      if (tensor.kind == TensorKind::kConstant) {
        if (!needed) continue;
        Value<T>& value = constants_[p][t];
        if (!value) value = given_.constant(program.graph, tensor);
        meaning_.measure(value);
        produce(rank, slot, value);
      } else if (source < 0) {
        if (needed) produce(rank, slot, own(rank, slot, tensor, t));
      } else if (setup_.claims[source].parts.size() == 1) {
        if (needed) produce(rank, slot, piece(setup_.claims[source]));
      } else if (!divided_[source]) {
        divided_[source] = 1;
        divide(setup_.claims[source]);
      }
    }
  }

  // A local tensor that nothing is said of, or the free part of a sum.
  Value<T> own(Rank rank, std::int32_t slot, const Tensor& tensor, TensorId t) {
    const std::uint64_t key =
        mixed(keyOf(problem_.names.text(tensor.name)) + static_cast<std::uint64_t>(rank) * 1000003 +
              static_cast<std::uint64_t>(slot));
    Value<T> value =
        drawn<T>(memory_,
                 {tensor.shape, tensor.element, setup_.uses.ofLocal(programs_.programOf(rank), t),
                  tensor.kind == TensorKind::kParameter, key},
                 draw_);
    meaning_.measure(value);
    return value;
  }

  // The box of the logical tensor; ranks that have the same piece share it.
  Value<T> piece(const Claim& claim) {
    const TensorId tensor = problem_.plan.lineage[claim.entry].tensor;
    const Value<T>& whole = logical_[tensor];
    if (claim.extent == whole.shape) return whole;
    Value<T>& shared = pieces_[{tensor, claim.low, claim.extent}];
    if (!shared) {
      out_.resize(1);
      static const Attributes none;
      const Call<T> call{context_, none, {}, {}, out_};
      const Shape strides = stridesOf(whole.shape);
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < strides.size(); ++d) offset += claim.low[d] * strides[d];
      shared = strided(call, whole, claim.extent, strides, offset);
      shared.masked = whole.masked;
      meaning_.measure(shared);
    }
    return shared;
  }

  // All parts but the last are any; the last is what is missing.
  void divide(const Claim& claim) {
    Value<T> rest = piece(claim);
    for (std::size_t k = 0; k < claim.parts.size(); ++k) {
      const Claim::Part& part = claim.parts[k];
      const TensorId t = programs_.layout(part.rank).tensorOfSlot[part.slot];
      const Tensor& tensor = programs_.program(part.rank).graph.tensors[t];
      if (k + 1 == claim.parts.size()) {
        produce(part.rank, part.slot, rest);
        break;
      }
      Value<T> value = own(part.rank, part.slot, tensor, t);
      Value<T> less(memory_, rest.shape, rest.element);
      for (std::int64_t i = 0; i < rest.size(); ++i)
        less.writable()[i] = rest.data()[i] - value.data()[i];
      less.masked = rest.masked;
      meaning_.measure(less, std::max(rest.reach, value.reach));
      rest = std::move(less);
      produce(part.rank, part.slot, std::move(value));
    }
  }

  void produce(Rank rank, std::int32_t slot, Value<T> value) {
    const std::int64_t number = programs_.slot(rank, slot);
    if (hooks_.ofPlan) hooks_.ofPlan(rank, slot, value);
    if (keep_.local != nullptr) keepLocal(rank, slot, value);
    for (const std::int32_t c : setup_.claimsOfSlot(number)) claimed(c, value);
    local_[rank][slot] = std::move(value);
    if (reads_[rank][slot] == 0) drop(rank, slot);
  }

  void release(Rank rank, std::int32_t slot) {
    if (--reads_[rank][slot] == 0) drop(rank, slot);
  }

  void drop(Rank rank, std::int32_t slot) { local_[rank][slot].buffer.reset(); }

  void keepLocal(Rank rank, std::int32_t slot, const Value<T>& value) {
    const ProgramLayout& layout = programs_.layout(rank);
    const TensorId t = layout.tensorOfSlot[slot];
    const Tensor& tensor = programs_.program(rank).graph.tensors[t];
    std::string name = problem_.names.text(tensor.name) + "@" + std::to_string(rank);
    if (tensor.perMicrobatch) name += "#" + std::to_string(slot - layout.firstSlot[t]);
    (*keep_.local)[name] = arrayOf(value);
  }

  // A part of a claim is there.
  void claimed(std::int32_t c, const Value<T>& value) {
    const Claim& claim = setup_.claims[c];
    Value<T>& sum = sums_[c];
    if (!sum) {
      sum = value;
    } else {
      Value<T> more(memory_, sum.shape, sum.element);
      const T *a = sum.data(), *b = value.data();
      T* to = more.writable();
      forEach(more.size(), [=](std::int64_t i) { to[i] = a[i] + b[i]; });
      more.unknown = sum.unknown ? sum.unknown : value.unknown;
      more.masked = sum.masked || value.masked;
      meaning_.measure(more, std::max(sum.reach, value.reach));
      sum = std::move(more);
    }
    if (--remaining_[c] > 0) return;
    const TensorId tensor = problem_.plan.lineage[claim.entry].tensor;
    if (hooks_.ofClaim) hooks_.ofClaim(at(c), logical_[tensor], sum);
    else compare(claim, logical_[tensor], sum, tolerance_, result_.entries[claim.entry]);
    sum = {};
    releaseLogical(tensor);
  }

  const Setup& setup_;
  const Problem& problem_;
  const Programs& programs_;
  const Draw draw_;
  const double tolerance_;
  const Limits& limits_;
  const Arrays keep_;
  const Hooks<T>& hooks_;
  Memory memory_;
  Context context_;
  RunResult result_;
  std::uint64_t steps_ = 0;
  Meaning<T> meaning_{memory_, context_};
  GivenValues<T> given_{setup_, draw_, memory_};
  const Graph* graph_ = nullptr;  // whose node is being run
  std::vector<const Value<T>*> in_;
  std::vector<Value<T>> out_;
  std::vector<char> wanted_;
  std::vector<Value<T>> logical_;
  std::vector<std::int32_t> logicalReads_;
  std::vector<std::vector<Value<T>>> local_;  // by rank and slot
  std::vector<std::map<std::int32_t, ElementKind>>
      kinds_;  // of what was produced, by program and tensor
  std::vector<std::vector<std::int32_t>> reads_;
  std::vector<std::int32_t> remaining_;  // by claim: parts that are not there
  std::vector<Value<T>> sums_;
  std::map<std::tuple<std::int32_t, Shape, Shape>, Value<T>> pieces_;
  std::vector<std::map<std::int32_t, Value<T>>> constants_;  // by program
  std::vector<char> divided_;                                // by claim: its parts were drawn
};

}  // namespace

template <class T>
RunResult run(const Setup& setup, const Draw& draw, double tolerance, const Limits& limits,
              const Arrays& keep, const Hooks<T>& hooks) {
  return PlainRun<T>(setup, draw, tolerance, limits, keep, hooks).go();
}

template RunResult run<double>(const Setup&, const Draw&, double, const Limits&, const Arrays&,
                               const Hooks<double>&);
template RunResult run<long double>(const Setup&, const Draw&, double, const Limits&, const Arrays&,
                                    const Hooks<long double>&);
template RunResult run<Field>(const Setup&, const Draw&, double, const Limits&, const Arrays&,
                              const Hooks<Field>&);

}  // namespace shardproof::interpret
