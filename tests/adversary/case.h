// SPDX-License-Identifier: Apache-2.0
// What a family makes: a model and a plan as documents, in the form of docs/format.md, and what was
// done to them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "adversary/random.h"

namespace shardproof::adversary {

using Json = nlohmann::ordered_json;

struct Case {
  Json model, plan;
  std::string
      edit;  // what was changed in it after it was made; empty: nothing, it ought to be right
};

// Makes one plan; the same one for the same random numbers. `small` bounds are the family's own
// affair: some dozen ranks, some thousand elements.
using Family = Case (*)(Random&);

Case operatorGraphs(Random& random);
Case architectures(Random& random);
Case lookups(Random& random);
Case definedness(Random& random);
Case microbatches(Random& random);

}  // namespace shardproof::adversary
