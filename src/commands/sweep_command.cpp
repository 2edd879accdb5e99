// SPDX-License-Identifier: Apache-2.0
#include "commands/sweep_command.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "cache/cache_file.h"
#include "commands/condition_options.h"
#include "commands/files.h"
#include "commands/generate_command.h"
#include "commands/interrupt.h"
#include "commands/progress.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "commands/verify_command.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "report/format.h"
#include "report/version.h"
#include "shardproof/error.h"
#include "sweep/baseline.h"
#include "sweep/config.h"
#include "sweep/execute.h"
#include "sweep/junit.h"
#include "sweep/result.h"
#include "sweep/table.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct SweepArguments {
  std::string config, json, junit, baseline, cache, keep, parts;
  std::vector<std::size_t> only;  // from 1; empty: all
  std::string checker = "auto";
  bool resume = false, quiet = false, list = false;
  Infer infer = Infer::kAuto;
  VerifyOptions options;
};

// The options of `shardproof generate`, from the place that defines them.
class CommandLineOptions : public sweep::GeneratorOptions {
 public:
  CommandLineOptions() {
    generate::Options options;
    CLI::App app;
    app.set_help_flag();
    addGeneratorOptions(&app, options);
    for (const CLI::Option* option : app.get_options()) {
      const bool positional = option->get_lnames().empty();
      names_.push_back(positional ? CLI::detail::to_lower(option->get_name(true))
                                  : option->get_lnames().front());
      if (positional) positionals_.insert(names_.back());
      for (const std::string& name : option->get_lnames()) spellings_[name] = names_.back();
      if (option->get_expected_min() == 0) flags_.insert(names_.back());
    }
  }
  std::vector<std::string> names() const override { return names_; }
  std::string nameOf(const std::string& name) const override {
    const auto found = spellings_.find(name);
    return found == spellings_.end() ? name : found->second;
  }
  bool isFlag(const std::string& name) const override { return flags_.contains(name); }

  // As one would type them.
  std::vector<std::string> words(const sweep::Settings& settings) const {
    std::vector<std::string> words;
    for (const auto& [name, value] : settings)
      if (positionals_.contains(name)) words.push_back(value);
    for (const auto& [name, value] : settings)
      if (!positionals_.contains(name))
        words.push_back("--" + name + (isFlag(name) ? "" : "=" + value));
    return words;
  }

  generate::Options parse(const sweep::Settings& settings) const override {
    generate::Options options;
    CLI::App app;
    app.set_help_flag();
    addGeneratorOptions(&app, options);
    std::vector<std::string> words = this->words(settings);
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    try {
      app.parse(words);
    } catch (const CLI::ParseError& error) {
      throw generate::OptionError(error.what());
    }
    return options;
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> spellings_;  // of options, older ones included
  std::set<std::string> flags_, positionals_;
};

// For generated files and, without --cache, the proofs of this run. Goes with its content.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (fs::temp_directory_path() / "shardproof-sweep-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::runtime_error(pattern +
                               ": cannot create a temporary directory: " + std::strerror(errno));
    path_ = pattern;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The JSON file while the sweep runs. A sweep of thousands must not spend its time on writing: a
// save waits until the work since the last one is a multiple of what that one took, so that at most
// a few per cent of the time goes into it, and little is lost when the process is killed.
class Journal {
 public:
  explicit Journal(std::string file) : file_(std::move(file)) {}

  void save(const sweep::Sweep& state, const sweep::Json& baseline, bool last) {
    if (file_.empty()) return;
    const auto start = Clock::now();
    if (!last && start - saved_ < 20 * took_) return;
    if (last) return writeFileAtomically(file_, sweepText(state, baseline));
    try {
      writeFileAtomically(file_, sweepText(state, baseline));
    } catch (const std::exception& error) {  // the next save may succeed, and the last one must
      if (!failed_) writeDiagnostic(std::string("warning: ") + error.what());
      failed_ = true;
    }
    saved_ = Clock::now();
    took_ = saved_ - start;
  }

 private:
  std::string file_;
  bool failed_ = false;
  Clock::time_point saved_{};
  Clock::duration took_{};
};

int codeOf(const sweep::Result& result) {
  switch (outcomeOf(result)) {
    case sweep::Outcome::kPassed:
    case sweep::Outcome::kSkipped:
      return kExitEquivalent;
    case sweep::Outcome::kFailed:
      return kExitNotEquivalent;
    case sweep::Outcome::kUndecided:
      return kExitUndecided;
    case sweep::Outcome::kConditional:
      return kExitConditional;
    case sweep::Outcome::kInputError:
      return kExitInput;
    case sweep::Outcome::kCrashed:
      return kExitInternal;
    case sweep::Outcome::kInterrupted:
    case sweep::Outcome::kNotRun:
      break;
  }
  const int signal = interruptingSignal();
  return signal != 0 ? kExitSignal + signal : kExitUndecided;
}

