// SPDX-License-Identifier: Apache-2.0
#include "commands/explain_command.h"

#include <memory>
#include <sstream>
#include <string>

#include "commands/graphviz.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "commands/written_report.h"
#include "report/causes.h"
#include "report/exit_codes.h"
#include "report/explain.h"
#include "shardproof/error.h"
#include "util/printable.h"

namespace shardproof {
namespace {

struct ExplainArguments {
  std::string report, format = "text";
  std::size_t cause = 0;  // 0: all
};

struct Explained {
  std::string plan, verdict, reason;
  std::vector<Cause> causes;
};

Explained readReport(const std::string& file) {
  const nlohmann::ordered_json json = writtenReport(file);
  Explained report;
  try {
    report.plan = json.value("plan", "");
    report.verdict = json.value("verdict", "");
    report.reason = json.value("reason", "");
    for (const auto& cause : json.at("causes")) report.causes.push_back(causeFromJson(cause));
  } catch (const nlohmann::ordered_json::exception& error) {
    throw InputError(file, "", std::string("found no report of verify --json: ") + error.what());
  }
  return report;
}

// Of a report that has no causes there is one thing to say: why.
std::string noCauses(const Explained& report) {
  const std::string plan = report.plan.empty() ? "the plan" : "plan " + printable(report.plan);
  if (report.verdict == "equivalent")
    return "No causes: " + plan + " is equivalent to its model; nothing is wrong with it.\n";
  return "No causes were found: " + plan + " is " + printable(report.verdict) +
         (report.reason.empty() ? "" : " (" + printable(report.reason) + ")") +
         (report.verdict == "not-equivalent"
              ? "; the defects are in the report (`verify` prints them), and `verify --diagnose "
                "60` looks for causes longer.\n"
              : "; `verify --diagnose 60` looks for causes longer.\n");
}

int runExplain(const ExplainArguments& arguments) {
  const Explained report = readReport(arguments.report);
  const std::vector<Cause>& causes = report.causes;
  if (arguments.cause > causes.size())
    throw WrongUsage(arguments.report + " has " + std::to_string(causes.size()) +
                     (causes.size() == 1 ? " cause" : " causes") + ", not " +
                     std::to_string(arguments.cause));
  if (causes.empty()) {
    if (arguments.format == "text") writeStandardOutput(noCauses(report));
    else writeDiagnostic(arguments.report + ": nothing to draw: there are no causes");
    return 0;
  }
  std::ostringstream text;
  if (arguments.format != "text") {
    explainDot(text, causes[arguments.cause > 0 ? arguments.cause - 1 : 0]);
    if (arguments.format == "svg") text.str(svgOf(text.str()));
  } else {
    for (std::size_t i = 0; i < causes.size(); ++i) {
      if (arguments.cause > 0 && i + 1 != arguments.cause) continue;
      if (!text.str().empty()) text << "\n";
      explainText(text, causes[i], i + 1);
    }
  }
  writeStandardOutput(text.str());
  return 0;
}

}  // namespace

void addExplainCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* command = app.add_subcommand(
      "explain", "Say of a report's causes what each tensor of the failing stage was found to be");
  command->add_option("report", arguments->report, "What verify --json wrote")
      ->required()
      ->type_name("REPORT");
  command
      ->add_option("--cause", arguments->cause, "One cause, from 1; 0: all (dot, svg: the first)")
      ->capture_default_str()
      ->type_name("K");
  command
      ->add_option("--format", arguments->format,
                   "text, dot for graphviz, or svg as graphviz draws it")
      ->check(CLI::IsMember({"text", "dot", "svg"}))
      ->capture_default_str();
  command->callback([arguments, &run] { run = [arguments] { return runExplain(*arguments); }; });
}

}  // namespace shardproof
