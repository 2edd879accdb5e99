// SPDX-License-Identifier: Apache-2.0
#include "commands/compare_command.h"

#include <memory>
#include <sstream>
#include <string>

#include "commands/files.h"
#include "commands/report_options.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "commands/written_report.h"
#include "compare/compare.h"
#include "compare/report.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

struct CompareArguments {
  std::string reference, candidate, proof;
  compare::Options options;
  ReportOptions report;
};

void write(const std::string& file, const std::string& text) {
  if (file == "-") writeStandardOutput(text);
  else if (!file.empty()) writeFileAtomically(file, text);
}

int runCompare(CompareArguments arguments) {
  ReportOptions& report = arguments.report;
  if (const std::string wrong = settle(report); !wrong.empty()) {
    writeDiagnostic("compare: " + wrong);
    return kExitUsage;
  }
  NamedFiles files;
  for (const std::string& directory : {arguments.reference, arguments.candidate})
    files.outputDirectory("the trace", directory, {".safetensors", ".npy", ".trace.json"});
  files.input("the proof's report", arguments.proof);
  addFiles(report, files);
  files.check();
  std::string verdict;
  if (!arguments.proof.empty()) {
    const auto json = writtenProof(arguments.proof);
    if (!json.contains("verdict") || !json["verdict"].is_string())
      throw InputError(arguments.proof, "/verdict", "is missing, expected that of a plan");
    verdict = json["verdict"].get<std::string>();
  }
  compare::Comparison found =
      compare::compareTraces(arguments.reference, arguments.candidate, arguments.options);
  found.proof = verdict;
  found.proofFile = arguments.proof;
  const int code = found.verdict == compare::Agreement::kAgrees    ? kExitEquivalent
                   : found.verdict == compare::Agreement::kDiffers ? kExitNotEquivalent
                                                                   : kExitUndecided;
  std::ostringstream text;
  compare::writeText(text, found, report.style);
  writeForPeople(report, laidOut(text.str(), report.style));
  write(report.json, compare::jsonText(found, code));
  write(report.junit, compare::junitText(found));
  return code;
}

}  // namespace

void addCompareCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = app.add_subcommand(
      "compare",
      "Compare the numbers of a distributed step that ran with those of a reference that ran");
  command
      ->add_option("REFERENCE", arguments->reference,
                   "A directory that python -m shardproof.torch.trace --perturb has written")
      ->required()
      ->type_name("");
  command->add_option("CANDIDATE", arguments->candidate, "The same of the step to be checked")
      ->required()
      ->type_name("");
  command
      ->add_option("--factor", arguments->options.factor,
                   "A tensor may differ by so many times what the perturbed reference does")
      ->check(CLI::Range(1.0, 1e6) & isNumber())
      ->capture_default_str()
      ->type_name("X");
  command
      ->add_option("--bound", arguments->options.bound,
                   "A tensor with a tolerance above this share of its norm is undecided")
      ->check(CLI::Range(1e-6, 1.0) & isNumber())
      ->capture_default_str()
      ->type_name("X");
  command
      ->add_option("--proof", arguments->proof,
                   "The report of verify --json of the same step: what both mean together")
      ->type_name("REPORT");
  command
      ->add_option("--json", arguments->report.json,
                   "Write the complete report to this file as JSON; -: to standard output, and the "
                   "text to standard error")
      ->type_name("FILE");
  command
      ->add_option("--junit", arguments->report.junit,
                   "Write a JUnit file: a case for each tensor of declared layout")
      ->type_name("FILE");
  addTextOptions(command, arguments->report);
  command->footer(
      "Exit codes:\n"
      "  0    the numbers agree, but for rounding\n"
      "  10   they differ; the first tensor by data flow is in the first line\n"
      "  5    undecided: rounding moves some tensors as far as a mistake would, or nothing of "
      "declared layout could be compared\n"
      "  1    wrong usage\n"
      "  2    a trace cannot be read\n"
      "  6    internal error, or a result could not be written\n"
      "  7    out of memory");
  command->callback([arguments, &run] { run = [arguments] { return runCompare(*arguments); }; });
}

}  // namespace shardproof