// Names of files from names of configurations: the number keeps them apart.
std::string fileNameOf(const std::string& name, std::size_t number) {
  std::string text = std::to_string(number + 1) + "_";
  for (const char c : name.substr(0, 100))
    text += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '='
                ? c
                : '_';
  return text;
}

class Sweep {
 public:
  explicit Sweep(const SweepArguments& arguments)
      : arguments_(arguments),
        configurations_(readConfig(arguments.config, known_)),
        progress_(!arguments.quiet),
        journal_(arguments.json) {
    sweep_.config = arguments.config;
    sweep_.program = {{"version", kVersion},
                      {"proofs", proofVersion()},
                      {"checker", arguments.checker},
                      {"timeout_seconds", arguments.options.runSeconds},
                      {"stage_timeout_seconds", arguments.options.stageSeconds},
                      {"memory_megabytes", arguments.options.memoryMegabytes},
                      {"infer", arguments.infer == Infer::kAuto     ? "auto"
                                : arguments.infer == Infer::kAlways ? "always"
                                                                    : "never"},
                      {"accept", arguments.options.accept},
                      {"allow_uncompared", arguments.options.allowUncompared}};
    // A rebuilt program of the same version may generate or find other things.
    const auto program = sweep::describeFile("/proc/self/exe");
    if (program) sweep_.program["build"] = {{"bytes", program->bytes}, {"crc32", program->crc}};
    for (const sweep::Configuration& configuration : configurations_)
      sweep_.results.push_back(resultOf(configuration));
    judgeInvalid();
    if (!arguments.baseline.empty()) before_ = sweep::readSweep(arguments.baseline);
    if (std::error_code ignored; arguments.resume && fs::exists(arguments.json, ignored)) {
      const sweep::Sweep done = sweep::readSweep(arguments.json);
      if (program) takeOver(sweep_, done);
      else
        writeDiagnostic("warning: /proc/self/exe cannot be read, so it is not known whether " +
                        arguments.json + " is of this program; everything is run again");
    }
    if (!arguments.parts.empty()) takeParts(sweep_, arguments.parts);
    // Whoever puts the parts together gets each configuration from the one that was to run it.
    for (std::size_t i = 0; i < configurations_.size(); ++i)
      if (!isChosen(i)) sweep_.results[i] = resultOf(configurations_[i]);
    for (const std::size_t number : arguments.only)
      if (number > configurations_.size())
        throw WrongUsage("--only " + std::to_string(number) + ": " + arguments.config + " has " +
                         counted(configurations_.size(), "configuration", "configurations"));
  }

  // The plans and models that the configurations name, and what --keep leaves of them.
  void addFiles(NamedFiles& files) const {
    for (std::size_t i = 0; i < configurations_.size(); ++i) {
      const sweep::Configuration& configuration = configurations_[i];
      const bool made = configuration.plan.empty() || configuration.bug;
      if (!arguments_.keep.empty())
        for (const char* ending : {".report.json", ".model.json", ".plan.json"})
          if (made || ending == std::string_view(".report.json"))
            files.optionalOutput("--keep", prefixOf(i, arguments_.keep) + ending);
      if (configuration.plan.empty()) continue;
      files.input("a model of CONFIG", configuration.model);
      files.plan("a plan of CONFIG", configuration.plan, configuration.model);
    }
  }

  int list() {
    std::size_t width = 4;
    for (const sweep::Result& result : sweep_.results)
      width = std::max(width, columns(printable(result.name)));
    std::string text;
    int code = kExitEquivalent;
    for (std::size_t i = 0; i < sweep_.results.size(); ++i) {
      const sweep::Result& result = sweep_.results[i];
      const bool open = result.state == sweep::State::kNotRun;
      text += padded(open             ? "to run"
                     : result.resumed ? "done"
                                      : toString(result.state),
                     13) +
              padded(printable(result.name), width) + "  ";
      text += printable(result.reason.empty() ? doing(configurations_[i]) : result.reason);
      if (result.expect != Verdict::kEquivalent)
        text += std::string("  expected: ") + toString(result.expect);
      text += "\n";
      if (result.state == sweep::State::kInputError) code = kExitInput;
    }
    writeStandardOutput(text);
    return code;
  }

