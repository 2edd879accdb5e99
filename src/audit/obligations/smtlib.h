// SPDX-License-Identifier: Apache-2.0
// A query as a script of SMT-LIB 2.6 that stands alone: declarations, shared subterms as
// definitions, facts, the negated claim, check-sat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "smt/query.h"

namespace shardproof {

struct SmtLibNotes {
  std::vector<std::string> head;                       // lines of comment; may hold any bytes
  std::string status = "unknown";                      // "sat", "unsat", "unknown"
  std::function<std::string(std::uint32_t)> variable;  // what variable i is, for a comment
  std::function<std::string(std::size_t)> claim;       // likewise claim i
};

// QF_UFNRA, or QF_UFNIRA with integers.
const char* logicOf(const SmtQuery& query);

// The same query and notes give the same bytes, and what is not comment does not depend on the
// notes but for the status. Throws Unsupported when the script would be longer than `mostBytes`.
std::string smtLibText(const SmtQuery& query, const SmtLibNotes& notes, std::size_t mostBytes);

}  // namespace shardproof
