// SPDX-License-Identifier: Apache-2.0
#include "commands/convert_command.h"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "commands/files.h"
#include "commands/pass_files.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "reader/hlo/files.h"
#include "report/file.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

struct ConvertArguments {
  PlanArguments files;
  std::string directory, name = "converted";
  bool noCutPoints = false;
  PassFiles pass;  // instead of `files`
  hlo::Options options;
};

int runConvert(ConvertArguments arguments) {
  arguments.pass.take(arguments.files, arguments.options);
  if (arguments.files.model.empty())
    throw WrongUsage("--model is required: the program of one device (or --before and --after)");
  const std::string plan = arguments.files.plan();
  std::error_code error;
  std::filesystem::create_directories(arguments.directory, error);
  if (!std::filesystem::is_directory(arguments.directory))
    throw InputError(arguments.directory, "", "found no directory, and none can be made");
  const std::filesystem::path directory(arguments.directory);
  const std::string model = arguments.name + ".model.json";
  const std::string modelFile = (directory / model).string(),
                    planFile = (directory / (arguments.name + ".plan.json")).string();
  NamedFiles files;
  files.plans(arguments.files);
  files.output("--output", modelFile);
  files.output("--output", planFile);
  files.check();
  hlo::Options options = arguments.options;
  options.cutPoints = !arguments.noCutPoints;
  const hlo::Documents documents = hlo::convertFiles(arguments.files.model, plan, model, options);
  const FileText texts[] = {{modelFile, documents.model}, {planFile, documents.plan}};
  writeFilesAtomically(texts);  // not a model without its plan
  std::string told;
  for (const Assumption& assumption : documents.assumptions)
    told += "assumed: " + assumption.text + "\n";
  writeStandardOutput(told + modelFile + "\n" + planFile + "\n");
  return 0;
}

}  // namespace

void addConvertCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* command = app.add_subcommand(
      "convert",
      "Write the JSON of two HLO programs: one device's, and each device's after "
      "spmd-partitioning; or each device's before and after a pass");
  addPlanOptions(command, arguments->files, PlanCount::kOne);
  CLI::Option* model = addModelOption(command, arguments->files, PlanCount::kOne)
                           ->description("The program of one device");
  addPassOptions(command, arguments->pass, model);
  command->add_option("-o,--output", arguments->directory, "Where the two files are put")
      ->required()
      ->type_name("DIR");
  command->add_option("--name", arguments->name, "NAME.model.json and NAME.plan.json are written")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_flag("--assume-in-bounds", arguments->options.assumeInBounds,
                    "HLO programs: leave out integer inputs for which a lookup of the model is out "
                    "of bounds, or that are negative and wrapped; listed as an assumption");
  command->add_flag("--exact-constants", arguments->options.exactConstants,
                    "Numbers as the texts have them, not as the simplest rational that rounds to "
                    "them");
  command->add_flag("--strict", arguments->options.strict,
                    "Refuse functions of which nothing is known (custom calls)");
  command->add_flag("--no-cut-points,--no-checkpoints", arguments->noCutPoints,
                    "Lineage of parameters and results only");
  command->footer("docs/jax.md says which programs are understood.");
  command->callback([arguments, &run] { run = [arguments] { return runConvert(*arguments); }; });
}

}  // namespace shardproof
