// SPDX-License-Identifier: Apache-2.0
// The main job: decide whether a plan is equivalent to its model.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

class ProofStore;    // src/core/cache/proof_store.h
struct ProofRecord;  // src/audit/certificate/proof_record.h

enum class Checker : std::uint8_t {
  kAuto,  // normal forms first, Z3 for what they leave
  kZ3,    // everything goes to Z3
};

struct VerifyOptions {
  int jobs = 0;  // worker processes; 0: one per core
  // Stages are checked in the caller's process, one after the other, and none is forked: for
  // callers that verify thousands of small plans. Exceptions in a check are contained as a lost
  // worker is (Statistics::workersLost), but only the solver keeps to the limit of time, nothing to
  // that of memory, and a crash is the caller's. `jobs` does not count then.
  bool inProcess = false;
  double stageSeconds = 60;  // for the proof of one class of stages
  // For the whole run: cutting, proving, evaluating and inferring. When it is over the verdict is
  // "undecided", unless it was settled before. Reading files does not count.
  double runSeconds = std::numeric_limits<double>::infinity();
  std::size_t memoryMegabytes = 4096;  // per worker
  Checker checker = Checker::kAuto;
  bool shareClasses = true;  // false (--no-classes): every stage is proved by itself
  ProofStore* proofs =
      nullptr;  // where proofs are looked up and left; not asked without shareClasses
  ProofRecord* record = nullptr;  // filled where the plan is equivalent; not without shareClasses
  std::string smt2Directory;  // --smt2: where every obligation is written as SMT-LIB; prepared by
                              // prepareObligationDirectory; empty: nowhere
  // Names of assumptions that the user accepts, and glob patterns of what need not be compared:
  // what is left of either makes a proved plan conditional (Verdict::kConditional).
  std::vector<std::string> accept, allowUncompared;
  const std::atomic<bool>* cancel =
      nullptr;  // set from a signal handler: finish with a partial report
  // Called from the main process only: stages done, stages in all, what is being done.
  std::function<void(std::size_t, std::size_t, const char*)> progress;
};

// Never throws for a wrong plan: that is a verdict. Throws InputError where only the index of the
// plan can see an input error.
Report verify(const Problem& problem, const VerifyOptions& options);

}  // namespace shardproof
