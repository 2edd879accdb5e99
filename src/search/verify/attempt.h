// SPDX-License-Identifier: Apache-2.0
// One attempt at a verdict: with which lemmas, and what it may cost. src/search/attempts/ has the
// table of all attempts and the order in which they are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "shardproof/budget.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

class AttemptMemory;  // attempt_memory.h

// Where the lemmas of an attempt come from.
enum class Lemmas : std::uint8_t {
  kFile,           // the plan's cut points
  kInferred,       // ... and what inference finds
  kInferredParts,  // ... also several boxes, and other orders of dimensions
  kInferredOnly,   // what inference finds, and no cut point of the plan
};

struct Attempt {
  static constexpr double kAllSeconds = std::numeric_limits<double>::infinity();
  static constexpr std::size_t kAllMegabytes = std::numeric_limits<std::size_t>::max();

  std::string_view name;
  Lemmas lemmas = Lemmas::kFile;
  double stageSeconds = kAllSeconds;  // no more than this, or VerifyOptions::stageSeconds
  // From then on the attempt ends as soon as a proof is not done in its time, or one was not: what
  // is left of the run's time is for other attempts.
  double seconds = kAllSeconds;
  std::size_t megabytes = kAllMegabytes;  // no more than this, or VerifyOptions::memoryMegabytes
  // The attempt ends as soon as a proof is not done within its time and memory, stages turn out
  // many times as large as the plan, or cut points are refuted while the outputs agree in numbers.
  // Another attempt then has other lemmas.
  bool stopAtFirstFailure = false;
  // Cut points that numbers contradict while they agree with the outputs. Asked beside the first
  // proofs, in a process of its own; where there are any, the attempt ends. Null: not asked.
  std::vector<EntryId> (*contradicted)(const Problem& problem) = nullptr;
};

// Never throws for a wrong plan: that is a verdict. Throws InputError where only the index of the
// plan can see an input error. `doubtful`: lineage entries of outputs that are probably wrong;
// these are evaluated in numbers before they are tried to be proved, which changes the order of the
// work only. `leftOut`: cut points that nothing may assume; whether they hold is for the report
// alone. `memory`: what earlier attempts know of stages, to which this one adds; nullptr: nothing.
Report verifyOnce(const Problem& problem, const VerifyOptions& options, const Attempt& attempt,
                  const Budget& budget, const std::vector<EntryId>& doubtful = {},
                  const std::vector<EntryId>& leftOut = {}, AttemptMemory* memory = nullptr);

}  // namespace shardproof
