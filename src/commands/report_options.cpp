// SPDX-License-Identifier: Apache-2.0
#include "commands/report_options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <functional>

#include "commands/streams.h"
#include "html/html.h"
#include "report/file.h"
#include "report/github.h"
#include "report/json.h"
#include "report/junit.h"
#include "report/sarif.h"

namespace shardproof {

bool ReportOptions::standardOutputIsTaken() const {
  return json == "-" || junit == "-" || sarif == "-" || html == "-";
}

void addReportOptions(CLI::App* command, ReportOptions& options) {
  command
      ->add_option("--json", options.json,
                   "Write the complete report to this file as JSON; -: to standard output, and the "
                   "text to standard error")
      ->type_name("FILE");
  command
      ->add_option("--html", options.html,
                   "Write the report to this file as one page for a browser; one plan only")
      ->type_name("FILE");
  command
      ->add_option("--junit", options.junit,
                   "Write a JUnit file: a case for each output of each plan")
      ->type_name("FILE");
  command->add_option("--sarif", options.sarif, "Write the findings to this file as SARIF 2.1.0")
      ->type_name("FILE");
  command
      ->add_option("--format", options.format,
                   "text; github: also annotations, as GitHub Actions takes them")
      ->check(CLI::IsMember({"text", "github"}))
      ->capture_default_str();
  addTextOptions(command, options);
}

void addTextOptions(CLI::App* command, ReportOptions& options) {
  command
      ->add_option("--color", options.colour,
                   "auto: on a terminal, unless NO_COLOR is set; always; never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  command
      ->add_option_function<std::size_t>(
          "--width",
          [&options](const std::size_t& columns) {
            options.width = columns;
            options.widthGiven = true;
          },
          "Wrap lines to so many columns; 0: not at all (default: those of the terminal)")
      ->check(CLI::Range(0, 10000))
      ->type_name("N");
  command
      ->add_option("--max-causes", options.style.maxCauses, "How many causes are shown one by one")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30))
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("-v,--verbose", options.style.verbose,
                    "All causes, defects, nodes and values; nothing is folded or shortened");
  command->add_flag("-q,--quiet", options.style.quiet, "Print the verdict's line only");
}

std::string settle(ReportOptions& options) {
  const std::array files = {options.json, options.junit, options.sarif, options.html};
  if (std::count(files.begin(), files.end(), "-") > 1)
    return "only one of --json, --html, --junit and --sarif can be written to standard output";
  const int descriptor = options.standardOutputIsTaken() ? STDERR_FILENO : STDOUT_FILENO;
  const char* none = std::getenv("NO_COLOR");
  options.style.colour = options.colour == "always" ||
                         (options.colour == "auto" && isTerminal(descriptor) && !(none && *none));
  options.style.width = options.widthGiven ? options.width : terminalWidth(descriptor);
  return "";
}

void addFiles(const ReportOptions& options, NamedFiles& files) {
  files.output("--json", options.json);
  files.output("--html", options.html);
  files.output("--junit", options.junit);
  files.output("--sarif", options.sarif);
}

void writeForPeople(const ReportOptions& options, const std::string& text) {
  if (options.standardOutputIsTaken()) writeStandardError(text);
  else writeStandardOutput(text);
}

void writeReportFiles(const ReportOptions& options, const std::vector<PlanResult>& results,
                      bool several, int exitCode, const Problem* problem) {
  std::exception_ptr failure;
  const auto write = [&](const std::string& file, const std::function<std::string()>& text) {
    if (file.empty()) return;
    try {
      if (file == "-") writeStandardOutput(text());
      else writeFileAtomically(file, text());
    } catch (const std::exception&) {
      if (!failure) failure = std::current_exception();
    }
  };
  write(options.json, [&] {
    return several ? plansJsonText(results, exitCode) : jsonText(results.front(), exitCode);
  });
  write(options.junit, [&] { return junitText(results); });
  write(options.sarif, [&] { return sarifText(results, exitCode); });
  if (problem && results.front().report)
    write(options.html, [&] { return htmlText(*results.front().report, *problem, exitCode); });
  if (options.format == "github") {
    try {
      writeForPeople(options, githubText(results));
    } catch (const std::exception&) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shardproof