  int run() {
    const ScratchDirectory scratch;
    const sweep::Table table(sweep_.results);
    if (!arguments_.quiet) print(table.header());
    journal_.save(sweep_, nullptr, false);
    for (std::size_t i = 0; i < sweep_.results.size(); ++i) {
      sweep::Result& result = sweep_.results[i];
      const bool open = result.state == sweep::State::kNotRun;
      if (!isChosen(i) || (open && (interrupted() || !arguments_.parts.empty()))) continue;
      if (open) result = runOne(i, scratch.path());
      if (!arguments_.quiet) print(table.row(result));
      journal_.save(sweep_, nullptr, false);
    }
    return finish();
  }

 private:
  bool isChosen(std::size_t i) const {
    const auto& only = arguments_.only;
    return only.empty() || std::find(only.begin(), only.end(), i + 1) != only.end();
  }

  std::string prefixOf(std::size_t i, const fs::path& directory) const {
    return (directory / fileNameOf(configurations_[i].name, i)).string();
  }

  void judgeInvalid() {
    for (std::size_t i = 0; i < configurations_.size(); ++i) {
      const sweep::Configuration& configuration = configurations_[i];
      if (configuration.invalid.empty()) continue;
      const bool foreseen = configuration.options && configuration.skipInvalid;
      sweep_.results[i].state = foreseen ? sweep::State::kSkipped : sweep::State::kInputError;
      sweep_.results[i].reason = configuration.invalid;
    }
  }

  sweep::Result runOne(std::size_t i, const fs::path& scratch) {
    const fs::path directory = arguments_.keep.empty() ? scratch : fs::path(arguments_.keep);
    const std::string label = std::to_string(i + 1) + "/" + std::to_string(sweep_.results.size()) +
                              " " + printable(configurations_[i].name) + ": ";
    sweep::ExecuteOptions options{
        .verify = arguments_.options,
        .infer = arguments_.infer,
        .cache = arguments_.cache.empty() ? (scratch / "proofs").string() : arguments_.cache,
        .prefix = prefixOf(i, directory),
        .keep = !arguments_.keep.empty()};
    options.verify.cancel = &interrupted();
    options.verify.progress = [&](std::size_t done, std::size_t all, const char* doing) {
      progress_.update(done, all, (label + doing).c_str());
    };
    progress_.update(0, 0, label.c_str());
    sweep::Executed executed = executeApart(configurations_[i], options, interruptingSignal);
    progress_.clear();  // also what the other process wrote there
    for (const std::string& warning : executed.warnings)
      if (warned_.insert(warning).second) writeDiagnostic("warning: " + warning);
    if (!options.keep) {
      std::error_code ignored;
      for (const char* end : {".model.json", ".plan.json"})
        fs::remove(options.prefix + end, ignored);
    }
    return std::move(executed.result);
  }

  // What cannot be printed must not keep the other results from being written.
  void print(const std::string& text) {
    try {
      writeStandardOutput(text);
    } catch (const std::exception&) {
      if (!unwritten_) unwritten_ = std::current_exception();
    }
  }

  template <class Write>
  void attempt(Write write) {
    try {
      write();
    } catch (const std::exception&) {
      if (!unwritten_) unwritten_ = std::current_exception();
    }
  }

  int finish() {
    int code = kExitEquivalent;
    sweep_.complete = true;
    for (std::size_t i = 0; i < sweep_.results.size(); ++i) {
      const sweep::Result& result = sweep_.results[i];
      if (isChosen(i)) code = worse(code, codeOf(result));
      if (result.state == sweep::State::kNotRun || result.state == sweep::State::kInterrupted)
        sweep_.complete = false;
    }
    sweep::Json comparison = nullptr;
    std::vector<sweep::Change> changes;
    if (before_) {
      changes = compare(*before_, sweep_);
      comparison = {{"file", arguments_.baseline}, {"changes", toJson(changes)}};
      // Every other change for the worse is in the codes already.
      if (lostCoverage(*before_, sweep_)) code = worse(code, kExitUndecided);
    }
    NamedConditions named;
    for (const sweep::Result& result : sweep_.results) {
      if (result.report.is_null()) continue;
      named.anyPlan = true;
      for (const sweep::Json& assumption : result.report.at("assumptions"))
        named.assumptions.insert(assumption.at("name").get<std::string>());
      for (const sweep::Json& item : result.report.at("not_compared"))
        named.notCompared.insert(item.at("what").get<std::string>());
    }
    noteUnusedOptions(arguments_.options, named);
    if (!arguments_.quiet) print(detailsText(sweep_));
    if (before_) print(changesText(changes, arguments_.baseline));
    print((arguments_.quiet ? "" : "\n") + summaryText(sweep_));
    attempt([&] { journal_.save(sweep_, comparison, true); });
    attempt([&] {
      if (!arguments_.junit.empty()) writeFileAtomically(arguments_.junit, junitText(sweep_));
    });
    if (unwritten_) std::rethrow_exception(unwritten_);
    return code;
  }

