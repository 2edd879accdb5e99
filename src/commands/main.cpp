// SPDX-License-Identifier: Apache-2.0
// The command line. Only this folder prints and exits: results on standard output, everything else
// on standard error.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <sstream>
#include <string>

#include "commands/cache_command.h"
#include "commands/check_log_command.h"
#include "commands/compare_command.h"
#include "commands/completion_command.h"
#include "commands/convert_command.h"
#include "commands/explain_command.h"
#include "commands/family_command.h"
#include "commands/generate_command.h"
#include "commands/help_command.h"
#include "commands/infer_command.h"
#include "commands/interrupt.h"
#include "commands/lint_command.h"
#include "commands/mutate_command.h"
#include "commands/operators_command.h"
#include "commands/out_of_memory.h"
#include "commands/run_command.h"
#include "commands/shrink_command.h"
#include "commands/streams.h"
#include "commands/sweep_command.h"
#include "commands/usage.h"
#include "commands/verify_command.h"
#include "commands/worker_command.h"
#include "report/exit_codes.h"
#include "report/text.h"
#include "report/version.h"
#include "shardproof/error.h"

namespace {

using namespace shardproof;

int runCommandLine(int argc, char** argv) {
  CLI::App app(
      "shardproof proves that a parallel execution plan computes what its single-device model "
      "computes, for "
      "every input, or shows where it does not.",
      "shardproof");
  app.set_version_flag("-V,--version", std::string("shardproof ") + kVersion,
                       "Print the version and exit");
  app.require_subcommand(1);
  app.footer(std::string("shardproof help COMMAND tells a command's options.\n\n") +
             kExitCodesHelp);
  std::function<int()> run;
  addVerifyCommand(app, run);
  addExplainCommand(app, run);
  addRunCommand(app, run);
  addCompareCommand(app, run);
  addGenerateCommand(app, run);
  addConvertCommand(app, run);
  addMutateCommand(app, run);
  addInferCommand(app, run);
  addShrinkCommand(app, run);
  addCacheCommand(app, run);
  addSweepCommand(app, run);
  addFamilyCommand(app, run);
  addWorkerCommand(app, run);
  addCheckLogCommand(app, run);
  addLintCommand(app, run);
  addOperatorsCommand(app, run);
  addCompletionCommand(app, run);
  addHelpCommand(app, run);
  if (const std::string unknown = unknownWord(app, {argv + std::min(argc, 1), argv + argc});
      !unknown.empty()) {
    writeDiagnostic(unknown);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has exit codes of its own for each kind of error; ours are those of exit_codes.h.
    std::ostringstream out, err;
    const bool asked = app.exit(error, out, err) == 0;
    if (!out.str().empty()) writeStandardOutput(out.str());
    if (asked) return 0;
    std::string message = err.str();
    while (!message.empty() && message.back() == '\n') message.pop_back();
    writeDiagnostic(message);
    return kExitUsage;
  }
  try {
    return run();
  } catch (const WrongUsage& error) {
    throw WrongUsage(app.get_subcommands().front()->get_name() + ": " + error.what());
  }
}

int runGuarded(int argc, char** argv) {
  std::signal(SIGPIPE,
              SIG_IGN);  // a reader that goes away is an error of writing, with its exit code
  std::signal(SIGXFSZ, SIG_IGN);  // so is a limit on the size of files (ulimit -f)
  try {
    reserveStack();
    return runCommandLine(argc, argv);
  } catch (const InputError& error) {
    writeDiagnostic(inputErrorText(error, errorStyle()));
    // A read that a signal broke off says nothing about the file.
    return interruptingSignal() != 0 ? kExitSignal + interruptingSignal() : kExitInput;
  } catch (const WrongUsage& error) {
    writeDiagnostic(error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    if (isOutOfMemory(error)) {
      writeDiagnostic(outOfMemoryText());
      return kExitOutOfMemory;
    }
    writeDiagnostic(std::string("error: ") + error.what());
  } catch (...) {
    writeDiagnostic("internal error of unknown kind");
  }
  return kExitInternal;
}

// Before the libraries are initialised: there may be too little memory for that already.
void prepareForTerminate() { std::set_terminate(endAfterTerminate); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)() = prepareForTerminate;

}  // namespace

int main(int argc, char** argv) {
  claimStandardStreams();
  // A library that calls exit() by itself (OpenMP's, when it gets no memory) would choose the exit
  // code, and 1 is wrong usage.
  static bool finished = false;
  ::on_exit(
      [](int, void* done) {
        if (!*static_cast<bool*>(done)) endAfterExit();
      },
      &finished);
  const int code = runGuarded(argc, argv);
  finished = true;
  return code;
}
