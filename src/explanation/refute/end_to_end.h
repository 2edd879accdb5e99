// SPDX-License-Identifier: Apache-2.0
// Does what failed show in an output? Both sides are evaluated in doubles, the model from its
// inputs, the plan from what is proved of it, to the outputs.
//
// A stage is refuted for values of its own inputs, which the plan may never produce, and a wrong
// cut point is not a wrong plan: this tells. It proves nothing, and what it refutes rests on
// numbers (docs/soundness.md, "What "not equivalent" rests on"). Of a large plan the output that is
// nearest to the first failed lemma is tried first; with causal masks reduced at first, and whole
// ones to confirm what they show.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "plan/plan_index.h"
#include "refute/stage_refuter.h"
#include "stages/cutter.h"
#include "worker/pool.h"

namespace shardproof {

// What is asked. References are kept while it is answered.
struct EndToEndQuestion {
  const PlanIndex& planIndex;
  const std::vector<char>& proved;          // by entry, in whole chains from the inputs
  const std::vector<EntryId>& topological;  // all entries but those of role input
  const std::vector<EntryId>& failed;  // lemmas that are looked at, too: which are really wrong?
  EntryId firstRefuted;                // none: no stage is
  std::function<const std::vector<EntryId>&(EntryId)> usedBy;  // what an entry's stage assumes
  PoolOptions pool;
  const Budget* budget = nullptr;
};

struct EndToEndResult {
  bool differs = false;                        // an output does
  std::map<EntryId, DifferingClaim> violated;  // entries that were found wrong, with one claim each
  bool evaluated = false;         // ... to an end: what is not among them was found equal
  EntryId shows;                  // an output in which the difference shows
  bool underCoarseMasks = false;  // ... with two coarse masks; the whole one is too large
  EntryId
      suspected;  // an output that differs with a shortened causal mask, which nothing confirmed
  std::vector<CyclicWait> cycles;  // that were met in cutting
  std::size_t peakWorkerBytes = 0;
};

EndToEndResult checkEndToEnd(const EndToEndQuestion& question);

}  // namespace shardproof
