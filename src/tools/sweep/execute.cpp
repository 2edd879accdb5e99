// SPDX-License-Identifier: Apache-2.0
#include "sweep/execute.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>

#include "attempts/verify_files.h"
#include "cache/cache_file.h"
#include "generate/generate.h"
#include "mutate/document.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "report/json.h"
#include "report/text.h"
#include "shardproof/error.h"
#include "sweep/child.h"
#include "util/stopwatch.h"

namespace shardproof::sweep {
namespace {

constexpr std::size_t kTextLines = 40;

using Clock = std::chrono::steady_clock;

struct Files {
  std::string model, plan;
};

// A file that is removed after use need not survive a crash of the machine, so it is not forced to
// the disk.
void writeFile(const std::string& path, const std::string& text, bool keep) {
  if (keep) return writeFileAtomically(path, text);
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot write");
}

// Puts the bug into a copy of the plan.
Files mutated(const Files& files, const Bug& bug, const ExecuteOptions& options) {
  mutate::Json plan = mutate::readDocument(files.plan);
  Files copy{.model = files.model, .plan = options.prefix + ".plan.json"};
  if (copy.model.empty()) {
    const bool named = plan.is_object() && plan.contains("model") && plan.at("model").is_string();
    copy.model = modelBeside(files.plan, named ? plan.at("model").get<std::string>() : "");
  }
  mutate::mutate(plan, files.plan, mutate::findBug(bug.name), bug.choice);
  writeFile(copy.plan, mutate::documentText(plan), options.keep);
  return copy;
}

Files makeFiles(const Configuration& configuration, const ExecuteOptions& options) {
  Files files{.model = configuration.model, .plan = configuration.plan};
  if (configuration.options) {
    files = {.model = options.prefix + ".model.json", .plan = options.prefix + ".plan.json"};
    const generate::Files made = generate::generate(
        *configuration.options, std::filesystem::path(files.model).filename().string());
    writeFile(files.model, made.model, options.keep);
    writeFile(files.plan, made.plan, options.keep);
  }
  return configuration.bug ? mutated(files, *configuration.bug, options) : files;
}

std::string firstLines(const std::string& text) {
  std::size_t end = 0;
  for (std::size_t line = 0; line < kTextLines && end < text.size(); ++line)
    end = std::min(text.find('\n', end), text.size() - 1) + 1;
  return text.substr(0, end) + (end < text.size() ? "...\n" : "");
}

// The files as they are now, if they are known to have been so all the while.
std::optional<std::vector<InputFile>> unchangedSince(const std::vector<std::string>& paths,
                                                     std::chrono::system_clock::time_point start) {
  std::vector<InputFile> files;
  for (const std::string& path : paths) {
    auto file = describeFile(path);
    if (!file ||
        file->modified >=
            std::chrono::duration_cast<std::chrono::nanoseconds>(start.time_since_epoch()).count())
      return std::nullopt;
    files.push_back(std::move(*file));
  }
  return files;
}

void run(const Configuration& configuration, const ExecuteOptions& options, ProofStore* proofs,
         Result& result) {
  const auto wallClock = std::chrono::system_clock::now();
  const auto start = Clock::now();
  if (options.verify.progress)
    options.verify.progress(0, 0, configuration.options ? "generating" : "reading");
  const Files files = makeFiles(configuration, options);
  result.generateSeconds = configuration.options || configuration.bug ? secondsSince(start) : 0;

  VerifyOptions verifyOptions = options.verify;
  verifyOptions.proofs = proofs;
  Report report = verifyFiles(files.model, files.plan, verifyOptions, {}, options.infer).report;
  if (!configuration.options)
    result.inputs = unchangedSince({configuration.plan, report.model}, wallClock);
  if (options.keep) {
    writeFileAtomically(options.prefix + ".report.json", jsonText(report, exitCodeFor(report, 0)));
  } else {  // where the files lay is of no use when they are gone
    for (std::string* file : {&report.model, &report.plan})
      if (file->starts_with(options.prefix))
        *file = std::filesystem::path(*file).filename().string();
  }
  setReport(result, report);
  if (report.verdict == Verdict::kEquivalent) return;
  std::ostringstream text;
  writeText(text, report, false);
  result.text = firstLines(text.str());
}

}  // namespace

Executed execute(const Configuration& configuration, const ExecuteOptions& options) {
  Executed executed{.result = resultOf(configuration), .warnings = {}};
  Result& result = executed.result;
  const auto end = [&](State state, const std::string& reason) {
    result.state = state;
    result.reason = reason;
  };
  std::optional<CacheFileStore> cache;
  try {
    if (!options.cache.empty()) cache.emplace(options.cache);
    run(configuration, options, cache ? &*cache : nullptr, result);
  } catch (const InputError& error) {
    end(State::kInputError, error.what());
  } catch (const generate::OptionError& error) {
    end(State::kInputError, error.what());
  } catch (const mutate::MutationError& error) {
    end(configuration.skipInvalid ? State::kSkipped : State::kInputError, error.what());
  } catch (const std::bad_alloc&) {
    end(State::kCrashed, "out of memory");
  } catch (const std::exception& error) {
    end(State::kCrashed, error.what());
  }
  if (cache) executed.warnings = cache->problems();
  return executed;
}

Executed executeApart(const Configuration& configuration, const ExecuteOptions& options,
                      const std::function<int()>& signal) {
  const auto work = [&] {
    const Executed executed = execute(configuration, options);
    return Json{{"result", toJson(executed.result)}, {"warnings", executed.warnings}}.dump(
        -1, ' ', false, Json::error_handler_t::replace);
  };
  const ChildEnd end = runInChild(work, signal);
  if (!end.failure.empty()) {
    Executed crashed{.result = resultOf(configuration), .warnings = {}};
    crashed.result.state = State::kCrashed;
    crashed.result.reason = end.failure;
    return crashed;
  }
  const Json answer = Json::parse(end.answer);
  return {.result = resultFromJson(answer.at("result")),
          .warnings = answer.at("warnings").get<std::vector<std::string>>()};
}

}  // namespace shardproof::sweep
