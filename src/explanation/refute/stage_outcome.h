// SPDX-License-Identifier: Apache-2.0
// What is known of one stage: a proof, a difference in numbers, or why neither was found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "prover/proof.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

// A claim that both sides' numbers contradict, by its lineage entry, shard and first local tensor.
struct DifferingClaim {
  EntryId entry;
  std::int32_t shard = -1;
  Rank rank;
  friend auto operator<=>(const DifferingClaim&, const DifferingClaim&) = default;
};

struct StageOutcome {
  std::optional<Proof> proof;
  // Of a refuted stage: by what; a proof has its own.
  Method refutedBy = Method::kNone;
  std::string reason;
  bool shortenedMask =
      false;  // the numbers of the counterexample were computed with a reduced mask
  // ... and again with a finer one, while the whole mask cannot be afforded.
  bool underCoarseMasks = false;
  // Refuted: the first claim that differs, and where.
  std::int32_t claim = -1;
  std::vector<DifferingClaim> differing;  // end to end: all claims that some attempt made differ,
                                          // sorted
  // Undecided because collapsing an axis is no symmetry of the stage: to be cut again with all
  // coordinates (stages/axis_symmetry.h).
  bool needsRefinement = false;
  std::optional<Counterexample> counterexample;
  std::vector<ReducedShape> reducedShapes;
  std::map<std::string, double>
      seconds;  // by phase: "reduce", "execute", "check", "refute", "expand", "solve"

  StageVerdict verdict() const {
    return proof                        ? StageVerdict::kProved
           : refutedBy != Method::kNone ? StageVerdict::kRefuted
                                        : StageVerdict::kUndecided;
  }
  Method method() const { return proof ? proof->method() : refutedBy; }
};

struct CheckOptions {
  Checker checker = Checker::kAuto;
  double timeoutSeconds = 60;  // for the solver; the pool bounds the whole
  std::size_t memoryMegabytes = 4096;
};

// A message of a worker to the main process.
std::string serialize(const StageOutcome& outcome);
StageOutcome deserialize(const std::string& text);

}  // namespace shardproof
