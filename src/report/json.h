// The report as JSON: complete, every other view can be made from it. docs/design.md, "Report",
// says what it holds.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

nlohmann::ordered_json toJson(const Report& report);

// The same as a text that ends with a newline. Always valid UTF-8, whatever bytes a file's name
// has.
std::string jsonText(const Report& report);

// Of several plans: each one's report, and what they come to together.
std::string plansJsonText(const std::vector<PlanResult>& results);

}  // namespace shardproof
