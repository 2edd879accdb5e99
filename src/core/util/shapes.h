// SPDX-License-Identifier: Apache-2.0
// When a declared shape is the one that an operator produces.
#pragma once

#include "shardproof/graph.h"

namespace shardproof {

// Exporters declare the result of a reduction over everything as [1], PyTorch's meaning is []. Both
// hold the one same element, so nothing is lost by taking the one for the other where the
// operator's evaluation does (OperatorInfo::scalarMayBeOne); any other difference is one.
inline bool fitsDeclared(const Shape& inferred, const Shape& declared, bool scalarMayBeOne) {
  return inferred == declared || (scalarMayBeOne && inferred.empty() && declared == Shape{1});
}

}  // namespace shardproof
