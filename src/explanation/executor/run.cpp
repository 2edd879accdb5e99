// SPDX-License-Identifier: Apache-2.0
#include "executor/run.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "executor/collectives.h"
#include "executor/given_values.h"
#include "executor/meaning.h"
#include "executor/run_operator.h"
#include "executor/schedule.h"
#include "util/index.h"

namespace shardproof::executor {
namespace {

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
    const Instance& i = layout.instances[instance];
    const NodeView& view = setup_.plans[programs_.programOf(rank)].nodes[i.node];
    const Node& node = graph.nodes[i.node];
    std::vector<Value<T>>& values = local_[rank];
    operators_.in.clear();
    for (const Operand& o : view.in) {
      if (!o.present()) {
        operators_.in.push_back(nullptr);
        continue;
      }
      const std::int32_t slot = programs_.slotOf(
          layout, graph, o.tensor, o.microbatch.isOne() ? o.microbatch.number() : i.microbatch);
      operators_.in.push_back(&values[slot]);
    }
    Value<T> mask;
    try {
      if (view.draws) mask = localMask(rank, instance, view);
      operators_.apply(graph, node, view, mask ? &mask : nullptr);
      for (std::size_t r = 0; r < view.out.size(); ++r)
        if (view.out[r] >= 0) {
          operators_.checkDeclared(node, graph.tensors[view.out[r]], operators_.out[r]);
          checkKind(rank, view.out[r], operators_.out[r]);
        }
    } catch (const Misfit& misfit) {
      throw CannotRun(programs_.place(rank, instance) + ": " + misfit.what());
    }
    std::vector<Value<T>> results = std::move(operators_.out);
    operators_.out.clear();
    for (std::size_t r = 0; r < view.out.size(); ++r)
      if (view.out[r] >= 0)
        result(rank, programs_.slotOf(layout, graph, view.out[r], i.microbatch),
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
          results[m] = operators_.meaningless(declared(member), nothing.what());
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
      result(member.rank, programs_.resultSlot(member.rank, member.instance, 0),
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
    const Shape& extent = operators_.in.back() != nullptr ? operators_.in.back()->shape
                                                          : operators_.in.front()->shape;
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
      operators_.in.clear();
      for (const Operand& o : view.in)
        operators_.in.push_back(o.present() ? &logical_[o.tensor] : nullptr);
      Value<T> mask;
      try {
        if (view.draws) {
          const Shape& whole = operators_.in.back() != nullptr ? operators_.in.back()->shape
                                                               : operators_.in.front()->shape;
          mask = drawnMask<T>(memory_, maskKey(problem_.attributes.at(view.attributes), whole),
                              whole, Shape(whole.size(), 0), whole, draw_);
        }
        operators_.apply(graph, graph.nodes[n], view, mask ? &mask : nullptr);
        for (std::size_t r = 0; r < view.out.size(); ++r)
          if (view.out[r] >= 0)
            operators_.checkDeclared(graph.nodes[n], graph.tensors[view.out[r]], operators_.out[r]);
      } catch (const Misfit& misfit) {
        throw std::logic_error("the model's " + Model::nodePointer(NodeId(n)) + ": " +
                               misfit.what());
      }
      for (std::size_t r = 0; r < view.out.size(); ++r) {
        if (view.out[r] < 0) continue;
        logical_[view.out[r]] = std::move(operators_.out[r]);
        stored(view.out[r]);
      }
      operators_.out.clear();
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
    // Those of approved differences are still to be read.
    for (std::size_t c = setup_.compared; c < setup_.claims.size(); ++c)
      if (const LineageEntry& entry = problem_.plan.lineage[setup_.claims[c].entry];
          entry.role == Role::kInput)
        releaseLogical(entry.tensor);
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
        divide(setup_.claims[source], [&](const Claim::Part& part, Value<T> value) {
          produce(part.rank, part.slot, std::move(value));
        });
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
      std::vector<Value<T>> result(1);
      static const Attributes none;
      const Call<T> call{context_, none, {}, {}, result};
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
  template <class Take>
  void divide(const Claim& claim, Take take) {
    Value<T> rest = piece(claim);
    for (std::size_t k = 0; k < claim.parts.size(); ++k) {
      const Claim::Part& part = claim.parts[k];
      const TensorId t = programs_.layout(part.rank).tensorOfSlot[part.slot];
      const Tensor& tensor = programs_.program(part.rank).graph.tensors[t];
      if (k + 1 == claim.parts.size()) {
        take(part, rest);
        break;
      }
      Value<T> value = own(part.rank, part.slot, tensor, t);
      Value<T> less(memory_, rest.shape, rest.element);
      for (std::int64_t i = 0; i < rest.size(); ++i)
        less.writable()[i] = rest.data()[i] - value.data()[i];
      less.masked = rest.masked;
      meaning_.measure(less, std::max(rest.reach, value.reach));
      rest = std::move(less);
      take(part, std::move(value));
    }
  }

  // What a node made, or what an approved difference puts in its place.
  void result(Rank rank, std::int32_t slot, Value<T> value) {
    const std::int64_t number = programs_.slot(rank, slot);
    const std::int32_t source = setup_.sourceOf(number);
    if (source < 0) return produce(rank, slot, std::move(value));
    const Claim& claim = setup_.claims[source];
    if (claim.parts.size() == 1) return produce(rank, slot, piece(claim));
    if (!std::exchange(divided_[source], 1))
      divide(claim, [&](const Claim::Part& part, Value<T> share) {
        replaced_[programs_.slot(part.rank, part.slot)] = std::move(share);
      });
    const auto share = replaced_.find(number);
    Value<T> given = std::move(share->second);
    replaced_.erase(share);
    produce(rank, slot, std::move(given));
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
  OperatorRun<T> operators_{problem_, memory_, context_, meaning_};
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
  std::map<std::int64_t, Value<T>> replaced_;  // by slot: parts of approved differences to come
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

}  // namespace shardproof::executor
