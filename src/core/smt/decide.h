// SPDX-License-Identifier: Apache-2.0
// How the answers of a solver become a verdict, whichever solver it is: Z3 (solver.cpp) and cvc5
// (cvc5_solver.cpp) only spell the questions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "smt/query.h"
#include "smt/solver.h"

namespace shardproof {

struct SolverAnswer {
  SmtVerdict verdict = SmtVerdict::kUnknown;
  std::string reason;                     // kUnknown
  std::map<std::uint32_t, double> model;  // kSat of a question with `different`: values of
                                          // variables, where the solver is asked for them
};

class SolverQuestions {
 public:
  using Pinned = std::pair<std::uint32_t, Rational>;  // a node of the query, and what it equals
  virtual ~SolverQuestions() = default;
  // Can all facts hold together, at the pinned values, and, if `different`, with some claim's sides
  // unequal?
  virtual SolverAnswer ask(bool different, const std::vector<Pinned>& pinned,
                           unsigned milliseconds) = 0;
};

// kUnsat only where besides the facts can be met: contradictory ones would prove anything. What the
// solver throws passes through. `milliseconds` of the thread's processor time are for all questions
// together.
SmtResult decide(const SmtQuery& query, SolverQuestions& questions, const std::string& solver,
                 unsigned milliseconds);

}  // namespace shardproof
