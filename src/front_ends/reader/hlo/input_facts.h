// SPDX-License-Identifier: Apache-2.0
// The numbers that a table of the model stands for, as a reader of the file needs them: a
// difference counts at these only.
#pragma once

#include <string>

#include "reader/hlo/approximate.h"
#include "reader/hlo/scalars.h"
#include "reader/hlo/value.h"

namespace shardproof::hlo {

// A list as JSON, or null where some number is not known precisely enough to tell a difference.
std::string numbersText(const Value& known, Scalars& scalars, Approximations& approximations);

}  // namespace shardproof::hlo
