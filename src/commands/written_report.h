// SPDX-License-Identifier: Apache-2.0
// The reports that `verify --json` of one plan and `compare --json` wrote.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace shardproof {

struct WrittenReport {
  nlohmann::ordered_json json;
  bool isComparison = false;  // of `compare --json`, else of `verify --json`
};

// Throws InputError where the file cannot be read, or is neither.
WrittenReport writtenReport(const std::string& file);

// The report of `verify --json`. Throws InputError where the file is none.
nlohmann::ordered_json writtenProof(const std::string& file);

}  // namespace shardproof
