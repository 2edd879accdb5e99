// SPDX-License-Identifier: Apache-2.0
#include "commands/verify_command.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "attempts/verify_files.h"
#include "cache/cache_file.h"
#include "certificate/proof_log.h"
#include "commands/condition_options.h"
#include "commands/files.h"
#include "commands/interrupt.h"
#include "commands/memory_limits.h"
#include "commands/out_of_memory.h"
#include "commands/pass_files.h"
#include "commands/progress.h"
#include "commands/report_options.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "commands/validators.h"
#include "commands/worker_options.h"
#include "confirm/confirm.h"
#include "describe/describe.h"
#include "diagnose/diagnose.h"
#include "ir/input_coverage.h"
#include "obligations/obligation_files.h"
#include "parameters/parameters.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "report/format.h"
#include "report/text.h"
#include "report/version.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "verify/open_stages.h"
#include "worker/total_memory.h"

namespace shardproof {
namespace {

constexpr double kRunSeconds = 120;

struct VerifyArguments {
  PlanArguments files;
  NamedFiles all;  // all that the command line names
  std::string cache, certify, fixedPlan, openStages;
  PassFiles pass;  // instead of `files`
  std::string checker = "auto";
  bool noClasses = false;
  ReportOptions report;
  double confirmSeconds = 1;                           // 0: off
  double diagnoseSeconds = DiagnoseOptions().seconds;  // 0: off
  VerifyOptions options;
  bool explainParameters = false;
  Infer infer = Infer::kAuto;
  hlo::Options hlo;
};

// A plan that cannot run, or of which nothing is known, is not executed.
bool worthExecuting(const Report& report) {
  if (report.verdict == Verdict::kNotEquivalent)
    return std::all_of(report.defects.begin(), report.defects.end(),
                       [](const Defect& d) { return d.kind == DefectKind::kLineage; });
  return isProved(report.verdict);
}

// Leaves the files to report in the working directory, where they are not the user's own.
void reportDisagreement(const Report& report) {
  const Confirmation& c = *report.confirmation;
  if (c.outcome != Confirmation::Outcome::kDisagrees || c.planText.empty()) return;
  const std::string stem = "shardproof-disagreement-" + std::to_string(::getpid());
  writeFileAtomically(stem + ".model.json", c.modelText);
  writeFileAtomically(stem + ".plan.json", c.planText);
  writeDiagnostic("the smaller plan that disagrees is in " + stem + ".model.json and " + stem +
                  ".plan.json");
}

// `log`: becomes the proof log's text, where one is asked for and there is something to certify.
// `fixedPlan`: becomes the text of a fixed plan that was proved, where there is one.
VerifiedFiles verifyPlan(const VerifyArguments& arguments, const std::string& plan,
                         Progress& progress, std::string* log = nullptr,
                         std::string* fixedPlan = nullptr) {
  if (std::error_code ignored; std::filesystem::is_directory(plan, ignored))
    throw InputError(plan, "",
                     "found a directory that holds no *.plan.json or *.plan.json.gz that can be "
                     "listed, expected plans");
  VerifyOptions options = arguments.options;
  ProofRecord record;
  if (log && !arguments.certify.empty()) options.record = &record;
  VerifiedFiles done =
      verifyFiles(arguments.files.model, plan, options, arguments.hlo, arguments.infer);
  NamedFiles files = arguments.all;
  if (done.problem) files.modelOf(*done.problem);  // of a plan from a pipe it was not known before
  files.check();
  if (done.problem)
    for (ir::InputGap& gap : ir::inputGaps(*done.problem))
      done.report.warnings.push_back(std::move(gap.text));
  if (arguments.diagnoseSeconds > 0 && !done.budget.over() && !done.report.interrupted &&
      done.problem && !isProved(done.report.verdict)) {
    progress.update(0, 1, "diagnosing");
    DiagnoseOptions diagnoseOptions;
    diagnoseOptions.seconds = std::min(arguments.diagnoseSeconds, done.budget.left());
    diagnoseOptions.wallSeconds = done.budget.left();
    diagnoseOptions.memoryMegabytes = options.memoryMegabytes;
    diagnoseOptions.cancel = options.cancel;
    std::string fixed =
        diagnosePlan(*done.problem, done.report, done.problem->plan.modelFile, diagnoseOptions);
    if (fixedPlan) *fixedPlan = std::move(fixed);
  }
  if (done.problem) leaveOutGuesses(*done.problem, done.report);
  if (arguments.confirmSeconds > 0 && !done.budget.over() && !done.report.interrupted &&
      done.problem && worthExecuting(done.report)) {
    progress.update(0, 1, "executing");
    ConfirmOptions confirmOptions;
    confirmOptions.seconds = std::min(arguments.confirmSeconds, done.budget.left());
    confirmOptions.memoryMegabytes = std::min(options.memoryMegabytes, totalMemoryLimit() >> 20);
    confirmOptions.cancel = options.cancel;
    confirm(*done.problem, done.report, confirmOptions);
    reportDisagreement(done.report);
  }
  if (arguments.explainParameters && done.problem && !done.report.interrupted) {
    progress.update(0, 1, "explaining parameters");
    ExplainParametersOptions explain;
    explain.memoryMegabytes = std::min(options.memoryMegabytes, totalMemoryLimit() >> 20);
    explain.cancel = options.cancel;
    done.report.parameters = explainParameters(*done.problem, explain);
  }
  progress.clear();
  // A log says "equivalent", without conditions.
  if (done.report.verdict == Verdict::kEquivalent && !record.entries.empty())
    *log = proofLogText(
        makeProofLog(*done.problem, record, options.checker, kVersion, arguments.certify));
  return done;
}

// The report of one plan, or why there is none: that is told in files, too.
int runOne(const VerifyArguments& arguments, const std::string& plan, Progress& progress) {
  std::string log, fixedPlan;
  std::vector<PlanResult> results(1);
  results[0].plan = plan;
  VerifiedFiles done;
  std::exception_ptr failure;
  try {
    done = verifyPlan(arguments, plan, progress, &log, &fixedPlan);
    results[0].report = std::move(done.report);
    NamedConditions named;
    named.add(*results[0].report);
    noteUnusedOptions(arguments.options, named);
  } catch (const InputError& error) {
    if (interrupted()) throw;
    results[0].takeError(error);
    failure = std::current_exception();
  }
  const int code = failure ? kExitInput : exitCodeFor(*results[0].report, interruptingSignal());
  // The results do not depend on each other: if one cannot be written the others still are.
  std::exception_ptr unwritten;
  const auto attempt = [&](auto&& write) {
    try {
      write();
    } catch (const std::exception&) {
      if (!unwritten) unwritten = std::current_exception();
    }
  };
  if (!failure)
    attempt([&] {
      std::ostringstream text;
      writeText(text, *results[0].report, arguments.report.style);
      writeForPeople(arguments.report, text.str());
    });
  attempt([&] { writeReportFiles(arguments.report, results, false, code, done.problem.get()); });
  if (!log.empty()) attempt([&] { writeFileAtomically(arguments.certify, log); });
  if (unwritten) std::rethrow_exception(unwritten);
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const InputError& error) {
      TextStyle style = errorStyle();
      if (arguments.report.widthGiven) style.width = arguments.report.width;
      progress.clear();
      writeDiagnostic(inputErrorText(error, style));
    }
    return code;
  }
  // A log of an earlier run is left alone: it says by digests which files it is about.
  if (!arguments.certify.empty() && log.empty())
    writeDiagnostic(arguments.certify + ": not written: the plan is " +
                    toString(results[0].report->verdict) +
                    (results[0].report->verdict == Verdict::kConditional
                         ? ", and a proof log has no conditions (--accept, --allow-uncompared)"
                         : ", so there is nothing to certify"));
  if (!arguments.fixedPlan.empty()) {
    if (fixedPlan.empty())
      writeDiagnostic(arguments.fixedPlan + ": not written: " +
                      (isProved(results[0].report->verdict) ? "the plan is equivalent as it is"
                                                            : "no fixed plan was proved"));
    else {
      writeFileAtomically(arguments.fixedPlan, fixedPlan);
      writeDiagnostic(arguments.fixedPlan + ": written: the plan with this fix, which is proved");
    }
  }
  return code;
}

