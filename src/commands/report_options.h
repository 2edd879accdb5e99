// SPDX-License-Identifier: Apache-2.0
// The options by which `verify` says what it found: on the screen and in files.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "commands/files.h"
#include "report/layout.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

struct ReportOptions {
  std::string json, junit, sarif, html;  // files; "-": standard output; empty: not asked for
  std::string format = "text";           // or "github"
  std::string colour = "auto";
  std::size_t width = 0;
  bool widthGiven = false;
  TextStyle style;
  // The text goes to standard error where a file goes to standard output.
  bool standardOutputIsTaken() const;
};

void addReportOptions(CLI::App* command, ReportOptions& options);
// Those of them that are about the text on the screen.
void addTextOptions(CLI::App* command, ReportOptions& options);

// Completes `options.style`: colour and width, by the options and by what standard output is.
// Returns what is wrong with them together, or nothing.
std::string settle(ReportOptions& options);

// The files that are asked for.
void addFiles(const ReportOptions& options, NamedFiles& files);

// Writes `text` where a person looks.
void writeForPeople(const ReportOptions& options, const std::string& text);

// Writes all files that are asked for; one that cannot be written does not keep the others from
// being written. Then throws what went wrong first. `several`: plans were more than one, also where
// there is one result. `problem`: of one plan, for the HTML report; may be null.
void writeReportFiles(const ReportOptions& options, const std::vector<PlanResult>& results,
                      bool several, int exitCode, const Problem* problem);

}  // namespace shardproof
