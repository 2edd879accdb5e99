// SPDX-License-Identifier: Apache-2.0
// Replays a proof log against its model and plan: every stage is cut again, must assume what the
// log states and be the one that the log says was proved, and is proved again from its canonical
// form; that the lemmas reach from the inputs to the outputs is found by a walk of its own. Of the
// verifier (src/search/verify/, src/core/cache/) nothing is used or believed. docs/certificate.md
// says what that leaves to be trusted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "certificate/proof_log.h"
#include "certificate/second_opinion.h"
#include "worker/pool.h"

namespace shardproof {

struct CheckLogOptions {
  std::optional<std::size_t>
      sample;  // prove only so many classes again, drawn at random; 0: none. Absent: all
  std::uint64_t seed = 0;
  std::optional<Checker> checker;  // absent: the one that the log was made with
  std::optional<SecondOpinionOptions> second =
      SecondOpinionOptions{};  // of the classes that are proved again; absent: none
  PoolOptions pool;
  std::function<void(std::size_t, std::size_t, const char*)> progress;  // done, in all, doing what
};

struct CheckLogResult {
  struct Finding {
    std::string place;  // JSON pointer into the log
    std::string why;
    bool limits = false;  // a proof was not made again for want of time or memory, which says
                          // nothing about it
  };
  std::vector<Finding> findings;  // empty: the log holds; nothing is looked at after the first step
                                  // that finds something
  std::vector<EntryId> approved;  // approved differences: taken as given, by the log and here
  std::size_t lemmas = 0;         // entries that the log calls proved, each with its stage
  std::size_t proofs = 0, provedAgain = 0;  // classes
  std::vector<ClassEvidence>
      evidence;  // of the classes that were proved again; empty where it was not looked for
  bool interrupted = false;
  bool holds() const { return findings.empty() && !interrupted; }
  bool anyWrong() const;
};

// Throws InputError where the log is of other rules than this program's, and where the index does
// (the plan was no input for the verifier either).
CheckLogResult checkLog(const ProofLog& log, const Problem& problem,
                        const CheckLogOptions& options);

}  // namespace shardproof
