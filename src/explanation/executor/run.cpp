// SPDX-License-Identifier: Apache-2.0
#include "executor/run.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "executor/collectives.h"
#include "executor/model_run.h"
#include "executor/run_state.h"
#include "executor/schedule.h"
#include "util/index.h"

namespace shardproof::executor {
namespace {

// The plan, rank by rank, as its schedule goes.
template <class T>
class PlanRun {
 public:
  PlanRun(RunState<T>& state, ModelRun<T>& model, double tolerance)
      : state_(state),
        problem_(state.setup.problem),
        programs_(state.setup.programs),
        model_(model),
        tolerance_(tolerance) {}

  void run() {
    const std::int64_t ranks = programs_.mesh().ranks();
    for (const std::int32_t e : state_.setup.entries) entries_[e];
    local_.resize(at(ranks));
    reads_.resize(at(ranks));
    remaining_.assign(state_.setup.compared, 0);
    sums_.resize(state_.setup.compared);
    for (std::size_t c = 0; c < state_.setup.compared; ++c)
      remaining_[c] = static_cast<std::int32_t>(state_.setup.claims[c].parts.size());
    for (const Rank r : firstIds<Rank>(ranks)) {
      local_[r].resize(at(programs_.layout(r).slots()));
      reads_[r] = programs_.layout(r).reads;
    }
    constants_.resize(problem_.plan.programs.size());
    kinds_.resize(problem_.plan.programs.size());
    divided_.assign(state_.setup.claims.size(), 0);
    for (const Rank r : firstIds<Rank>(ranks)) give(r);
    pieces_.clear();
    constants_.clear();
    // Those of approved differences are still to be read.
    for (std::size_t c = state_.setup.compared; c < state_.setup.claims.size(); ++c)
      if (const LineageEntry& entry = problem_.plan.lineage[state_.setup.claims[c].entry];
          entry.role == Role::kInput)
        model_.release(entry.tensor);
    runSchedule(programs_, *this);
  }

  std::map<std::int32_t, Comparison>&& entries() { return std::move(entries_); }

  // --- the schedule's host ---

