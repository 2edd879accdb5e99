// SPDX-License-Identifier: Apache-2.0
// The exit codes, as CBMC has them. Part of the interface: scripts and CI depend on them.
#pragma once

#include "shardproof/report.h"

namespace shardproof {

enum ExitCode : int {
  kExitEquivalent = 0,
  kExitUsage = 1,
  kExitInput = 2,
  kExitDoesNotApply = 3,  // mutate: the plan has no place for the bug
  kExitConditional = 4,
  kExitUndecided = 5,
  kExitInternal = 6,
  kExitOutOfMemory = 7,
  kExitNotEquivalent = 10,
  kExitSignal = 128,  // plus the signal's number
};

constexpr const char* kExitCodesHelp =
    "Exit codes:\n"
    "  0    equivalent: proved for every input\n"
    "  10   not equivalent: the plan is wrong, and the report says where\n"
    "  4    conditional: proved, but on assumptions that could hide a bug (--accept), or something "
    "is not compared (--allow-uncompared)\n"
    "  5    undecided: neither proved nor refuted, and the report says why\n"
    "  1    wrong usage\n"
    "  2    the model or the plan cannot be read\n"
    "  6    internal error (also: proved, but not so when executed), or a result could not be "
    "written\n"
    "  7    out of memory: the machine's, or that of ulimit -v\n"
    "  130, 143   interrupted by Ctrl-C or SIGTERM; the report holds what was done until then";

// `signal`: the one that interrupted the run, or 0. A defect that was found before an interruption
// stays found.
constexpr int exitCodeFor(const Report& report, int signal) {
  if (report.confirmation && report.confirmation->outcome == Confirmation::Outcome::kDisagrees)
    return kExitInternal;
  if (report.verdict == Verdict::kNotEquivalent) return kExitNotEquivalent;
  if (report.interrupted && signal != 0) return kExitSignal + signal;
  return report.verdict == Verdict::kEquivalent    ? kExitEquivalent
         : report.verdict == Verdict::kConditional ? kExitConditional
                                                   : kExitUndecided;
}

// Of two plans' codes the worse one, as the code of a run with several plans. What is wrong with
// the run or its input comes before what is wrong with a plan.
constexpr int worse(int a, int b) {
  const auto rank = [](int code) {
    return code == kExitInternal        ? 7
           : code == kExitOutOfMemory   ? 6
           : code == kExitInput         ? 5
           : code == kExitNotEquivalent ? 4
           : code > kExitSignal         ? 3
           : code == kExitUndecided     ? 2
           : code == kExitConditional   ? 1
                                        : 0;
  };
  return rank(b) > rank(a) ? b : a;
}

}  // namespace shardproof
