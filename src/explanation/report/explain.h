// SPDX-License-Identifier: Apache-2.0
// A cause as two columns, what the plan computes and what that was found to be; or as a drawing.
#pragma once

#include <iosfwd>

#include "shardproof/report.h"

namespace shardproof {

// `number`: of the cause, from 1.
void explainText(std::ostream& out, const Cause& cause, std::size_t number);
// The operators of the failing stage as a graph in the language of graphviz; wrong tensors are red.
void explainDot(std::ostream& out, const Cause& cause);

}  // namespace shardproof
