// SPDX-License-Identifier: Apache-2.0
// cvc5, by its C++ library: a solver by other people with another engine, which is asked the very
// query that Z3 is (smt/query.h). `check-log` has it prove classes again; no verdict of `verify`
// rests on it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "smt/solver.h"

namespace shardproof {

// As findDifference (smt/solver.h), without a model: kSat says no more than that cvc5 has found
// one. The library has no limit of memory of its own and may end the process where it gets none: to
// be called in a process that may be lost (worker/pool.h). Never throws for a solver failure.
SmtResult findDifferenceByCvc5(const TermAlgebra& algebra,
                               const std::vector<std::pair<Term, Term>>& pairs,
                               unsigned timeoutMilliseconds, Laws laws = Laws::kAll);

}  // namespace shardproof
