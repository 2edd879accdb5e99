#include "main/explain_command.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "main/graphviz.h"
#include "main/streams.h"
#include "report/causes.h"
#include "report/exit_codes.h"
#include "report/explain.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

struct ExplainArguments {
  std::string report, format = "text";
  std::size_t cause = 0;  // 0: all
};

std::vector<Cause> causesOf(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw InputError(file, "", "cannot be read");
  std::vector<Cause> causes;
  try {
    const auto json = nlohmann::ordered_json::parse(in);
    if (json.at("format") != "shardproof-report")
      throw InputError(file, "/format", "found another format, expected \"shardproof-report\"");
    for (const auto& cause : json.at("causes")) causes.push_back(causeFromJson(cause));
  } catch (const nlohmann::ordered_json::exception& error) {
    throw InputError(file, "", std::string("found no report of verify --json: ") + error.what());
  }
  return causes;
}

int runExplain(const ExplainArguments& arguments) {
  const std::vector<Cause> causes = causesOf(arguments.report);
  if (causes.empty() || arguments.cause > causes.size()) {
    writeDiagnostic(arguments.report + ": has " + std::to_string(causes.size()) +
                    (causes.size() == 1 ? " cause" : " causes") +
                    (arguments.cause > 0 ? ", not " + std::to_string(arguments.cause) : ""));
    return kExitUsage;
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