// Lists what is to be proved, and proves nothing. The run is cancelled when the first of these
// stages is looked up, so there is no verdict, and none is reported.
int listOpenStages(VerifyArguments& arguments, const std::string& plan, ProofStore* known,
                   Progress& progress) {
  std::atomic<bool> cancel = false;
  OpenStages open(known, cancel);
  VerifyOptions options = arguments.options;
  options.proofs = &open;
  options.cancel = &cancel;
  const auto update = options.progress;
  options.progress = [&](std::size_t done, std::size_t all, const char* doing) {
    if (interrupted()) cancel = true;
    update(done, all, doing);
  };
  verifyFiles(arguments.files.model, plan, options, arguments.hlo, arguments.infer);
  progress.clear();
  if (interruptingSignal() != 0) return kExitSignal + interruptingSignal();
  writeFileAtomically(arguments.openStages, openStagesText(open.forms(), options.checker));
  writeDiagnostic(arguments.openStages + ": " + counted(open.forms().size(), "stage", "stages") +
                  " to be proved");
  return kExitEquivalent;
}

// What one plan does must not keep the others from being looked at.
int runSeveral(const VerifyArguments& arguments, const std::vector<std::string>& plans,
               Progress& progress) {
  std::vector<PlanResult> results;
  NamedConditions named;
  int code = kExitEquivalent;
  std::exception_ptr unwritten;
  for (const std::string& plan : plans) {
    PlanResult result;
    result.plan = plan;
    try {
      result.report = verifyPlan(arguments, plan, progress).report;
      named.add(*result.report);
      code = worse(code, exitCodeFor(*result.report, interruptingSignal()));
    } catch (const WrongUsage&) {
      throw;
    } catch (const InputError& error) {
      result.takeError(error);
      code = worse(
          code, interrupted() ? kExitSignal + interruptingSignal() : kExitInput);  // as in main()
    } catch (const std::exception& error) {
      result.outOfMemory = isOutOfMemory(error);
      result.error = plan + ": " + (result.outOfMemory ? outOfMemoryText() : error.what());
      code = worse(code, result.outOfMemory ? kExitOutOfMemory : kExitInternal);
    }
    progress.clear();
    try {
      std::ostringstream line;
      writeVerdictLine(line, result, arguments.report.style);
      writeForPeople(arguments.report, line.str());
    } catch (const std::exception&) {
      unwritten = std::current_exception();  // the JSON report may still be
    }
    results.push_back(std::move(result));
  }
  noteUnusedOptions(arguments.options, named);
  try {
    std::ostringstream text;
    writeSummary(text, results, arguments.report.style);
    writeForPeople(arguments.report, text.str());
  } catch (const std::exception&) {
    if (!unwritten) unwritten = std::current_exception();
  }
  writeReportFiles(arguments.report, results, true, code, nullptr);
  if (unwritten) std::rethrow_exception(unwritten);
  return code;
}

