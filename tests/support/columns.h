// SPDX-License-Identifier: Apache-2.0
// A small plan with one cut point, or none.
#pragma once

#include <string>

#include "support/problems.h"

namespace shardproof::test {

// y = relu(x w) over two ranks, each with some of the columns. The plan's lineage is that of
// inputs and outputs, and of h where `cut point` is set.
Draft columns(const std::string& op, bool cutPoint);

}  // namespace shardproof::test
