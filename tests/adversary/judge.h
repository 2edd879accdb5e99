// SPDX-License-Identifier: Apache-2.0
// The verdict on a plan beside its truth. The truth is what the plain executor computes
// (src/explanation/executor): from several draws of its own, and from inputs drawn here that hit
// what random numbers miss: zeros, equal elements, small whole numbers.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "adversary/case.h"
#include "shardproof/verify.h"

namespace shardproof::adversary {

// kThin: right on all ordinary draws, wrong on a special one (a division by zero that only an input
// of zeros meets). kNone: the reader does not take it; no problem at all.
enum class Truth { kRight, kWrong, kThin, kCannotRun, kUnknown, kNone };
enum class Verdict3 { kEquivalent, kNotEquivalent, kUndecided, kNone };

// kUnsound: a wrong plan is EQUIVALENT. kFalseAlarm: a right one is NOT EQUIVALENT. kInternal: an
// exception, a crash, or a check that died inside.
enum class Finding { kNothing, kUnsound, kFalseAlarm, kInternal };

struct Judgement {
  Truth truth = Truth::kNone;
  Verdict3 verdict = Verdict3::kNone;
  Finding finding = Finding::kNothing;
  std::string truthReason;  // where it differs, why it cannot run or could not be told
  std::string reason;       // of the verdict: the defect, or why it is undecided
  double verifySeconds = 0, executeSeconds = 0;
  bool saturated = false;       // executor::Result::saturated
  bool open = false;            // some kind of ordinary inputs did not let the sides be compared
  bool structural = false;      // not equivalent for a reason found before any proof
  std::set<std::string> found;  // kinds of relations, of a plan that had lineage to be found
};

struct JudgeOptions {
  ProofStore* proofs = nullptr;
  std::uint64_t seed = 1;
  int trials = 3;
  double solverSeconds = 1;
  bool forked = false;  // verify as users do, in processes that are killed when their time is over
  bool bare = false;    // cut points are taken from the plan, and found (shardproof/infer.h)
};

Judgement judge(const Case& made, const JudgeOptions& options);

const char* toString(Truth truth);
const char* toString(Verdict3 verdict);
const char* toString(Finding finding);

}  // namespace shardproof::adversary
