// SPDX-License-Identifier: Apache-2.0
// Random operator graphs: models of a few operators over every operator and gradient that there is,
// cut and communicated at random by the builder.
#include "adversary/case.h"
#include "adversary/families/random_graph.h"

namespace shardproof::adversary {

Case operatorGraphs(Random& random) {
  RandomGraph graph(random, randomOptions(random));
  const std::int64_t operators = random.between(1, 5);
  for (std::int64_t i = 0; i < operators; ++i) {
    if (random.chance(40) || graph.builder().size() == 0) graph.listed();
    else if (random.chance(15)) graph.gradient();
    else graph.onWhatIsThere();
  }
  if (graph.builder().size() == 0) graph.elementwise();
  return graph.finish();
}

}  // namespace shardproof::adversary
