// SPDX-License-Identifier: Apache-2.0
// The report of one plan that `verify --json` wrote.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace shardproof {

// Throws InputError where the file cannot be read, or is no report of one plan.
nlohmann::ordered_json writtenReport(const std::string& file);

}  // namespace shardproof
