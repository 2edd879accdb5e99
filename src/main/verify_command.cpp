#include "main/verify_command.h"

#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "main/exit_codes.h"
#include "main/interrupt.h"
#include "main/progress.h"
#include "main/streams.h"
#include "reader/reader.h"
#include "report/file.h"
#include "report/json.h"
#include "report/text.h"
#include "shardproof/verify.h"

namespace shardproof {
namespace {

struct Arguments {
  std::string model, plan, json;
  std::string checker = "auto";
  bool noClasses = false, quiet = false;
  VerifyOptions options;
};

// What there is to report when the interruption came before any proof.
Report nothingDone(const Problem& problem) {
  Report report;
  report.model = problem.model.file;
  report.plan = problem.plan.file;
  report.reason = "interrupted";
  report.interrupted = true;
  report.outputs = problem.model.outputs.size();
  return report;
}

// The two results do not depend on each other: if one cannot be written the other still is.
void deliver(const Report& report, const Arguments& arguments) {
  std::exception_ptr failure;
  try {
    std::ostringstream text;
    writeText(text, report, arguments.quiet);
    writeStandardOutput(text.str());
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  if (!arguments.json.empty()) writeFileAtomically(arguments.json, jsonText(report));
  if (failure) std::rethrow_exception(failure);
}

int runVerify(Arguments arguments) {
  if (!arguments.json.empty()) checkWritable(arguments.json);  // not after an hour's work
  catchInterrupts();
  Progress progress(!arguments.quiet);
  arguments.options.checker = arguments.checker == "z3" ? Checker::kZ3 : Checker::kAuto;
  arguments.options.shareClasses = !arguments.noClasses;
  arguments.options.cancel = &interrupted();
  arguments.options.progress = [&](std::size_t done, std::size_t all, const char* doing) { progress.update(done, all, doing); };

  const auto start = std::chrono::steady_clock::now();
  progress.update(0, 0, "reading");
  const auto problem = readProblem(arguments.model.empty() ? std::nullopt : std::optional(arguments.model), arguments.plan);
  const double reading = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  Report report = interrupted() ? nothingDone(*problem) : verify(*problem, arguments.options);
  if (report.statistics.secondsByPhase.emplace("read", reading).second) report.statistics.secondsTotal += reading;
  progress.clear();
  deliver(report, arguments);
  return exitCodeFor(report, interruptingSignal());
}

// CLI11's Range lets "nan" through: no comparison with it is true.
CLI::Validator secondsRange() {
  constexpr double kLeast = 0.001, kMost = 1e7;
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= kLeast && value <= kMost) return {};
        return "Value " + text + " not in range 0.001 to 10000000";
      },
      "SECONDS");
}

}  // namespace

void addVerifyCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("verify", "Prove that a plan computes what its model says, or show where it does not");
  command->add_option("-p,--plan", arguments->plan, "The plan: what each rank runs (*.plan.json or .json.gz)")->required()->type_name("FILE");
  command->add_option("-m,--model", arguments->model, "The logical model (default: the file that the plan names, beside it)")->type_name("FILE");
  command->add_option("-j,--jobs", arguments->options.jobs, "Worker processes; 0: one per core")
      ->check(CLI::Range(0, 1024))->capture_default_str()->type_name("N");
  command->add_option("-t,--timeout", arguments->options.timeoutSeconds, "Time for one proof, in seconds")
      ->check(secondsRange())->capture_default_str()->type_name("S");
  command->add_option("--memory", arguments->options.memoryMegabytes, "Memory that a worker may use, in MB")
      ->check(CLI::Range(16, 100'000'000))->capture_default_str()->type_name("MB");
  command->add_option("--checker", arguments->checker, "auto: normal forms first, Z3 for what they leave; z3: everything goes to Z3")
      ->check(CLI::IsMember({"auto", "z3"}))->capture_default_str()->type_name("NAME");
  command->add_flag("--no-classes", arguments->noClasses, "Prove every stage, also those that differ only in names");
  command->add_option("--json", arguments->json, "Write the complete report to this file as JSON")->type_name("FILE");
  command->add_flag("-q,--quiet", arguments->quiet, "Print the verdict's line only");
  command->footer(kExitCodesHelp);
  command->callback([arguments, &run] { run = [arguments] { return runVerify(*arguments); }; });
}

}  // namespace shardproof
