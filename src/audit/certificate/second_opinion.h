// SPDX-License-Identifier: Apache-2.0
// What besides its own proof speaks for a class of a proof log: a proof by another method, and the
// execution of its stage at full size. `check-log` asks for it after all else holds;
// docs/certificate.md says what each kind of evidence is worth.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "certificate/proof_log.h"
#include "certificate/second_method.h"
#include "plan/plan_index.h"
#include "unreduced/sample.h"
#include "worker/pool.h"

namespace shardproof {

struct SecondOpinionOptions {
  double timeoutSeconds = 1;  // for each attempt on a class
  std::optional<SecondMethod>
      only;  // try this method on every class, also where it is the one that proved it, and ...
  bool execution = true;  // ... execute, or not
  bool methods = true;    // false: no proof by another method
  unreduced::SampleOptions
      sample;  // mostElements: in each second; seconds: not read, a part of timeoutSeconds is
};

struct ClassEvidence {
  std::size_t classId = 0;
  std::optional<SecondMethod> provedBy;  // another method that succeeds
  std::vector<std::pair<SecondMethod, std::string>>
      failed;                         // those that were tried before it, and why they do not
  EntryId entry;                      // whose stage was executed: the first of the class
  bool attempted = false;             // it was
  unreduced::SampleOutcome executed;  // executed.difference: the class is refuted
  bool any() const { return provedBy || executed.agreed > 0; }
};

// For each of `classes` (by number in the log). Every entry's stage must be known to be of its
// class, and the index to be without defects.
std::vector<ClassEvidence> secondOpinions(
    const ProofLog& log, const Problem& problem, const PlanIndex& planIndex,
    const std::vector<std::size_t>& classes, const SecondOpinionOptions& options,
    const PoolOptions& pool,
    const std::function<void(std::size_t, std::size_t, const char*)>& progress);

}  // namespace shardproof