  void compute(Rank rank, std::int32_t instance) {
    state_.checkLimits();
    const ProgramLayout& layout = programs_.layout(rank);
    const Graph& graph = programs_.program(rank).graph;
    const Instance& i = layout.instances[instance];
    const NodeView& view = state_.setup.plans[programs_.programOf(rank)].nodes[i.node];
    const Node& node = graph.nodes[i.node];
    std::vector<Value<T>>& values = local_[rank];
    state_.operators.in.clear();
    for (const Operand& o : view.in) {
      if (!o.present()) {
        state_.operators.in.push_back(nullptr);
        continue;
      }
      const std::int32_t slot = programs_.slotOf(
          layout, graph, o.tensor, o.microbatch.isOne() ? o.microbatch.number() : i.microbatch);
      state_.operators.in.push_back(&values[slot]);
    }
    Value<T> mask;
    try {
      if (view.draws) mask = localMask(rank, instance, view);
      state_.operators.apply(graph, node, view, mask ? &mask : nullptr);
      for (std::size_t r = 0; r < view.out.size(); ++r)
        if (view.out[r] >= 0) {
          state_.operators.checkDeclared(node, graph.tensors[view.out[r]], state_.operators.out[r]);
          checkKind(rank, view.out[r], state_.operators.out[r]);
        }
    } catch (const Misfit& misfit) {
      throw CannotRun(programs_.place(rank, instance) + ": " + misfit.what());
    }
    std::vector<Value<T>> results = std::move(state_.operators.out);
    state_.operators.out.clear();
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
    state_.checkLimits();
    std::vector<const Value<T>*> operands;
    for (const Member& m : rendezvous.members) {
      const bool gives = programs_.node(m.rank, m.instance).inCount == 1;
      operands.push_back(gives ? &local_[m.rank][programs_.operandSlot(m.rank, m.instance, 0)]
                               : nullptr);
    }
    const Member& first = rendezvous.members.front();
    std::vector<Value<T>> results;
    try {
      results = communicated(state_.context, *programs_.communication(first.rank, first.instance),
                             operands);
    } catch (const Misfit& misfit) {
      throw CannotRun(programs_.place(first.rank, first.instance) + ": " + misfit.what());
    } catch (const NoMeaning& nothing) {
      results.resize(rendezvous.members.size());
      for (std::size_t m = 0; m < rendezvous.members.size(); ++m) {
        const Member& member = rendezvous.members[m];
        if (programs_.node(member.rank, member.instance).outCount > 0)
          results[m] = state_.operators.meaningless(declared(member), nothing.what());
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
      state_.guard.measure(results[m], reach);
      result(member.rank, programs_.resultSlot(member.rank, member.instance, 0),
             std::move(results[m]));
    }
    for (const Member& m : rendezvous.members)
      if (programs_.node(m.rank, m.instance).inCount == 1)
        release(m.rank, programs_.operandSlot(m.rank, m.instance, 0));
  }

 private:
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

  // The piece of a logical mask that belongs where what is dropped out lies, or the result.
  Value<T> localMask(Rank rank, std::int32_t instance, const NodeView& view) {
    const ProgramLayout& layout = programs_.layout(rank);
    const Graph& graph = programs_.program(rank).graph;
    const Instance& i = layout.instances[instance];
    const Placement* placement = nullptr;
    const auto look = [&](TensorId tensor, std::int32_t microbatch) {
      if (placement == nullptr && tensor >= 0)
        placement = state_.setup.placementOf(
            programs_.slot(rank, programs_.slotOf(layout, graph, tensor, microbatch)));
    };
    const Operand& dropped = view.in.back();
    look(dropped.tensor, dropped.microbatch.isOne() ? dropped.microbatch.number() : i.microbatch);
    if (view.in.size() == 1) {
      look(view.out[0], i.microbatch);
    } else if (!dropped.microbatch.isOne()) {  // backward: what the dropout gave that read the same
      const std::vector<NodeView>& views =
          state_.setup.plans.at(at(programs_.programOf(rank))).nodes;
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
    const Shape& extent = state_.operators.in.back() != nullptr
                              ? state_.operators.in.back()->shape
                              : state_.operators.in.front()->shape;
    if (placement != nullptr && placement->tensor >= 0) {
      const Shape& whole = problem_.model.graph.tensors[placement->tensor].shape;
      if (whole.size() == extent.size())
        return drawnMask<T>(state_.memory, maskKey(problem_.attributes.at(view.attributes), whole),
                            whole, placement->low, extent, state_.draw);
    }
    Value<T> mask = drawnMask<T>(state_.memory, mixed(static_cast<std::uint64_t>(rank) + 1), extent,
                                 Shape(extent.size(), 0), extent, state_.draw);
    mask.unknown = std::make_shared<const std::string>(
        programs_.place(rank, instance) +
        ": no lineage says for which positions the mask is drawn" +
        (placement != nullptr ? ", or it says two things" : ""));
    return mask;
  }

  // What no node of a rank produces.
  void give(Rank rank) {
    const ProgramLayout& layout = programs_.layout(rank);
    const Program& program = programs_.program(rank);
    const auto p = static_cast<std::size_t>(programs_.programOf(rank));
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      const TensorId t = layout.tensorOfSlot[slot];
      const Tensor& tensor = program.graph.tensors[t];
      if (tensor.kind == TensorKind::kProduced || state_.setup.plans[p].added[t]) continue;
      const std::int64_t number = programs_.slot(rank, slot);
      const std::int32_t source = state_.setup.sourceOf(number);
      const bool needed = layout.reads[slot] > 0 || !state_.setup.claimsOfSlot(number).empty() ||
                          state_.keep.local != nullptr || state_.hooks.ofPlan;
      if (tensor.kind == TensorKind::kConstant) {
        if (!needed) continue;
        Value<T>& value = constants_[p][t];
        if (!value) value = state_.given.constant(program.graph, tensor);
        state_.guard.measure(value);
        produce(rank, slot, value);
      } else if (source < 0) {
        if (needed) produce(rank, slot, own(rank, slot, tensor, t));
      } else if (state_.setup.claims[source].parts.size() == 1) {
        if (needed) produce(rank, slot, piece(state_.setup.claims[source]));
      } else if (!divided_[source]) {
        divided_[source] = 1;
        divide(state_.setup.claims[source], [&](const Claim::Part& part, Value<T> value) {
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
    Value<T> value = drawn<T>(
        state_.memory,
        {tensor.shape, tensor.element, state_.setup.uses.ofLocal(programs_.programOf(rank), t),
         tensor.kind == TensorKind::kParameter, key},
        state_.draw);
    state_.guard.measure(value);
    return value;
  }

  // The box of the logical tensor; ranks that have the same piece share it.
  Value<T> piece(const Claim& claim) {
    const TensorId tensor = problem_.plan.lineage[claim.entry].tensor;
    const Value<T>& whole = model_[tensor];
    if (claim.extent == whole.shape) return whole;
    Value<T>& shared = pieces_[{tensor, claim.low, claim.extent}];
    if (!shared) {
      std::vector<Value<T>> result(1);
      static const Attributes none;
      const Call<T> call{state_.context, none, {}, {}, result};
      const Shape strides = stridesOf(whole.shape);
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < strides.size(); ++d) offset += claim.low[d] * strides[d];
      shared = strided(call, whole, claim.extent, strides, offset);
      shared.masked = whole.masked;
      state_.guard.measure(shared);
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
      Value<T> less(state_.memory, rest.shape, rest.element);
      for (std::int64_t i = 0; i < rest.size(); ++i)
        less.writable()[i] = rest.data()[i] - value.data()[i];
      less.masked = rest.masked;
      state_.guard.measure(less, std::max(rest.reach, value.reach));
      rest = std::move(less);
      take(part, std::move(value));
    }
  }

  // What a node made, or what an approved difference puts in its place.
  void result(Rank rank, std::int32_t slot, Value<T> value) {
    const std::int64_t number = programs_.slot(rank, slot);
    const std::int32_t source = state_.setup.sourceOf(number);
    if (source < 0) return produce(rank, slot, std::move(value));
    const Claim& claim = state_.setup.claims[source];
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
    if (state_.hooks.ofPlan) state_.hooks.ofPlan(rank, slot, value);
    if (state_.keep.local != nullptr) keepLocal(rank, slot, value);
    for (const std::int32_t c : state_.setup.claimsOfSlot(number)) claimed(c, value);
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
    (*state_.keep.local)[name] = arrayOf(value);
  }

  // A part of a claim is there.
  void claimed(std::int32_t c, const Value<T>& value) {
    const Claim& claim = state_.setup.claims[c];
    Value<T>& sum = sums_[c];
    if (!sum) {
      sum = value;
    } else {
      Value<T> more(state_.memory, sum.shape, sum.element);
      const T *a = sum.data(), *b = value.data();
      T* to = more.writable();
      forEach(more.size(), [=](std::int64_t i) { to[i] = a[i] + b[i]; });
      more.unknown = sum.unknown ? sum.unknown : value.unknown;
      more.masked = sum.masked || value.masked;
      state_.guard.measure(more, std::max(sum.reach, value.reach));
      sum = std::move(more);
    }
    if (--remaining_[c] > 0) return;
    const TensorId tensor = problem_.plan.lineage[claim.entry].tensor;
    if (state_.hooks.ofClaim) state_.hooks.ofClaim(at(c), model_[tensor], sum);
    else compare(claim, model_[tensor], sum, tolerance_, entries_[claim.entry]);
    sum = {};
    model_.release(tensor);
  }

  RunState<T>& state_;
  const Problem& problem_;
  const Programs& programs_;
  ModelRun<T>& model_;
  const double tolerance_;
  std::map<std::int32_t, Comparison> entries_;
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
  RunState<T> state(setup, draw, limits, keep, hooks);
  RunResult result;
  ModelRun<T> model(state);
  model.run();
  if (!hooks.afterModel || hooks.afterModel()) {
    PlanRun<T> plan(state, model, tolerance);
    plan.run();
    result.entries = plan.entries();
  }
  result.flops = state.context.flops;
  result.peakBytes = state.memory.peak;
  result.closeDecisions = state.context.closeDecisions;
  result.saturated = state.context.saturated;
  return result;
}

template RunResult run<double>(const Setup&, const Draw&, double, const Limits&, const Arrays&,
                               const Hooks<double>&);
template RunResult run<long double>(const Setup&, const Draw&, double, const Limits&, const Arrays&,
                                    const Hooks<long double>&);
template RunResult run<Field>(const Setup&, const Draw&, double, const Limits&, const Arrays&,
                              const Hooks<Field>&);

}  // namespace shardproof::executor
