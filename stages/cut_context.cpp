// SPDX-License-Identifier: Apache-2.0
#include "stages/cut_context.h"

#include <algorithm>

namespace shardproof {

bool CutContext::usable(EntryId f) const {
  const LineageEntry& entry = plan.lineage[f];
  if (isGiven(entry.role)) return true;
  if (options.proved) return (*options.proved)[f] && !maxKey_.contains(f);
  if (options.excluded && (*options.excluded)[f]) return false;
  if (std::binary_search(options.deepened.begin(), options.deepened.end(), f)) return false;
  for (const auto& [e, key] : maxKey_) {
    if (!(order(f) < key)) return false;
  }
  return true;
}

void describe(StageTensor& made, const Tensor& tensor, const Graph& graph) {
  made.kind = tensor.kind;
  made.name = tensor.name;
  if (made.origin == Origin::kVariable) made.known = tensor.known;
  if (made.origin != Origin::kConstant) return;
  if (tensor.kind == TensorKind::kConstant) {
    made.constant = graph.constants[tensor.constant];
    return;
  }
  // What a collective_permute brings to who is no target.
  static const auto zero =
      std::make_shared<const ConstantValue>(ConstantValue{{Rational(0)}, true});
  made.kind = TensorKind::kConstant;
  made.constant = zero;
}

}  // namespace shardproof
