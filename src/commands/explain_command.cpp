// SPDX-License-Identifier: Apache-2.0
#include "commands/explain_command.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "commands/graphviz.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "commands/validators.h"
#include "commands/written_report.h"
#include "compare/rounding.h"
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
  std::string tensor;
  std::optional<double> difference;
  compare::Options options;
};

struct Explained {
  std::string plan, verdict, reason;
  std::vector<Cause> causes;
};

Explained causesIn(const nlohmann::ordered_json& json, const std::string& file) {
  Explained report;
  try {
    report.plan = json.value("plan", "");
    report.verdict = json.value("verdict", "");
    report.reason = json.value("reason", "");
    for (const auto& cause : json.at("causes")) report.causes.push_back(causeFromJson(cause));
  } catch (const nlohmann::ordered_json::exception& error) {
    throw InputError(
        file, "",
        std::string("found a report that is not as verify --json writes it: ") + error.what());
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

// Of a trace or a comparison: how much of a difference is rounding.
int explainRounding(const ExplainArguments& arguments, const compare::RoundingOfStep& rounding) {
  std::ostringstream text;
  compare::writeRounding(text, rounding, arguments.tensor, arguments.difference);
  writeStandardOutput(text.str());
  return 0;
}

// Numbers have no causes to choose from or to draw.
void requireNoCauses(const ExplainArguments& arguments) {
  if (arguments.cause > 0 || arguments.format != "text")
    throw WrongUsage("--cause and --format dot or svg are of proofs: " + arguments.report +
                     " has numbers; expected a report of verify --json");
}

int runExplain(const ExplainArguments& arguments) {
  if (std::error_code error; std::filesystem::is_directory(arguments.report, error)) {
    requireNoCauses(arguments);
    return explainRounding(arguments, compare::roundingOf(arguments.report, arguments.options));
  }
  const WrittenReport written = writtenReport(arguments.report);
  if (written.isComparison) {
    requireNoCauses(arguments);
    return explainRounding(arguments, compare::roundingOf(written.json, arguments.report));
  }
  if (!arguments.tensor.empty() || arguments.difference)
    throw WrongUsage("--tensor and --difference are of numbers: " + arguments.report +
                     " is a report of verify; expected one of compare --json, or a trace with "
                     "perturbed ones");
  const Explained report = causesIn(written.json, arguments.report);
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
      "explain",
      "Show what each tensor of a failing stage was found to be; or how much of a difference in "
      "numbers is rounding");
  command
      ->add_option("report", arguments->report,
                   "What verify --json or compare --json wrote, or a directory that "
                   "python -m shardproof.torch.trace --perturb wrote")
      ->required()
      ->type_name("REPORT");
  command
      ->add_option("--difference", arguments->difference,
                   "Of numbers: whether so large a difference of the loss is rounding; relative, "
                   "|a - b| / |a|")
      ->check(CLI::NonNegativeNumber & isNumber())
      ->type_name("X");
  command
      ->add_option("--tensor", arguments->tensor,
                   "Of numbers: this tensor in place of the loss, as model.layers.0.weight.grad")
      ->type_name("NAME");
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
