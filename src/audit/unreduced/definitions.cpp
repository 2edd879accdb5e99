// SPDX-License-Identifier: Apache-2.0
#include "unreduced/definitions.h"

namespace shardproof::unreduced {

const Definitions* definitionsOf(const std::string& name) {
  static const DefinitionTable table = [] {
    DefinitionTable t;
    defineElementwise(t);
    defineLayout(t);
    defineContractions(t);
    defineRows(t);
    defineLookups(t);
    defineAttention(t);
    defineExperts(t);
    defineTraining(t);
    return t;
  }();
  return table.find(name);
}

}  // namespace shardproof::unreduced
