// SPDX-License-Identifier: Apache-2.0
#include "commands/infer_command.h"

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "commands/files.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "shardproof/infer.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

struct InferArguments {
  PlanArguments files;
  std::string output;
  InferOptions options;
};

int runInfer(const InferArguments& arguments) {
  const std::string plan = arguments.files.plan();
  NamedFiles files;
  files.plans(arguments.files);
  files.output("--output", arguments.output);
  files.check();
  const auto problem = readProblem(arguments.files.modelFile(), plan);
  files.modelOf(*problem);
  files.check();
  const Inferred inferred = inferLineage(*problem, arguments.options);
  if (!inferred.problem) {
    writeDiagnostic(plan + ": no lineage was found: " + inferred.reason);
    return kExitUndecided;
  }
  const std::string model =
      std::filesystem::relative(problem->model.file,
                                std::filesystem::absolute(arguments.output).parent_path())
          .generic_string();
  // Wrong cut points of a plan whose outputs hold: what was found takes their place.
  std::set<EntryId> wrong;
  std::string said;
  for (const Inferred::Replaced& one : inferred.replaced) {
    if (one.by.empty()) continue;
    wrong.insert(one.entry);
    said += "/lineage/" + std::to_string(one.entry) + " does not hold, in its place: ";
    for (const EntryId by : one.by)
      said += (by == one.by.front() ? "" : "; ") + describeFound(*inferred.problem, by);
    said += "\n";
  }
  writeFileAtomically(arguments.output, planText(*inferred.problem, model, true, wrong));
  writeStandardOutput(std::to_string(inferred.count) + " cut points found, for " +
                      std::to_string(inferred.looked) + " local tensors of programs" +
                      (inferred.reason.empty() ? "" : "; " + inferred.reason) + "\n" + said +
                      arguments.output + "\n");
  return 0;
}

}  // namespace

void addInferCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<InferArguments>();
  CLI::App* command =
      app.add_subcommand("infer", "Infer lineage of local tensors, and write the plan with it");
  addPlanOptions(command, arguments->files, PlanCount::kOne);
  addModelOption(command, arguments->files, PlanCount::kOne);
  command
      ->add_option("-o,--output", arguments->output,
                   "The plan with the cut points that were found (.json or .json.gz), beside the "
                   "model or below it")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--seconds", arguments->options.seconds,
                   "Time for making a small image of the plan and executing it")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  command->footer(
      "The cut points are lemmas: `shardproof verify` proves each before it uses it, and wrong "
      "ones cost time only. Nothing found is exit code 5, with the reason.");
  command->callback([arguments, &run] { run = [arguments] { return runInfer(*arguments); }; });
}

}  // namespace shardproof
