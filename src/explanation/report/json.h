// SPDX-License-Identifier: Apache-2.0
// The report as JSON: complete, every other view can be made from it. docs/design.md, "Report",
// says what it holds.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

// `exitCode`: with which the run ends, or would for this plan alone. docs/schemas/ has the schema.
// Without it: that of this plan alone, not interrupted.
nlohmann::ordered_json toJson(const Report& report, int exitCode);
nlohmann::ordered_json toJson(const Report& report);

// The same as a text that ends with a newline; without a report, why there is none. Always valid
// UTF-8, whatever bytes a file's name has.
std::string jsonText(const Report& report, int exitCode);
std::string jsonText(const PlanResult& result, int exitCode);

// Of several plans: each one's report, and what they come to together.
std::string plansJsonText(const std::vector<PlanResult>& results, int exitCode);

}  // namespace shardproof
