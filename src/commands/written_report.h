// SPDX-License-Identifier: Apache-2.0
// The reports that `verify --json` of one plan and `compare --json` wrote.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace shardproof {

// Throws InputError where the file cannot be read, or is no report of one plan.
nlohmann::ordered_json writtenReport(const std::string& file);

// Nothing where the file is no report of `compare --json`.
std::optional<nlohmann::ordered_json> writtenComparison(const std::string& file);

}  // namespace shardproof
