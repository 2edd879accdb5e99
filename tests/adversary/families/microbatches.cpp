// SPDX-License-Identifier: Apache-2.0
// One microbatch and many: few operators, each tensor for each microbatch or once, "*" or one by
// one, in issue order or not, boxes that run along the microbatches forwards, backwards and
// overlapping, sums over them. The plans are small so that the edits that follow hit the
// microbatches.
#include "adversary/case.h"
#include "adversary/families/random_graph.h"

namespace shardproof::adversary {

Case microbatches(Random& random) {
  BuilderOptions options;
  if (random.chance(60)) options.mesh.push_back(random.pick({1, 2, 2, 3, 4}));
  options.microbatches = random.pick({1, 1, 1, 2, 2, 3, 4, 5, 8});
  options.issueOrder = random.chance(35);
  options.cutPoints = random.pick({0, 50, 100});
  options.cut = random.pick({60, 95});
  options.strange = random.pick({0, 30, 70});
  RandomGraph graph(random, options);
  graph.operand({{random.pick({4, 6, 8, 12}), random.pick({1, 2, 4})}});
  const std::int64_t operators = random.between(1, 4);
  for (std::int64_t i = 0; i < operators; ++i) {
    if (random.chance(50)) graph.elementwise();
    else graph.onWhatIsThere();
  }
  graph.elementwise();
  return graph.finish();
}

}  // namespace shardproof::adversary
