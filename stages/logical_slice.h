// SPDX-License-Identifier: Apache-2.0
// The model's side of a stage: from the claimed tensors backward to those that the assumed lineage
// is about. Where such a cut would hide the tensors which the plan's side starts from, it is
// opened; and copies or rearrangements of one tensor are computed from their common source, so that
// they do not become unrelated unknowns. Where it stops is a matter of what can be proved: a tensor
// that is not computed is any tensor, which proves less and nothing wrong. Internal to stages/.
#pragma once

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "stages/cut_context.h"
#include "stages/local_slice.h"
#include "stages/stage.h"

namespace shardproof {

class LogicalSlice {
 public:
  // Makes the model's tensors and nodes in `stage`.
  LogicalSlice(const CutContext& cut, const LocalSlice& local, Stage& stage);

  // The stage's tensor for one of the model; made where it is not there yet.
  StageTensorId tensor(TensorId t, bool computed);

 private:
  // The operands that a logical operator's results depend on: what only lends its shape (the
  // operand of view_backward) is left a variable.
  std::span<const Operand> relevantOperands(const Node& node) const;

  // Tensors reached backward from `from` (itself included) without passing through `stop`.
  std::unordered_set<TensorId> reach(const std::vector<TensorId>& from,
                                     const std::unordered_set<TensorId>& stop,
                                     bool passStart) const;

  void chooseCut();

  // Copies and rearrangements of one tensor (multiref, float, view, ...) must not become unrelated
  // variables when the slice stops at several of them: it stops at their common source instead, and
  // they are computed from it.
  TensorId sourceOf(TensorId t) const;

  void build();

  TensorFacts factsOf(TensorId t) const;

  // A tensor of its own with the shape of a logical one: the latter may be computed only later in
  // the stage.
  StageTensorId shapeOnlyTensor(TensorId t);

  StageTensorId addLogical(std::unordered_map<TensorId, StageTensorId>& ids, TensorId t,
                           Origin origin);

  const CutContext& cut_;
  const LocalSlice& local_;
  Stage& stage_;
  std::unordered_set<TensorId> stops_, reached_;
  std::unordered_map<TensorId, StageTensorId> logicalIds_, shapeOnlyIds_;
};

}  // namespace shardproof
