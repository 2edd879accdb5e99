// SPDX-License-Identifier: Apache-2.0
// Decides one stage: what is tried, and in which order (docs/design.md, "Check"). A proof comes
// from StageProver (core), a difference from StageRefuter.
#pragma once

#include "refute/stage_outcome.h"
#include "stages/stage.h"

namespace shardproof {

// Never throws Unsupported nor NeedsRefinement: both are undecided, with the reason.
StageOutcome checkStage(const Stage& stage, const CheckOptions& options);

}  // namespace shardproof
