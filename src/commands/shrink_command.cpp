// SPDX-License-Identifier: Apache-2.0
#include "commands/shrink_command.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "commands/files.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "shardproof/error.h"
#include "shrink/shrink.h"
#include "util/printable.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

struct ShrinkArguments {
  PlanArguments files;
  std::string prefix;
  ShrinkOptions options;
};

std::string summary(const Shrunk& shrunk) {
  std::string text;
  for (const Shrunk::Change& c : shrunk.changes) {
    text += printable(c.what) + ": " + std::to_string(c.full) +
            (c.full == c.shrunk ? ", stays" : " -> " + std::to_string(c.shrunk)) + "\n";
  }
  const auto count = [](double n) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.4g", n);
    return std::string(digits);
  };
  text += "elements of all tensors: " + count(shrunk.fullElements) + " -> " +
          count(shrunk.elements) + "\n";
  for (const std::string& note : shrunk.notes) text += "note: " + printable(note) + "\n";
  return text;
}

int runShrink(const ShrinkArguments& arguments) {
  const std::string model = arguments.prefix + ".model.json",
                    plan = arguments.prefix + ".plan.json";
  const std::string given = arguments.files.plan();
  NamedFiles files;
  files.plans(arguments.files);
  files.output("--output", model);
  files.output("--output", plan);
  files.check();
  const auto problem = readProblem(arguments.files.modelFile(), given);
  files.modelOf(*problem);
  files.check();
  std::optional<Shrunk> shrunk;
  try {
    shrunk = shrinkProblem(*problem, arguments.options);
  } catch (const Unsupported& error) {
    writeDiagnostic(given + ": not made smaller: " + error.what());
    return kExitUndecided;
  }
  const std::string text =
      planText(*shrunk->problem, std::filesystem::path(model).filename().string());
  const FileText texts[] = {{model, shrunk->modelText}, {plan, text}};
  writeFilesAtomically(texts);  // not a model without its plan
  writeStandardOutput(summary(*shrunk) + model + "\n" + plan + "\n");
  return 0;
}

}  // namespace

void addShrinkCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<ShrinkArguments>();
  CLI::App* command = app.add_subcommand("shrink",
                                         "Make a plan smaller as a plan: fewer alike ranks, and "
                                         "the least sizes that all its operators and shards admit");
  addPlanOptions(command, arguments->files, PlanCount::kOne);
  addModelOption(command, arguments->files, PlanCount::kOne);
  command
      ->add_option("-o,--output", arguments->prefix,
                   "PREFIX.model.json and PREFIX.plan.json are written")
      ->required()
      ->type_name("PREFIX");
  command
      ->add_option("--max-elements", arguments->options.maxElements,
                   "Refuse a result with more elements in all tensors of all ranks; 0: no limit")
      ->check(CLI::Range(0.0, 1e18))
      ->type_name("N");
  command
      ->add_option("--ranks", arguments->options.ranks, "Ranks that stay of those that are alike")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--seconds", arguments->options.seconds, "Time for the optimizer")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  command->footer(
      "Prints what became of each axis and dimension. A plan that cannot be made smaller is exit "
      "code 5, with the reason.");
  command->callback([arguments, &run] { run = [arguments] { return runShrink(*arguments); }; });
}

}  // namespace shardproof
