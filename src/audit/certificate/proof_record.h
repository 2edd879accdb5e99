// SPDX-License-Identifier: Apache-2.0
// What an "equivalent" verdict rests on, as the verifier has it at the end of a run: a proof log is
// written from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

struct ProofRecord {
  struct Class {
    std::string form;  // canonical
    Method method = Method::kNone;
  };
  // One for each lineage entry of the plan.
  struct Entry {
    bool proved = false;        // down to the inputs; never set for role input
    std::int32_t classId = -1;  // into `classes`
    std::vector<EntryId>
        assumes;  // entries that its stage assumes, sorted, without those of role input
    std::int32_t forbidden = 0;  // into `forbidden`
    std::int64_t key = 0;        // its place in the order of lemmas (PlanIndex::entryKey)
    bool collapse = true;  // coordinates of interchangeable axes were collapsed when its stage was
                           // cut (CutOptions::collapse)
  };
  std::vector<Class> classes;
  // Sets of entries that some stage was not to assume although they come before it: they had
  // failed, or the stage had to reach further up. Sorted, each once; the first is empty.
  std::vector<std::vector<EntryId>> forbidden{{}};
  std::vector<Entry> entries;  // empty: the verdict was another
};

}  // namespace shardproof
