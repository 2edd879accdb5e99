// SPDX-License-Identifier: Apache-2.0
#include "commands/check_log_command.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "certificate/check_log.h"
#include "certificate/log_check_text.h"
#include "certificate/proof_log.h"
#include "chain/conditions.h"
#include "commands/files.h"
#include "commands/interrupt.h"
#include "commands/jobs.h"
#include "commands/memory_limits.h"
#include "commands/progress.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "commands/worker_options.h"
#include "describe/describe.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "report/format.h"
#include "report/ledger.h"
#include "shardproof/error.h"
#include "verify/capture_report.h"

namespace shardproof {
namespace {

struct CheckLogArguments {
  std::string log, plan, model, checker, json, second = "auto";
  std::optional<std::size_t> sample;
  int jobs = 0;
  bool noReprove = false, quiet = false;
  SecondOpinionOptions secondOptions;
  CheckLogOptions options;
};

constexpr SecondMethod kMethods[] = {SecondMethod::kNormalForm, SecondMethod::kExpandedForm,
                                     SecondMethod::kZ3, SecondMethod::kCvc5};

// As the log names it, from where the log is. It may name anything, so nothing but a file is
// opened.
std::string besideLog(const std::string& log, const ProofLog::File& file, const char* what) {
  const std::string path = (std::filesystem::path(log).parent_path() / file.path).string();
  std::error_code error;
  if (file.path.find('\0') != std::string::npos || !std::filesystem::is_regular_file(path, error)) {
    throw InputError(log, std::string("/") + what + "/file",
                     "there is no file \"" + path + "\": give it with --" + what);
  }
  return path;
}

std::string foundations(const CheckLogResult& result, const CheckLogArguments& arguments) {
  std::string text =
      counted(result.lemmas, "lemma", "lemmas") + ", " + counted(result.proofs, "proof", "proofs");
  if (result.provedAgain == result.proofs)
    return text + (result.proofs == 1 ? ", made again" : ", all made again");
  if (arguments.noReprove)
    return text + ", none made again: that the stages hold is only what the log states";
  return text + ", " + std::to_string(result.provedAgain) +
         " made again: that the other stages hold is only what the log states";
}

// What the plan takes for granted, which no proof says anything of.
std::string givenText(const Problem& problem) {
  Report report;
  report.outputTensors = outputNames(problem);
  describeCapture(report, problem, {});
  std::ostringstream text;
  writeApproved(text, report, {});
  writeLedger(text, report, {});
  return laidOut(text.str(), {});
}

// By the names of --second.
std::optional<SecondOpinionOptions> secondOf(const CheckLogArguments& arguments) {
  if (arguments.second == "off") return std::nullopt;
  SecondOpinionOptions second = arguments.secondOptions;
  if (arguments.second == "auto") return second;
  second.execution = second.methods = false;
  if (arguments.second == "execution") {
    second.execution = true;
    return second;
  }
  second.methods = true;
  for (const SecondMethod method : kMethods) {
    if (arguments.second == toString(method)) second.only = method;
  }
  return second;
}

int runCheckLog(CheckLogArguments arguments) {
  catchInterrupts();
  Progress progress(!arguments.quiet);
  CheckLogOptions& options = arguments.options;
  options.pool.cancel = whenSet(&interrupted());
  options.pool.jobs = jobsOrCores(arguments.jobs);
  options.sample = arguments.noReprove ? std::optional(std::size_t{0}) : arguments.sample;
  if (!arguments.checker.empty())
    options.checker = arguments.checker == "z3" ? Checker::kZ3 : Checker::kAuto;
  options.second = secondOf(arguments);
  options.progress = [&](std::size_t done, std::size_t all, const char* doing) {
    progress.update(done, all, doing);
  };

  NamedFiles files;
  files.input("LOG", arguments.log);
  files.input("--plan", arguments.plan);
  files.input("--model", arguments.model);
  files.output("--json", arguments.json);
  files.check();
  progress.update(0, 0, "reading");
  const ProofLog log = readProofLog(arguments.log);
  const std::string plan =
      arguments.plan.empty() ? besideLog(arguments.log, log.plan, "plan") : arguments.plan;
  const std::string model =
      arguments.model.empty() ? besideLog(arguments.log, log.model, "model") : arguments.model;
  files.input("the log's plan", plan);
  files.input("the log's model", model);
  files.check();
  const auto problem = readProblem(model, plan);
  const CheckLogResult result = checkLog(log, *problem, options);
  progress.clear();

  if (!arguments.json.empty()) writeFileAtomically(arguments.json, logCheckJson(log, result));
  std::string text = arguments.quiet ? "" : evidenceText(log, result) + givenText(*problem);
  const std::size_t before = text.size();
  for (const auto& finding : result.findings) {
    text += std::string(finding.limits ? "LOG NOT CONFIRMED: " : "LOG DOES NOT HOLD: ") +
            finding.place + ": " + finding.why + "\n";
    if (arguments.quiet) break;
  }
  if (result.holds()) {
    text += "LOG HOLDS: plan " + plan + " computes what model " + model +
            " computes, for every input (" +
            counted(problem->model.outputs.size(), "output", "outputs") + "; " +
            foundations(result, arguments) +
            (result.approved.empty() ? ""
                                     : "; " +
                                           counted(result.approved.size(), "approved difference",
                                                   "approved differences") +
                                           " taken as given") +
            ")\n";
  } else if (text.size() == before) {
    text += "LOG NOT CONFIRMED: interrupted\n";
  }
  writeStandardOutput(text);
  if (result.anyWrong()) return kExitNotEquivalent;
  if (result.interrupted && interruptingSignal() != 0) return kExitSignal + interruptingSignal();
  return result.holds() ? kExitEquivalent : kExitUndecided;
}

constexpr const char* kCheckLogExitCodes =
    "Exit codes:\n"
    "  0    the log holds\n"
    "  10   it does not: it is not about this model and plan, or something in it is not so\n"
    "  5    a proof could not be made again within the limits\n"
    "  1    wrong usage\n"
    "  2    the log, the model or the plan cannot be read, or the log is of another version\n"
    "  6    internal error\n"
    "  7    out of memory\n"
    "  130, 143   interrupted";

}  // namespace

void addCheckLogCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<CheckLogArguments>();
  CLI::App* command = app.add_subcommand(
      "check-log", "Replay a proof log (shardproof verify --certify) against its model and plan");
  command->add_option("LOG", arguments->log, "The proof log")->required()->type_name("");
  command
      ->add_option("-p,--plan", arguments->plan,
                   "The plan (default: as the log names it, from the log's directory)")
      ->type_name("FILE");
  command
      ->add_option("-m,--model", arguments->model,
                   "The model (default: as the log names it, from the log's directory)")
      ->type_name("FILE");
  CLI::Option* sample =
      command
          ->add_option("--sample", arguments->sample,
                       "Make only so many proofs again, drawn at random (default: all)")
          ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 40))
          ->type_name("N");
  command->add_option("--seed", arguments->options.seed, "Another seed draws another sample")
      ->capture_default_str()
      ->type_name("N")
      ->needs(sample);
  command
      ->add_flag("--no-reprove", arguments->noReprove,
                 "Make no proof again: look at files, stages and chain only")
      ->excludes(sample);
  command
      ->add_option(
          "--checker", arguments->checker,
          "auto or z3: make the proofs again with this checker (default: the one of the log)")
      ->check(CLI::IsMember({"auto", "z3"}))
      ->type_name("NAME");
  command
      ->add_option("--second", arguments->second,
                   "auto: look for independent evidence besides each proof, by other methods and "
                   "by execution at full size; or by one of them only; or off")
      ->check(
          CLI::IsMember({"auto", "off", "normal-form", "expanded-form", "z3", "cvc5", "execution"}))
      ->capture_default_str()
      ->type_name("WHAT");
  command
      ->add_option("--second-timeout", arguments->secondOptions.timeoutSeconds,
                   "Time for one attempt at independent evidence, in seconds")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  command
      ->add_option("--json", arguments->json, "Write what was found to this file, class by class")
      ->type_name("FILE");
  addJobs(command, arguments->jobs);
  command
      ->add_option("-t,--timeout", arguments->options.pool.timeoutSeconds,
                   "Time for one proof, in seconds")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  addMemoryLimits(command, arguments->options.pool.memoryMegabytes);
  command->add_flag("-q,--quiet", arguments->quiet, "Print one line only");
  command->footer(kCheckLogExitCodes);
  command->callback([arguments, &run] { run = [arguments] { return runCheckLog(*arguments); }; });
}

}  // namespace shardproof