int runVerify(VerifyArguments arguments) {
  arguments.pass.take(arguments.files, arguments.hlo);
  // Not after an hour's work.
  if (const std::string wrong = settle(arguments.report); !wrong.empty()) {
    writeDiagnostic(wrong);
    return kExitUsage;
  }
  const std::vector<std::string> plans = arguments.files.plans();
  NamedFiles& files = arguments.all;
  files.plans(arguments.files);
  addFiles(arguments.report, files);
  files.output("--certify", arguments.certify);
  files.output("--fix", arguments.fixedPlan);
  files.output("--open-stages", arguments.openStages);
  files.optionalOutput("--cache", arguments.cache);
  files.outputDirectory("--smt2", arguments.options.smt2Directory, {"index.json", ".smt2"});
  files.check();
  catchInterrupts();
  if (plans.size() > 1 &&
      (!arguments.report.html.empty() || std::count(plans.begin(), plans.end(), "-") > 0)) {
    writeDiagnostic(!arguments.report.html.empty()
                        ? "--html takes one plan, but " + std::to_string(plans.size()) +
                              " were given"
                        : "standard input (-) can be the only plan, but " +
                              std::to_string(plans.size()) + " were given");
    return kExitUsage;
  }
  if (!arguments.fixedPlan.empty() && plans.size() > 1) {
    writeDiagnostic("--fix takes one plan, but " + std::to_string(plans.size()) + " were given");
    return kExitUsage;
  }
  if (!arguments.certify.empty() && plans.size() > 1) {
    writeDiagnostic("--certify writes the proof log of one plan, but " +
                    std::to_string(plans.size()) + " were given");
    return kExitUsage;
  }
  // A proof log is about what files say.
  if (!arguments.certify.empty()) {
    if (arguments.infer == Infer::kAlways) {
      writeDiagnostic(
          "--certify and --infer always: lemmas that are in no file cannot be in a proof log; "
          "write "
          "a plan with them (shardproof infer), and certify that");
      return kExitUsage;
    }
    arguments.infer = Infer::kNever;
  }
  if (!arguments.openStages.empty() && plans.size() > 1) {
    writeDiagnostic("--open-stages takes one plan, but " + std::to_string(plans.size()) +
                    " were given");
    return kExitUsage;
  }
  if (const std::string& directory = arguments.options.smt2Directory; !directory.empty()) {
    if (plans.size() != 1) {
      writeDiagnostic("--smt2 takes one plan");
      return kExitUsage;
    }
    prepareObligationDirectory(directory);
  }
  Progress progress(!arguments.report.style.quiet);
  arguments.options.checker = arguments.checker == "z3" ? Checker::kZ3 : Checker::kAuto;
  arguments.options.shareClasses = !arguments.noClasses;
  arguments.options.cancel = &interrupted();
  arguments.options.progress = [&](std::size_t done, std::size_t all, const char* doing) {
    progress.update(done, all, doing);
  };

  std::optional<CacheFileStore> cache;
  if (!arguments.cache.empty()) cache.emplace(arguments.cache);
  MemoryStore memory(cache ? &*cache : nullptr);
  if (plans.size() > 1) arguments.options.proofs = &memory;
  else if (cache) arguments.options.proofs = &*cache;

  // Also where the run fails: what was wrong with the cache may be why.
  const auto tell = [&] {
    if (!cache) return;
    for (const std::string& problem : cache->problems()) writeDiagnostic("warning: " + problem);
  };
  try {
    const int code =
        !arguments.openStages.empty()
            ? listOpenStages(arguments, plans.front(), cache ? &*cache : nullptr, progress)
        : plans.size() == 1 ? runOne(arguments, plans.front(), progress)
                            : runSeveral(arguments, plans, progress);
    tell();
    return code;
  } catch (...) {
    tell();
    throw;
  }
}

}  // namespace

