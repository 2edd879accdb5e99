// SPDX-License-Identifier: Apache-2.0
// The ledger of a report: what is compared, what is not, what was assumed, and what of it the
// verdict depends on.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "chain/conditions.h"
#include "report/layout.h"
#include "shardproof/report.h"

namespace shardproof {

// "loss, 24 gradients, 2 buffers".
std::string comparedText(const Report& report, const TextStyle& style);

// What keeps a proved plan from being equivalent.
std::vector<UnmetCondition> conditionsOf(const Report& report);

// "initial-values, w.grad (not compared) and 3 more": Report::reason of a conditional plan.
std::string conditionNames(const Report& report, const TextStyle& style);
// "--accept initial-values --allow-uncompared w.grad ...": the options of verify that accept these.
std::string acceptingOptions(const Report& report, const TextStyle& style);

// The lines of the text report. Approved differences stand under the verdict, the rest below what
// is wrong with the plan.
void writeApproved(std::ostream& out, const Report& report, const TextStyle& style);
void writeLedger(std::ostream& out, const Report& report, const TextStyle& style);

}  // namespace shardproof
