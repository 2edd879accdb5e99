// SPDX-License-Identifier: Apache-2.0
#include "commands/lint_command.h"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "commands/files.h"
#include "commands/report_options.h"
#include "commands/streams.h"
#include "diagnose/diagnose.h"
#include "ir/input_coverage.h"
#include "plan/plan_index.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/format.h"
#include "report/text.h"
#include "report/text_findings.h"

namespace shardproof {

namespace {

struct LintArguments {
  PlanArguments files;
  hlo::Options hlo;
  ReportOptions report;
};

int lintOne(const LintArguments& arguments, const std::string& plan) {
  const TextStyle& style = arguments.report.style;
  std::unique_ptr<Problem> problem;
  try {
    problem = readProblem(arguments.files.modelFile(), plan, arguments.hlo);
  } catch (const InputError& error) {
    writeDiagnostic(inputErrorText(error, errorStyle()));
    return kExitInput;
  }
  const PlanIndex index(*problem);
  Report report;
  report.plan = problem->plan.file;
  report.model = problem->model.file;
  report.verdict = index.defects().empty() ? Verdict::kUndecided : Verdict::kNotEquivalent;
  report.defects = index.defects();
  std::ostringstream text;
  if (report.defects.empty()) {
    text << "FINE: plan " << asName(plan, style) << " can be read, and can run; nothing is proved ("
         << counted(problem->plan.programs.size(), "program", "programs") << ", "
         << counted(problem->plan.lineage.size(), "lineage entry", "lineage entries") << ")\n";
    std::size_t cutPoints = 0;
    for (const LineageEntry& entry : problem->plan.lineage)
      cutPoints += entry.role == Role::kCutPoint ? 1 : 0;
    if (cutPoints == 0 && !style.quiet)
      text << "  There is no lineage of role `cut_point`: each output is one proof, which is "
              "slower "
              "and less often decided.\n";
    for (const ir::InputGap& gap : ir::inputGaps(*problem))
      if (!style.quiet)
        text << "  " << asLine(gap.text, style) << " (/lineage/" << gap.entry << ")\n";
  } else {
    diagnosePlan(*problem, report, problem->plan.modelFile, {});
    text << label("NOT EQUIVALENT:", Tone::kBad) << " plan " << asName(plan, style)
         << " cannot run (" << counted(report.defects.size(), "defect", "defects") << ")\n";
    if (!style.quiet) {
      writeCauses(text, report, style);
      writeDefects(text, report, style);
    }
  }
  writeStandardOutput(laidOut(text.str(), style));
  return report.defects.empty() ? kExitEquivalent : kExitNotEquivalent;
}

int runLint(LintArguments arguments) {
  settle(arguments.report);
  const std::vector<std::string> plans = arguments.files.plans();
  NamedFiles files;
  files.plans(arguments.files);
  files.check();
  int code = kExitEquivalent;
  for (const std::string& plan : plans) code = worse(code, lintOne(arguments, plan));
  return code;
}

}  // namespace

void addLintCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<LintArguments>();
  CLI::App* command = app.add_subcommand(
      "lint", "Read plans and check that they can run, without proving anything: for exporters");
  addPlanOptions(command, arguments->files, PlanCount::kSeveral);
  addModelOption(command, arguments->files, PlanCount::kSeveral);
  addTextOptions(command, arguments->report);
  command->footer(
      "Lists all errors of the files, then shapes, assignments, collectives, messages and "
      "deadlocks.\nExit codes: 0 fine, 10 the plan cannot run, 2 a file cannot be read.");
  command->callback([arguments, &run] { run = [arguments] { return runLint(*arguments); }; });
}

}  // namespace shardproof