  // What is done for a configuration, as commands.
  std::string doing(const sweep::Configuration& configuration) const {
    std::string text = configuration.plan;
    if (configuration.options) {
      text = "generate";
      for (const std::string& word : known_.words(configuration.settings)) text += " " + word;
    }
    if (configuration.bug) {
      text += "; mutate --bug=" + configuration.bug->name;
      if (!configuration.bug->choice.at.empty()) text += " --at=" + configuration.bug->choice.at;
      if (configuration.bug->choice.seed)
        text += " --seed=" + std::to_string(*configuration.bug->choice.seed);
    }
    return text;
  }

  const SweepArguments& arguments_;
  const CommandLineOptions known_;
  std::vector<sweep::Configuration> configurations_;
  sweep::Sweep sweep_;
  std::optional<sweep::Sweep> before_;
  Progress progress_;
  Journal journal_;
  std::set<std::string> warned_;
  std::exception_ptr unwritten_;
};

int runSweep(SweepArguments arguments) {
  NamedFiles files;
  files.input("CONFIG", arguments.config);
  files.input("--baseline", arguments.baseline);
  files.output("--json", arguments.json);
  files.output("--junit", arguments.junit);
  files.optionalOutput("--cache", arguments.cache);
  files.check();  // not after an hour's work
  catchInterrupts();
  arguments.options.checker = arguments.checker == "z3" ? Checker::kZ3 : Checker::kAuto;
  Sweep sweep(arguments);
  if (arguments.list) return sweep.list();
  sweep.addFiles(files);
  files.check();
  if (!arguments.keep.empty()) fs::create_directories(arguments.keep);
  return sweep.run();
}

}  // namespace

void addSweepCommand(CLI::App& app, std::function<int()>& run) {
  const auto arguments = std::make_shared<SweepArguments>();
  CLI::App* command = app.add_subcommand(
      "sweep", "Generate and verify many configurations, and compare them with an earlier run");
  command
      ->add_option("CONFIG", arguments->config,
                   "What to run: architectures, degrees, plans (docs/sweep.md)")
      ->required()
      ->type_name("FILE");
  addVerifyLimits(command, arguments->options, arguments->checker);
  addInferOption(command, arguments->infer);
  addConditionOptions(command, arguments->options);
  command
      ->add_option("--cache", arguments->cache,
                   "Look proofs up in this file, and leave new ones there; made if there is none "
                   "(default: shared within the run)")
      ->type_name("FILE");
  CLI::Option* json = command
                          ->add_option("--json", arguments->json,
                                       "Write all results to this file, after each configuration")
                          ->type_name("FILE");
  command->add_option("--junit", arguments->junit, "Write the results to this file as JUnit XML")
      ->type_name("FILE");
  command
      ->add_option("--baseline", arguments->baseline,
                   "Show what differs from this JSON file of an earlier sweep")
      ->type_name("FILE");
  command
      ->add_flag("--resume", arguments->resume,
                 "Run only what the JSON file does not have yet, or has of other inputs or another "
                 "version")
      ->needs(json);
  command
      ->add_option("--keep", arguments->keep,
                   "Leave generated models and plans in this directory, with the complete reports")
      ->type_name("DIR");
  CLI::Option* list = command->add_flag("--list", arguments->list, "Only show what would run");
  CLI::Option* only =
      command
          ->add_option("--only", arguments->only,
                       "Run these configurations only, by their numbers in the order of --list")
          ->delimiter(',')
          ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 40))
          ->excludes(list)
          ->type_name("N,...");
  command
      ->add_option("--parts", arguments->parts,
                   "Run nothing: take the results from the JSON files in this directory, which "
                   "other processes wrote with --only and --json")
      ->excludes(only)
      ->type_name("DIR");
  command->add_flag("-q,--quiet", arguments->quiet, "Print the summary only");
  command->footer(kExitCodesHelp);
  command->callback([arguments, &run] { run = [arguments] { return runSweep(*arguments); }; });
}

}  // namespace shardproof