void addInferOption(CLI::App* command, Infer& infer) {
  command
      ->add_option_function<std::string>(
          "--infer",
          [&infer](const std::string& when) {
            infer = when == "always"  ? Infer::kAlways
                    : when == "never" ? Infer::kNever
                                      : Infer::kAuto;
          },
          "Lemmas about local tensors that the plan's lineage leaves out, found by executing a "
          "small image of it: auto (where it says little, or not enough), always, never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->default_str("auto")
      ->type_name("WHEN");
}

void addVerifyLimits(CLI::App* command, VerifyOptions& options, std::string& checker) {
  addJobs(command, options.jobs);
  options.runSeconds = kRunSeconds;
  command
      ->add_option("-t,--timeout", options.runSeconds,
                   "Time for the whole run on one plan, in seconds; then the report has what is "
                   "known so far. Reading does not count")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  addStageTimeout(command, options.stageSeconds);
  addMemoryLimits(command, options.memoryMegabytes);
  command
      ->add_option("--checker", checker,
                   "auto: normal forms first, Z3 for what they leave; z3: everything goes to Z3")
      ->check(CLI::IsMember({"auto", "z3"}))
      ->capture_default_str()
      ->type_name("NAME");
}

void addVerifyCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand(
      "verify", "Prove that a plan computes what its model computes, or show where it does not");
  addPlanOptions(command, arguments->files, PlanCount::kSeveral);
  CLI::Option* model = addModelOption(command, arguments->files, PlanCount::kSeveral);
  CLI::Option* before = addPassOptions(command, arguments->pass, model);
  addVerifyLimits(command, arguments->options, arguments->checker);
  addInferOption(command, arguments->infer);
  addConditionOptions(command, arguments->options);
  command
      ->add_option("--confirm", arguments->confirmSeconds,
                   "Time for executing the plan, or a smaller one, at random inputs after the "
                   "verdict, in seconds; 0 or off: not at all")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"off", "0"}}))
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      ->add_option(
          "--diagnose", arguments->diagnoseSeconds,
          "Processor time for finding causes and fixes of a plan that is not proved, in seconds; 0 "
          "or off: not at all")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"off", "0"}}))
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--fix,--repair", arguments->fixedPlan,
                   "Write the fixed plan to this file (.json), where one was found and all of it "
                   "was proved")
      ->type_name("FILE");
  command->add_flag("--explain-parameters", arguments->explainParameters,
                    "For each parameter and axis: whether backward makes all of its gradient, a "
                    "part of a sum or a part of the tensor, and what reduces it");
  CLI::Option* noClasses =
      command->add_flag("--no-classes", arguments->noClasses,
                        "Prove every stage, also those that differ only in names");
  command
      ->add_option("--cache", arguments->cache,
                   "Look proofs up in this file, and leave new ones there; made if there is none")
      ->type_name("FILE")
      ->excludes(noClasses);
  command
      ->add_option("--open-stages", arguments->openStages,
                   "Prove nothing: write the stages that are to be proved, and that --cache has no "
                   "proof of, to this file, for `shardproof worker`")
      ->type_name("FILE")
      ->excludes(noClasses);
  addReportOptions(command, arguments->report);
  command
      ->add_option("--certify", arguments->certify,
                   "Where the plan is equivalent, write a proof log to this file (.json or "
                   ".json.gz), for `shardproof check-log`")
      ->type_name("FILE")
      ->excludes(noClasses)
      ->excludes(before);
  command
      ->add_option("--smt2", arguments->options.smt2Directory,
                   "Write every obligation to this directory as SMT-LIB 2, with an index; one that "
                   "an earlier run filled is emptied first")
      ->type_name("DIR");
  command->add_flag("--assume-in-bounds", arguments->hlo.assumeInBounds,
                    "HLO programs: leave out integer inputs for which a lookup of the model is out "
                    "of bounds, or that are negative and wrapped; listed as an assumption");
  command->add_flag("--exact-constants", arguments->hlo.exactConstants,
                    "HLO programs: numbers as the texts have them, not as the simplest rational "
                    "that rounds to them");
  command->add_flag("--strict", arguments->hlo.strict,
                    "HLO programs: refuse functions of which nothing is known (custom calls)");
  command->footer(kExitCodesHelp);
  command->callback([arguments, &run] { run = [arguments] { return runVerify(*arguments); }; });
}

}  // namespace shardproof
