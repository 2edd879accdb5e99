#include "main/convert_command.h"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "main/streams.h"
#include "reader/hlo/files.h"
#include "report/file.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

struct ConvertArguments {
  std::string plan, model, directory, name = "converted";
  bool noCheckpoints = false;
  hlo::Options options;
};

int runConvert(const ConvertArguments& arguments) {
  std::error_code error;
  std::filesystem::create_directories(arguments.directory, error);
  if (!std::filesystem::is_directory(arguments.directory))
    throw InputError(arguments.directory, "", "found no directory, and none can be made");
  const std::filesystem::path directory(arguments.directory);
  const std::string model = arguments.name + ".model.json";
  const std::string modelFile = (directory / model).string(),
                    planFile = (directory / (arguments.name + ".plan.json")).string();
  hlo::Options options = arguments.options;
  options.checkpoints = !arguments.noCheckpoints;
  const hlo::Documents documents =
      hlo::convertFiles(arguments.model, arguments.plan, model, options);
  const FileText texts[] = {{modelFile, documents.model}, {planFile, documents.plan}};
  writeFilesAtomically(texts);  // not a model without its plan
  std::string told;
  for (const std::string& assumption : documents.assumptions)
    told += "assumed: " + assumption + "\n";
  writeStandardOutput(told + modelFile + "\n" + planFile + "\n");
  return 0;
}

}  // namespace

void addConvertCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* command = app.add_subcommand(
      "convert",
      "Write the JSON of two HLO programs: one device's, and each device's after "
      "spmd-partitioning");
  command->add_option("-p,--plan", arguments->plan, "The partitioned program (.hlo or .hlo.gz)")
      ->required()
      ->type_name("FILE");
  command->add_option("-m,--model", arguments->model, "The program of one device")
      ->required()
      ->type_name("FILE");
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
  command->add_flag("--no-checkpoints", arguments->noCheckpoints,
                    "Lineage of parameters and results only");
  command->footer("docs/jax.md says which programs are understood.");
  command->callback([arguments, &run] { run = [arguments] { return runConvert(*arguments); }; });
}

}  // namespace shardproof
