// SPDX-License-Identifier: Apache-2.0
#include "commands/written_report.h"

#include <fstream>
#include <utility>

#include "shardproof/error.h"

namespace shardproof {

nlohmann::ordered_json writtenReport(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw InputError(file, "", "cannot be read");
  try {
    auto json = nlohmann::ordered_json::parse(in);
    if (json.at("format") == "shardproof-reports")
      throw InputError(file, "/format",
                       "found the report of several plans, expected that of one (verify one plan "
                       "with --json)");
    if (json.at("format") != "shardproof-report")
      throw InputError(file, "/format", "found another format, expected \"shardproof-report\"");
    return json;
  } catch (const nlohmann::ordered_json::exception& error) {
    throw InputError(file, "", std::string("found no report of verify --json: ") + error.what());
  }
}

std::optional<nlohmann::ordered_json> writtenComparison(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  auto json = nlohmann::ordered_json::parse(in, nullptr, false);
  const bool isOne =
      json.is_object() && json.value("format", nlohmann::ordered_json()) == "shardproof-comparison";
  return isOne ? std::optional(std::move(json)) : std::nullopt;
}

}  // namespace shardproof
