// SPDX-License-Identifier: Apache-2.0
#include "ops/registry.h"

#include <algorithm>

#include "ops/definition.h"
#include "util/similar.h"

namespace shardproof::ops {
const Registry& Registry::instance() {
  static const Registry registry;
  return registry;
}

Registry::Registry() {
  defineElementwise(operators_);
  defineLayout(operators_);
  defineCutting(operators_);
  defineReductions(operators_);
  defineLinearAlgebra(operators_);
  defineNormalization(operators_);
  defineEmbeddingAttention(operators_);
  defineAttention(operators_);
  defineMoe(operators_);
  defineLosses(operators_);
  defineOptimizer(operators_);
  defineOneHot(operators_);
  defineChoice(operators_);
  defineOrdering(operators_);
  std::sort(operators_.begin(), operators_.end(),
            [](const OperatorInfo& a, const OperatorInfo& b) { return a.name < b.name; });
}

OperatorId Registry::find(std::string_view name) const {
  const auto it =
      std::lower_bound(operators_.begin(), operators_.end(), name,
                       [](const OperatorInfo& op, std::string_view n) { return op.name < n; });
  return it == operators_.end() || it->name != name ? OperatorId()
                                                    : OperatorId(it - operators_.begin());
}

std::vector<std::string> Registry::similar(std::string_view name) const {
  std::vector<std::string> known;
  for (const OperatorInfo& op : operators_) known.push_back(op.name);
  return similarTo(name, known, 5);
}

}  // namespace shardproof::ops
