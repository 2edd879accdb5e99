// SPDX-License-Identifier: Apache-2.0
#include "commands/cache_command.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_file.h"
#include "certificate/reprove.h"
#include "commands/interrupt.h"
#include "commands/jobs.h"
#include "commands/memory_limits.h"
#include "commands/streams.h"
#include "commands/validators.h"
#include "commands/worker_options.h"
#include "report/exit_codes.h"
#include "report/format.h"

namespace shardproof {
namespace {

constexpr std::size_t kMergedAtOnce = 256;  // rows in memory, and in one transaction

struct CacheArguments {
  std::string file;
  std::vector<std::string> from;
  std::int64_t after = 0;
  std::optional<std::uint64_t> maxBytes;
  std::optional<double> days;
  int jobs = 0;
  ReproveOptions reprove;
};

// Runs `f` on the file; what is wrong with the file itself is an error of the input.
template <class F>
int onFile(const std::string& path, sqlite::Access access, F&& f) {
  try {
    CacheFile file(path, access);
    return f(file);
  } catch (const CacheError& error) {
    writeDiagnostic(path + ": " + error.what());
    return error.kind == CacheError::Kind::kNoCache ? kExitInput : kExitInternal;
  }
}

int runStats(const CacheArguments& arguments) {
  return onFile(arguments.file, sqlite::Access::kRead, [&](CacheFile& file) {
    const CacheStatistics statistics = file.statistics();
    std::size_t rows = 0;
    for (const auto& [version, v] : statistics.versions) rows += v.rows;
    std::string text = arguments.file + ": " + counted(rows, "proof", "proofs") + ", " +
                       std::to_string(statistics.fileBytes) + " bytes\n";
    for (const auto& [version, v] : statistics.versions) {
      text += "  " + version + (version == proofVersion() ? "" : " (not used by this program)") +
              ": " + counted(v.rows, "proof", "proofs") + ", " + std::to_string(v.bytes) +
              " bytes, used " + counted(static_cast<std::size_t>(v.hits), "time", "times") + "\n";
    }
    writeStandardOutput(text);
    return int{kExitEquivalent};
  });
}

int runPrune(const CacheArguments& arguments) {
  return onFile(arguments.file, sqlite::Access::kWrite, [&](CacheFile& file) {
    PruneOptions options;
    if (arguments.maxBytes) options.maxBytes = static_cast<std::int64_t>(*arguments.maxBytes);
    options.olderThanDays = arguments.days;
    const PruneResult r = file.prune(options);
    writeStandardOutput(
        arguments.file + ": removed " + counted(r.otherVersions, "proof", "proofs") +
        " of other versions, " + std::to_string(r.damaged) + " damaged, " + std::to_string(r.old) +
        " unused for too long, " + std::to_string(r.forSize) + " for the size; " +
        counted(r.left, "proof is", "proofs are") + " left, " + std::to_string(r.bytesBefore) +
        " bytes became " + std::to_string(r.bytesAfter) + "\n");
    return int{kExitEquivalent};
  });
}

int runReprove(CacheArguments arguments) {
  catchInterrupts();
  arguments.reprove.pool.cancel = whenSet(&interrupted());
  arguments.reprove.pool.jobs = jobsOrCores(arguments.jobs);
  return onFile(arguments.file, sqlite::Access::kRead, [&](CacheFile& file) {
    const ReproveResult r = reprove(file, arguments.reprove);
    std::string text;
    for (const auto& failure : r.failures)
      text += "row " + std::to_string(failure.row) +
              (failure.limits ? ": not decided: " : ": DOES NOT HOLD: ") + failure.reason + "\n";
    text +=
        arguments.file + ": " + std::to_string(r.held) + " of " +
        counted(r.drawn, "proof", "proofs") + " proved again (of " + std::to_string(r.rows) +
        " of this version" +
        (r.removed > 0 ? ", " + std::to_string(r.removed) + " removed by another process meanwhile"
                       : "") +
        ")\n";
    writeStandardOutput(text);
    if (r.anyWrong()) return int{kExitNotEquivalent};
    if (interruptingSignal() != 0) return kExitSignal + interruptingSignal();
    return int{r.failures.empty() ? kExitEquivalent : kExitUndecided};
  });
}

// Row numbers only grow, so whoever merges a cache again and again starts after the last row that
// it had: the summary has its number.
int runMerge(const CacheArguments& arguments) {
  return onFile(arguments.file, sqlite::Access::kCreate, [&](CacheFile& into) {
    std::string text;
    int code = kExitEquivalent;
    for (const std::string& path : arguments.from) {
      const int one = onFile(path, sqlite::Access::kRead, [&](CacheFile& from) {
        std::size_t read = 0, unsound = 0;
        const std::vector<std::int64_t> ids = from.ids(proofVersion());
        std::vector<CacheFile::New> rows;
        const auto write = [&] { into.write(std::exchange(rows, {}), {}); };
        for (const std::int64_t id : ids) {
          if (id <= arguments.after) continue;
          std::optional<CacheRow> row = from.row(id);
          if (!row) continue;
          ++(row->sound ? read : unsound);
          if (row->sound)
            rows.push_back({std::move(row->form), row->checker, std::move(row->proof)});
          if (rows.size() == kMergedAtOnce) write();
        }
        write();
        text += path + ": " + counted(read, "proof", "proofs") + " read, " +
                std::to_string(unsound) + " damaged; the last row is " +
                std::to_string(ids.empty() ? 0 : ids.back()) + "\n";
        return int{kExitEquivalent};
      });
      code = std::max(code, one);
    }
    writeStandardOutput(text);
    return code;
  });
}

constexpr const char* kCacheExitCodes =
    "Exit codes:\n"
    "  0    done; verify: every proof of the sample holds\n"
    "  10   verify: a stored proof does not hold\n"
    "  5    verify: a proof could not be made again within the limits\n"
    "  1    wrong usage\n"
    "  2    the file is not a proof cache, or is damaged\n"
    "  6    the file is locked, or cannot be read or written";

}  // namespace

void addCacheCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<CacheArguments>();
  CLI::App* cache =
      app.add_subcommand("cache", "Look after a proof cache (shardproof verify --cache)");
  cache->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*command)(const CacheArguments&)) {
    CLI::App* sub = cache->add_subcommand(name, help);
    sub->add_option("FILE", arguments->file, "The cache")->required()->type_name("");
    sub->footer(kCacheExitCodes);
    sub->callback(
        [arguments, &run, command] { run = [arguments, command] { return command(*arguments); }; });
    return sub;
  };
  add("stats",
      "How many proofs it holds, of which versions, how large they are and how often they were "
      "used",
      runStats);

  CLI::App* prune =
      add("prune",
          "Remove proofs of other versions of shardproof and damaged ones, and if asked for, more",
          runPrune);
  prune
      ->add_option("--max-size", arguments->maxBytes,
                   "Then those unused for longest, until the file is at most this large (k, m, g: "
                   "1024-fold)")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  prune->add_option("--days", arguments->days, "Those that no run has used for so many days")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("N");

  CLI::App* merge =
      add("merge", "Add the proofs of other caches, which stay as they are; FILE is made if needed",
          runMerge);
  merge->add_option("FROM", arguments->from, "Caches to read")->required()->type_name("FILE...");
  merge
      ->add_option("--after", arguments->after,
                   "Only rows with a higher number: that of the last row at an earlier merge")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62))
      ->type_name("N");

  CLI::App* verify =
      add("verify", "Prove a random sample again, from the stages that the cache holds",
          [](const CacheArguments& a) { return runReprove(a); });
  verify->add_option("--sample", arguments->reprove.sample, "How many proofs")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 40))
      ->capture_default_str()
      ->type_name("N");
  verify->add_option("--seed", arguments->reprove.seed, "Another seed draws another sample")
      ->capture_default_str()
      ->type_name("N");
  addJobs(verify, arguments->jobs);
  verify
      ->add_option("-t,--timeout", arguments->reprove.pool.timeoutSeconds,
                   "Time for one proof, in seconds")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  addMemoryLimits(verify, arguments->reprove.pool.memoryMegabytes);
}

}  // namespace shardproof
