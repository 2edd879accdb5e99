// SPDX-License-Identifier: Apache-2.0
// Z3, behind a handful of calls; the only folder that knows it. Terms go in, a verdict with a
// reason comes out. cvc5_solver.h asks cvc5 the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/rational.h"
#include "smt/query.h"
#include "terms/term_algebra.h"

namespace shardproof {

enum class SmtVerdict : std::uint8_t {
  kUnsat,    // no assignment makes any pair differ: all pairs are equal
  kSat,      // an assignment that makes some pair differ, opaque functions being any functions
  kUnknown,  // with a reason (time-out, memory, incompleteness)
};

struct SmtResult {
  SmtVerdict verdict = SmtVerdict::kUnknown;
  std::string reason;
  std::map<std::uint32_t, double>
      model;  // kSat: variable index -> value (doubles are enough: the caller replays it)
};

// Is there an assignment to the variables under which some pair differs? Real variables are reals,
// integer ones integers; exp, sqrt and the opaque functions are uninterpreted with the facts that
// hold for them (exp > 0, sqrt(x)^2 = x for x >= 0); both sides are compared where every reciprocal
// is defined. Never throws for a solver failure: that is kUnknown.
SmtResult findDifference(const TermAlgebra& algebra,
                         const std::vector<std::pair<Term, Term>>& pairs,
                         unsigned timeoutMilliseconds, unsigned memoryMegabytes,
                         Laws laws = Laws::kAll);

// The solver's name and version: "Z3 4.8.12.0".
std::string solverVersion();

}  // namespace shardproof
