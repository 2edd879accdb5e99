// SPDX-License-Identifier: Apache-2.0
// The model, on whole arrays. Each goes after its last use, by the model or by a claim.
#pragma once

#include <limits>
#include <stdexcept>
#include <vector>

#include "executor/run_state.h"

namespace shardproof::executor {

template <class T>
class ModelRun {
 public:
  explicit ModelRun(RunState<T>& state) : state_(state), problem_(state.setup.problem) {}

  void run() {
    if (state_.hooks.logical != nullptr) takeValues();
    else execute();
  }

  const Value<T>& operator[](TensorId t) const { return logical_[t]; }
  // One use less.
  void release(TensorId t) {
    if (--reads_[t] == 0) logical_[t] = {};
  }

 private:
  void takeValues() {
    logical_ = *state_.hooks.logical;
    reads_.assign(logical_.size(), std::numeric_limits<std::int32_t>::max());
  }

  void execute() {
    const Graph& graph = problem_.model.graph;
    logical_.resize(graph.tensors.size());
    reads_.assign(graph.tensors.size(), 0);
    for (const NodeView& view : state_.setup.model.nodes)
      for (const Operand& o : view.in)
        if (o.present()) ++reads_[o.tensor];
    // Needed by the plan: once for each claim.
    for (const Claim& claim : state_.setup.claims)
      ++reads_[problem_.plan.lineage[claim.entry].tensor];
    for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind == TensorKind::kProduced || state_.setup.model.added[t]) continue;
      logical_[t] = tensor.kind == TensorKind::kConstant ? state_.given.constant(graph, tensor)
                                                         : state_.given.input(TensorId(t), tensor);
      state_.guard.measure(logical_[t]);
      stored(TensorId(t));
    }
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      state_.checkLimits();
      const NodeView& view = state_.setup.model.nodes[n];
      state_.operators.in.clear();
      for (const Operand& o : view.in)
        state_.operators.in.push_back(o.present() ? &logical_[o.tensor] : nullptr);
      Value<T> mask;
      try {
        if (view.draws) {
          const Shape& whole = state_.operators.in.back() != nullptr
                                   ? state_.operators.in.back()->shape
                                   : state_.operators.in.front()->shape;
          mask =
              drawnMask<T>(state_.memory, maskKey(problem_.attributes.at(view.attributes), whole),
                           whole, Shape(whole.size(), 0), whole, state_.draw);
        }
        state_.operators.apply(graph, graph.nodes[n], view, mask ? &mask : nullptr);
        for (std::size_t r = 0; r < view.out.size(); ++r)
          if (view.out[r] >= 0)
            state_.operators.checkDeclared(graph.nodes[n], graph.tensors[view.out[r]],
                                           state_.operators.out[r]);
      } catch (const Misfit& misfit) {
        throw std::logic_error("the model's " + Model::nodePointer(NodeId(n)) + ": " +
                               misfit.what());
      }
      for (std::size_t r = 0; r < view.out.size(); ++r) {
        if (view.out[r] < 0) continue;
        logical_[view.out[r]] = std::move(state_.operators.out[r]);
        stored(view.out[r]);
      }
      state_.operators.out.clear();
      for (const Operand& o : view.in)
        if (o.present()) release(o.tensor);
    }
  }

  void stored(TensorId t) {
    if (state_.hooks.ofModel) state_.hooks.ofModel(t, logical_[t]);
    if (state_.keep.model != nullptr)
      (*state_.keep.model)[state_.setup.tensorName(t)] = arrayOf(logical_[t]);
    if (reads_[t] == 0) logical_[t] = {};
  }

  RunState<T>& state_;
  const Problem& problem_;
  std::vector<Value<T>> logical_;
  std::vector<std::int32_t> reads_;  // by tensor, still to come
};

}  // namespace shardproof::executor
