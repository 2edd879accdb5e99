// SPDX-License-Identifier: Apache-2.0
#include "report/github.h"

#include <cstdio>

#include "report/findings.h"
#include "report/source_place.h"
#include "util/printable.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostMessage = 4000;

// As the toolkit of GitHub Actions escapes: %, line ends, and in properties what divides them.
std::string escaped(const std::string& text, bool property) {
  std::string out;
  for (const char c : text) {
    const bool divides = property && (c == ':' || c == ',');
    if (c == '%' || c == '\r' || c == '\n' || divides) {
      char code[8];
      std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out;
}

std::string command(const char* level, const Finding& finding) {
  const auto source = sourcePlace(finding.location);
  std::string line = std::string("::") + level +
                     " file=" + escaped(printable(source ? source->file : finding.file), true);
  if (source) {
    line += ",line=" + std::to_string(source->line);
    if (source->column > 0) line += ",col=" + std::to_string(source->column);
  }
  line += ",title=" + escaped("shardproof: " + finding.rule, true) + "::";
  std::string message = printable(finding.message, kMostMessage);
  if (!finding.pointer.empty() && message.find(finding.pointer) == std::string::npos)
    message += " (" + printable(finding.pointer, kMostMessage) + ")";
  return line + escaped(message, false) + "\n";
}

}  // namespace

std::string githubText(const std::vector<PlanResult>& results) {
  std::string text;
  for (const PlanResult& result : results) {
    for (const Finding& finding : findingsOf(result))
      text += command(finding.level == Finding::Level::kError ? "error" : "warning", finding);
    if (result.report && result.report->verdict == Verdict::kEquivalent)
      text += "::notice title=shardproof::" +
              escaped("EQUIVALENT: " + printable(result.report->plan, kMostMessage) +
                          " computes what " + printable(result.report->model, kMostMessage) +
                          " computes",
                      false) +
              "\n";
  }
  return text;
}

}  // namespace shardproof
