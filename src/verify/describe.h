// Turns a failed stage into a message that leads to the place in the plan.
#pragma once

#include <string>

#include "checker/checker.h"
#include "ops/registry.h"
#include "plan/join.h"
#include "shardproof/report.h"
#include "stages/stage.h"

namespace shardproof {

Defect describeFailure(const Join& join, const Stage& stage, const StageOutcome& outcome);
std::string numberText(double value);

}  // namespace shardproof
