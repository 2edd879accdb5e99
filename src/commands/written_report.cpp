// SPDX-License-Identifier: Apache-2.0
#include "commands/written_report.h"

#include <fstream>
#include <utility>

#include "shardproof/error.h"
#include "util/printable.h"

namespace shardproof {

namespace {

constexpr char kReport[] = "shardproof-report", kReports[] = "shardproof-reports",
               kComparison[] = "shardproof-comparison";

}  // namespace

WrittenReport writtenReport(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw InputError(file, "", "cannot be read");
  WrittenReport report{.json = nlohmann::ordered_json::parse(in, nullptr, false)};
  if (report.json.is_discarded())
    throw InputError(file, "",
                     "found no JSON, expected a report that verify --json or compare --json wrote");
  const auto format = report.json.is_object() ? report.json.find("format") : report.json.end();
  if (format == report.json.end() || !format->is_string())
    throw InputError(file, "",
                     "found JSON without a format, expected a report that verify --json or "
                     "compare --json wrote");
  const auto& name = format->get_ref<const std::string&>();
  if (name == kReports)
    throw InputError(file, "/format",
                     "found the report of several plans, expected that of one (verify one plan "
                     "with --json)");
  report.isComparison = name == kComparison;
  if (!report.isComparison && name != kReport)
    throw InputError(file, "/format",
                     "found \"" + printable(name) + "\", expected \"" + kReport + "\" or \"" +
                         kComparison + "\": a report that verify --json or compare --json wrote");
  return report;
}

nlohmann::ordered_json writtenProof(const std::string& file) {
  WrittenReport report = writtenReport(file);
  if (report.isComparison)
    throw InputError(file, "/format",
                     std::string("found \"") + kComparison + "\", expected \"" + kReport +
                         "\": a report that verify --json wrote");
  return std::move(report.json);
}

}  // namespace shardproof
