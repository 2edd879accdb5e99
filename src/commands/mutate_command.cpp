// SPDX-License-Identifier: Apache-2.0
#include "commands/mutate_command.h"

#include <algorithm>
#include <memory>
#include <string>

#include "commands/files.h"
#include "commands/streams.h"
#include "mutate/mutate.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "shardproof/error.h"
#include "util/printable.h"

namespace shardproof {
namespace {

struct MutateArguments {
  PlanArguments files;
  std::string bug, output;
  mutate::Choice choice;
  bool list = false;
};

std::string line(const mutate::Bug& bug, const std::string& sites) {
  std::size_t width = 0;
  for (const mutate::Bug& b : mutate::bugs()) width = std::max(width, b.name.size());
  return std::string(bug.name) + std::string(width - bug.name.size() + 2, ' ') + sites +
         std::string(bug.does) + " [" + std::string(bug.source) + "]\n";
}

int runList(const MutateArguments& arguments) {
  std::string text;
  if (!arguments.files.given()) {
    for (const mutate::Bug& bug : mutate::bugs()) text += line(bug, "");
  } else {
    const std::string file = arguments.files.plan();
    const mutate::Json plan = mutate::readDocument(file);
    const mutate::PlanGraph graph(plan, file);
    for (const mutate::Bug& bug : mutate::bugs()) {
      const std::string count = std::to_string(mutate::sitesOf(bug, graph, file).size());
      text += line(
          bug, std::string(5 - std::min<std::size_t>(count.size(), 5), ' ') + count + " places  ");
    }
  }
  writeStandardOutput(text);
  return 0;
}

int runMutate(const MutateArguments& arguments) {
  if (arguments.list) return runList(arguments);
  const auto wrong = [](const std::string& message) {
    writeDiagnostic("mutate: " + message);
    return static_cast<int>(kExitUsage);
  };
  if (!arguments.files.given() || arguments.bug.empty() || arguments.output.empty())
    return wrong("PLAN, --bug and --output are required, or --list");
  const std::string file = arguments.files.plan();
  NamedFiles files;
  files.plans(arguments.files);
  files.output("--output", arguments.output);
  files.check();
  mutate::Json plan;
  mutate::Mutation made;
  try {
    const mutate::Bug& bug = mutate::findBug(arguments.bug);
    plan = mutate::readDocument(file);
    made = mutate::mutate(plan, file, bug, arguments.choice);
  } catch (const mutate::UnknownBug& error) {
    return wrong(error.what());
  } catch (const mutate::MutationError& error) {
    wrong(error.what());
    return kExitDoesNotApply;
  }
  mutate::writeDocument(arguments.output, mutate::documentText(plan));
  std::string text =
      arguments.bug + " at " + mutate::pointerTo(made.site) + " (" + std::to_string(made.sites);
  text += made.sites == 1 ? " place)\n" : " places)\n";
  for (const mutate::NodeRef ref : made.touched) {
    const auto& node = plan.at("programs")
                           .at(static_cast<std::size_t>(ref.program))
                           .at("nodes")
                           .at(static_cast<std::size_t>(ref.node));
    const auto location = node.find("loc");
    text += mutate::pointerTo(ref) + "  " + printable(mutate::opOf(node)) +
            (location != node.end() && location->is_string()
                 ? "  " + printable(location->get_ref<const std::string&>())
                 : "") +
            "\n";
  }
  writeStandardOutput(text);
  return 0;
}

}  // namespace

void addMutateCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<MutateArguments>();
  CLI::App* command =
      app.add_subcommand("mutate", "Put a bug that a framework really had into a plan");
  addPlanOptions(command, arguments->files, PlanCount::kOne);
  command->add_option("-b,--bug", arguments->bug, "Which bug; see --list")->type_name("NAME");
  command
      ->add_option("-o,--output", arguments->output,
                   "The changed plan is written to this file, compressed if the name ends in .gz")
      ->type_name("FILE");
  auto* at =
      command
          ->add_option(
              "--at", arguments->choice.at,
              "The node to put it into, as a JSON pointer (default: the first that it applies to)")
          ->type_name("POINTER");
  command
      ->add_option_function<std::uint64_t>(
          "--seed", [arguments](const std::uint64_t& seed) { arguments->choice.seed = seed; },
          "Choose the node at random; the same seed chooses the same one")
      ->type_name("N")
      ->excludes(at);
  command->add_flag("--list", arguments->list,
                    "List the bugs; with PLAN, and to how many places of it each applies");
  command->footer(
      "Prints the nodes that were changed, as JSON pointers into the new plan. A bug that does not "
      "apply is exit code 3.");
  command->callback([arguments, &run] { run = [arguments] { return runMutate(*arguments); }; });
}

}  // namespace shardproof
