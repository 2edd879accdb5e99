// SPDX-License-Identifier: Apache-2.0
// Makes a finding small: drops whatever can be dropped from model, plan and lineage while the
// finding stays what it is.
#pragma once

#include <functional>

#include "adversary/case.h"

namespace shardproof::adversary {

// `stays` says whether a smaller case still shows the same. `seconds`: stop after so many.
Case shrink(Case made, const std::function<bool(const Case&)>& stays, double seconds);

}  // namespace shardproof::adversary
