// SPDX-License-Identifier: Apache-2.0
#include "commands/run_command.h"

#include <memory>
#include <sstream>
#include <string>

#include "commands/files.h"
#include "commands/interrupt.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "executor/interpret.h"
#include "executor/npz.h"
#include "executor/report.h"
#include "ir/attribute_steps.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/file.h"

namespace shardproof {
namespace {

using executor::Agreement;
using executor::Array;

struct RunArguments {
  PlanArguments files;
  std::string inputs, outputs, json, field = "doubles";
  std::uint64_t seed = 1;
  int trials = 1;
  double seconds = 0;
  std::int64_t megabytes = 8192;
  bool noCutPoints = false;
};

// "model/NAME", "rank0/NAME", "rank0/mb1/NAME".
std::map<std::string, const Array*> namedArrays(const executor::Result& result) {
  std::map<std::string, const Array*> arrays;
  for (const auto& [name, array] : result.model) arrays["model/" + name] = &array;
  for (const auto& [name, array] : result.local) {  // NAME@RANK or NAME@RANK#MICROBATCH: the name
                                                    // may have such characters, numbers have not
    const std::size_t place = name.rfind('@');
    const std::string rank = name.substr(place + 1);
    const std::size_t hash = rank.find('#');
    arrays["rank" + rank.substr(0, hash) + "/" +
           (hash == std::string::npos ? "" : "mb" + rank.substr(hash + 1) + "/") +
           name.substr(0, place)] = &array;
  }
  return arrays;
}

int runRun(const RunArguments& arguments) {
  const std::string plan = arguments.files.plan();
  NamedFiles files;
  files.plans(arguments.files);
  files.input("--inputs", arguments.inputs);
  files.output("--outputs", arguments.outputs);
  files.output("--json", arguments.json);
  files.check();
  catchInterrupts();
  const auto problem = readProblem(arguments.files.modelFile(), plan);
  files.modelOf(*problem);
  files.check();
  std::map<std::string, Array> inputs;
  executor::Options options;
  if (!arguments.inputs.empty()) {
    inputs = executor::readNpz(arguments.inputs);
    options.inputs = &inputs;
  }
  options.seed = arguments.seed;
  options.trials = arguments.trials;
  options.arithmetic = arguments.field == "prime" ? executor::Arithmetic::kPrimeField
                                                  : executor::Arithmetic::kDoubles;
  options.seconds = arguments.seconds;
  options.maxBytes = arguments.megabytes << 20;
  options.cutPoints = !arguments.noCutPoints;
  options.keep = !arguments.outputs.empty();
  options.approved = false;  // what the nodes really compute
  options.cancel = &interrupted();
  const ir::FixedAttributes fixed(*problem);
  const executor::Result result = executor::execute(fixed.problem(), options);
  std::ostringstream text;
  executor::writeText(text, fixed.problem(), result, options);
  writeStandardOutput(text.str());
  if (!arguments.json.empty())
    writeFileAtomically(arguments.json, executor::jsonText(fixed.problem(), result, options));
  if (!arguments.outputs.empty()) {
    if (result.model.empty())
      writeDiagnostic(arguments.outputs + ": not written: nothing was executed to the end");
    else executor::writeNpz(arguments.outputs, namedArrays(result));
  }
  const Agreement outputs = result.outputs(problem->plan);
  if (outputs == Agreement::kDiffers) return kExitNotEquivalent;
  if (interruptingSignal() != 0) return kExitSignal + interruptingSignal();
  return outputs == Agreement::kAgrees ? kExitEquivalent : kExitUndecided;
}

}  // namespace

void addRunCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand(
      "run",
      "Execute a model and a plan on numbers, at full size, and compare outputs and lineage");
  addPlanOptions(command, arguments->files, PlanCount::kOne);
  addModelOption(command, arguments->files, PlanCount::kOne);
  command->add_option("--seed", arguments->seed, "Of the inputs that are drawn")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--trials", arguments->trials, "How many times inputs are drawn")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->type_name("K");
  command
      ->add_option(
          "--inputs", arguments->inputs,
          "Values of inputs and parameters of the model, by name; what is not there is drawn")
      ->type_name("FILE.npz");
  command
      ->add_option("--outputs", arguments->outputs,
                   "Write every tensor here: model/NAME, rank0/NAME, rank0/mb1/NAME")
      ->type_name("FILE.npz");
  command
      ->add_option("--field", arguments->field,
                   "doubles: the true functions; prime: integers modulo 2^61 - 1, where agreement "
                   "is exact and a difference means nothing")
      ->check(CLI::IsMember({"doubles", "prime"}))
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("-t,--timeout", arguments->seconds, "Stop after so many seconds (default: none)")
      ->check(secondsRange())
      ->type_name("S");
  command
      ->add_option("--memory", arguments->megabytes,
                   "Memory of all arrays that are alive at once; a plan that needs more is not "
                   "executed, in MB")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}))
      ->capture_default_str()
      ->type_name("MB");
  command->add_flag("--no-cut-points,--no-checkpoints", arguments->noCutPoints,
                    "Compare outputs only: fewer arrays need be kept");
  command->add_option("--json", arguments->json, "Write the complete report to this file as JSON")
      ->type_name("FILE");
  command->footer(
      "Exit codes:\n"
      "  0    all outputs agree on these inputs\n"
      "  10   an output differs, or the plan cannot run\n"
      "  5    some output could not be compared, or the plan is too large\n"
      "  1    wrong usage\n"
      "  2    the model, the plan or the inputs cannot be read\n"
      "  6    internal error, or a result could not be written\n"
      "  7    out of memory\n"
      "  130, 143   interrupted by Ctrl-C or SIGTERM");
  command->callback([arguments, &run] { run = [arguments] { return runRun(*arguments); }; });
}

}  // namespace shardproof
