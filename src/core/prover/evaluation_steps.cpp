// SPDX-License-Identifier: Apache-2.0
#include "prover/evaluation_steps.h"

#include <cstdint>
#include <utility>

#include "ops/registry.h"

namespace shardproof {
namespace {

bool isSum(const StageNode& node, const ReducedStage& reduced) {
  if (node.communication != Communication::kNone ||
      !ops::Registry::instance().at(node.op).traits.sums || node.in.size() != 2 ||
      node.out.size() != 1)
    return false;
  const std::int32_t result = node.out[0];
  if (node.in[0] < 0 || node.in[1] < 0 || result < 0 || !node.attributes->empty()) return false;
  return reduced.dims[node.in[0]] == reduced.dims[result] &&
         reduced.dims[node.in[1]] == reduced.dims[result];
}

}  // namespace

std::vector<EvaluationStep> evaluationSteps(const Stage& stage, const ReducedStage& reduced,
                                            const std::vector<char>& inEquation, bool logical,
                                            bool trees) {
  std::vector<EvaluationStep> steps;
  std::vector<std::int32_t> uses(stage.tensors.size(), 0),
      inner(stage.tensors.size(),
            -1);  // inner: the step of a tree that so far ends with the tensor
  for (const StageNode& node : stage.nodes) {
    for (const StageTensorId t : node.in) {
      if (t >= 0) ++uses[t];
    }
  }
  for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
    const StageNode& node = stage.nodes[i];
    if (node.logical != logical) continue;
    EvaluationStep step{i, node.in};
    if (trees && isSum(node, reduced)) {
      step.tree = true;
      step.reads.clear();
      for (const StageTensorId t : node.in) {
        const std::int32_t before = uses[t] == 1 && !inEquation[t] ? inner[t] : -1;
        if (before < 0) {
          step.reads.push_back(t);
          continue;
        }
        auto& below = steps[before].reads;
        if (below.size() > step.reads.size())
          below.swap(
              step.reads);  // the longer list is never copied: trees of any shape cost O(n log n)
        step.reads.insert(step.reads.end(), below.begin(), below.end());
        below.clear();
      }
      inner[node.out[0]] = static_cast<std::int32_t>(steps.size());
    }
    steps.push_back(std::move(step));
  }
  std::erase_if(steps, [](const EvaluationStep& s) { return s.tree && s.reads.empty(); });
  return steps;
}

}  // namespace shardproof
