// SPDX-License-Identifier: Apache-2.0
#include "commands/worker_command.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "cache/cache_file.h"
#include "commands/files.h"
#include "commands/interrupt.h"
#include "commands/jobs.h"
#include "commands/memory_limits.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "commands/worker_options.h"
#include "report/exit_codes.h"
#include "report/format.h"
#include "shardproof/error.h"
#include "verify/open_stages.h"

namespace shardproof {
namespace {

struct WorkerArguments {
  std::string file, cache;
  int jobs = 0;
  PoolOptions pool;
};

OpenStagesFile readStages(const std::string& file) {
  if (file == "-") return readOpenStages(std::cin, "standard input");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw InputError(file, "", "cannot be read");
  return readOpenStages(in, file);
}

int runWorker(WorkerArguments arguments) {
  NamedFiles files;
  files.input("STAGES", arguments.file);
  files.output("--cache", arguments.cache);
  files.check();
  catchInterrupts();
  const OpenStagesFile open = readStages(arguments.file);
  PoolOptions& pool = arguments.pool;
  pool.cancel = whenSet(&interrupted());
  pool.processorTime = true;
  pool.jobs = jobsOrCores(arguments.jobs);
  CacheFileStore store(arguments.cache);
  const ProveOpenResult result = proveOpenStages(open, store, pool);
  for (const std::string& problem : store.problems()) writeDiagnostic(problem);
  writeStandardOutput(counted(open.forms.size(), "stage", "stages") + ": " +
                      std::to_string(result.proved) + " proved, " + std::to_string(result.known) +
                      " known before, " + std::to_string(result.notProved) + " not proved\n");
  if (interruptingSignal() != 0) return kExitSignal + interruptingSignal();
  return store.problems().empty() ? kExitEquivalent : kExitInternal;
}

constexpr const char* kWorkerExitCodes =
    "Exit codes:\n"
    "  0    done; a stage that is not proved is proved or refuted by the run that listed it\n"
    "  1    wrong usage\n"
    "  2    the list cannot be read, or is of another version\n"
    "  6    the cache cannot be used";

}  // namespace

void addWorkerCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<WorkerArguments>();
  CLI::App* command = app.add_subcommand(
      "worker",
      "Prove stages that `verify --open-stages` listed, on any machine (docs/engines.md)");
  command->add_option("STAGES", arguments->file, "The list; -: standard input")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--cache", arguments->cache,
                   "The proofs go into this file, for `cache merge` and `verify --cache`; made if "
                   "there is none")
      ->required()
      ->type_name("FILE");
  addJobs(command, arguments->jobs);
  addStageTimeout(command, arguments->pool.timeoutSeconds);
  addMemoryLimits(command, arguments->pool.memoryMegabytes);
  command->footer(kWorkerExitCodes);
  command->callback([arguments, &run] { run = [arguments] { return runWorker(*arguments); }; });
}

}  // namespace shardproof
