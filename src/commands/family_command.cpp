// SPDX-License-Identifier: Apache-2.0
#include "commands/family_command.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attempts/attempts.h"
#include "commands/condition_options.h"
#include "commands/files.h"
#include "commands/generate_command.h"
#include "commands/interrupt.h"
#include "commands/memory_limits.h"
#include "commands/progress.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "commands/validators.h"
#include "commands/worker_options.h"
#include "families/prove_family.h"
#include "generate/generate.h"
#include "reader/reader.h"
#include "report/exit_codes.h"
#include "report/file.h"
#include "report/format.h"
#include "report/text.h"
#include "shardproof/error.h"

namespace shardproof {
namespace {

constexpr double kFamilySeconds = 120;
// Of the sizes below those that are proved together, or of the sizes of a family that is not
// proved, so many are looked at one by one.
constexpr std::size_t kMostOneByOne = 64;

struct FamilyArguments {
  CLI::App* command = nullptr;
  std::string any, also, json;
  std::vector<std::string> plans;
  generate::Options generated;
  bool quiet = false;
  VerifyOptions options;
};

// "4,5,7" as numbers, ascending, each once.
std::vector<std::int64_t> sizesOf(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> sizes;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    std::int64_t size = 0;
    if (!CLI::detail::lexical_cast(word, size) || size < 1 || size > 1'000'000)
      throw WrongUsage(option + ": found the size '" + word +
                       "', expected whole numbers from 1 to 1000000");
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// Where plans of a size come from.
class Plans {
 public:
  virtual ~Plans() = default;
  // Null: there is none of this size.
  virtual std::unique_ptr<Problem> at(std::int64_t size) = 0;
  // Why there was none, as the end of a sentence; empty where nothing more is known.
  virtual std::string refusal() const { return {}; }
  virtual bool everySize() const = 0;
  virtual std::string name() const = 0;
};

class GeneratedPlans : public Plans {
 public:
  GeneratedPlans(generate::Options options, std::string parameter)
      : options_(std::move(options)), parameter_(std::move(parameter)) {}

  std::unique_ptr<Problem> at(std::int64_t size) override {
    generate::Options options = options_;
    CLI::App app;
    app.set_help_flag();
    addGeneratorOptions(&app, options);
    if (app.get_option_no_throw("--" + parameter_) == nullptr)
      throw WrongUsage("--any: found '" + parameter_ +
                       "', expected an option of `shardproof generate` that is a size, such as dp, "
                       "batch or seq");
    std::vector<std::string> words{"--" + parameter_ + "=" + std::to_string(size),
                                   options_.architecture};
    try {
      app.parse(words);
      const generate::Files files = generate::generate(options, "model");
      auto problem = readProblemText(files.model, files.plan);
      problem->plan.file = parameter_ + " " + std::to_string(size);
      return problem;
    } catch (const CLI::ParseError& error) {
      refusal_ = error.what();
    } catch (const generate::OptionError& error) {
      refusal_ = error.what();
    }
    return nullptr;
  }
  std::string refusal() const override { return ": " + refusal_; }
  bool everySize() const override { return true; }
  std::string name() const override { return "plans of `shardproof generate`"; }

 private:
  const generate::Options options_;
  const std::string parameter_;
  std::string refusal_;
};

class PlanFiles : public Plans {
 public:
  void add(std::int64_t size, std::string file) { files_.emplace_back(size, std::move(file)); }
  std::unique_ptr<Problem> at(std::int64_t size) override {
    for (const auto& [own, file] : files_)
      if (own == size) return readProblem(std::nullopt, file, hlo::Options());
    return nullptr;
  }
  bool everySize() const override { return false; }
  std::string name() const override { return "the plans"; }
  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> sizes;
    for (const auto& file : files_) sizes.push_back(file.first);
    return sizes;
  }

 private:
  std::vector<std::pair<std::int64_t, std::string>> files_;
};

struct OneSize {
  std::int64_t size;
  Verdict verdict;
  std::string cause;
};

struct FamilyRun {
  std::string parameter;
  std::vector<std::int64_t> members;
  FamilyReport report;
  std::vector<OneSize> oneByOne;
  std::vector<std::int64_t> ofTheFamily;                     // --also: proved with it
  std::vector<std::pair<std::int64_t, std::string>> others;  // --also: and what differs
};

std::string listed(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

const OneSize* firstWrong(const FamilyRun& run) {
  for (const OneSize& one : run.oneByOne)
    if (one.verdict == Verdict::kNotEquivalent) return &one;
  return nullptr;
}

class Family {
 public:
  Family(const FamilyArguments& arguments, Plans& plans, std::string parameter,
         std::vector<std::int64_t> sizes)
      : arguments_(arguments),
        plans_(plans),
        progress_(!arguments.quiet),
        budget_(arguments.options.runSeconds, arguments.options.cancel) {
    run_.parameter = std::move(parameter);
    run_.members = std::move(sizes);
    options_ = arguments_.options;
    options_.progress = [this](std::size_t done, std::size_t all, const char* doing) {
      progress_.update(done, all, doing);
    };
  }

  FamilyRun run() {
    std::int64_t common = 0;
    for (const std::int64_t size : run_.members) common = std::gcd(common, size);
    // For every size, or for multiples where a number of the plan is a whole one only there.
    std::unique_ptr<FamilyChain> chain;
    for (std::int64_t unit = 1; unit <= common;
         unit = common % (2 * unit) == 0 ? 2 * unit : common) {
      std::vector<FamilyMember> members;
      for (const std::int64_t size : run_.members) members.push_back({size, planOf(size)});
      chain = std::make_unique<FamilyChain>(std::move(members), unit);
      run_.report = proveFamily(*chain, options_, budget_);
      if (!run_.report.notWhole || unit == common) break;
    }
    if (isProved(run_.report.verdict)) {
      compareOthers(*chain);
      if (plans_.everySize())
        lookAt(run_.report.unit, run_.report.least - run_.report.unit, run_.report.unit, false);
      else
        for (const std::int64_t size : run_.members)
          if (size < run_.report.least) lookAt(size, size, 1, false);
    } else if (plans_.everySize()) {
      lookAt(run_.report.unit, run_.members.back(), run_.report.unit, true);
    } else {
      for (const std::int64_t size : run_.members)
        if (!lookAt(size, size, 1, true)) break;
    }
    progress_.clear();
    return std::move(run_);
  }

 private:
  std::unique_ptr<Problem> planOf(std::int64_t size) {
    if (auto problem = plans_.at(size)) return problem;
    throw WrongUsage("there is no plan of " + run_.parameter + " " + std::to_string(size) +
                     plans_.refusal());
  }

  void compareOthers(const FamilyChain& chain) {
    for (const std::int64_t size : sizesOf(arguments_.also, "--also")) {
      progress_.update(0, 1, "comparing other sizes");
      const std::string differs = chain.differs({size, planOf(size)}, options_);
      if (differs.empty() && size >= run_.report.least) run_.ofTheFamily.push_back(size);
      else run_.others.emplace_back(size, differs.empty() ? "it is below the least size" : differs);
    }
  }

  // Each plan by itself. False: one is not equivalent, and the rest was not looked at.
  bool lookAt(std::int64_t from, std::int64_t to, std::int64_t step, bool stopAtWrong) {
    for (std::int64_t size = from; size <= to && !budget_.over(); size += step) {
      if (run_.oneByOne.size() >= kMostOneByOne) break;
      std::unique_ptr<Problem> problem = plans_.at(size);
      if (!problem) continue;  // the generator has none of this size
      const Report report = verifyInferring(problem, options_, Infer::kAuto, budget_);
      std::string cause = !report.defects.empty() ? report.defects.front().message : report.reason;
      run_.oneByOne.push_back({size, report.verdict, std::move(cause)});
      if (report.verdict == Verdict::kNotEquivalent && stopAtWrong) return false;
    }
    return true;
  }

  const FamilyArguments& arguments_;
  Plans& plans_;
  VerifyOptions options_;
  Progress progress_;
  const Budget budget_;
  FamilyRun run_;
};

std::string every(const FamilyRun& run) {
  const FamilyReport& r = run.report;
  return (r.unit == 1
              ? "every " + run.parameter
              : "every " + run.parameter + " that is a multiple of " + std::to_string(r.unit)) +
         " from " + std::to_string(r.least) + " on";
}

std::string textOf(const FamilyRun& run, const Plans& plans, const FamilyArguments& arguments) {
  const FamilyReport& r = run.report;
  const OneSize* wrong = firstWrong(run);
  std::ostringstream text;
  const std::string outputs = " (" + grouped(r.outputsProved) + " of " +
                              counted(r.outputs, "output", "outputs") + " proved)";
  if (wrong != nullptr)
    text << "NOT EQUIVALENT at " << run.parameter << " " << wrong->size
         << ", the smallest size that is wrong of those looked at\n";
  else if (isProved(r.verdict))
    text << (r.verdict == Verdict::kEquivalent ? "EQUIVALENT" : "CONDITIONAL") << " for "
         << every(run) << outputs << "\n";
  else
    text << "UNDECIDED for all sizes of " << run.parameter << outputs << ": " << r.reason << "\n";
  if (arguments.quiet) return text.str();
  text << "\n";
  if (wrong != nullptr) text << "  " << wrong->cause << "\n\n";
  for (const std::string& tensor : r.approved)
    text << "Approved:   the plan's " << tensor << " is taken as given (lineage of role assumed)\n";
  for (const UnmetCondition& condition : r.conditions)
    text << "  condition: " << condition.text << "\n";
  text << "Read off:   " << plans.name() << " of " << run.parameter << " " << listed(run.members)
       << "; at other sizes they are taken to go on as between these (--also compares others)\n";
  if (isProved(r.verdict))
    text << "Proved:     " << counted(r.stages, "stage", "stages") << " by "
         << counted(r.kinds, "proof", "proofs") << "; " << grouped(r.withSize) << " of these with "
         << run.parameter << " as a variable, the others are the same at every size\n";
  if (!run.ofTheFamily.empty())
    text << "Compared:   " << run.parameter << " " << listed(run.ofTheFamily)
         << ": these plans are the family's, and proved\n";
  for (const auto& [size, why] : run.others)
    text << "Not proved: " << run.parameter << " " << size << " is no plan of the family: " << why
         << "\n";
  std::string before;
  for (const OneSize& one : run.oneByOne) {
    std::string verdict = toString(one.verdict);
    std::replace(verdict.begin(), verdict.end(), '-', ' ');
    if (verdict != before) text << (before.empty() ? "One by one: " : "; ") << run.parameter << " ";
    else text << ", ";
    text << one.size;
    const bool last = &one == &run.oneByOne.back() || (&one + 1)->verdict != one.verdict;
    if (last) text << " " << verdict;
    before = verdict;
  }
  if (!before.empty()) text << "\n";
  for (const FamilyReport::Open& open : r.open)
    text << "Open:       " << open.tensor << ": " << open.reason << "\n";
  if (r.openStages > r.open.size())
    text << "            and " << grouped(r.openStages - r.open.size()) << " more\n";
  return text.str();
}

Verdict verdictOf(const FamilyRun& run) {
  return firstWrong(run) != nullptr ? Verdict::kNotEquivalent : run.report.verdict;
}

std::string jsonOf(const FamilyRun& run) {
  const FamilyReport& r = run.report;
  nlohmann::ordered_json json = {{"kind", "shardproof family report"},
                                 {"verdict", toString(verdictOf(run))},
                                 {"reason", r.reason},
                                 {"parameter", run.parameter},
                                 {"sizes", run.members},
                                 {"unit", r.unit},
                                 {"outputs", r.outputs},
                                 {"outputs_proved", r.outputsProved},
                                 {"stages", r.stages},
                                 {"proofs", r.kinds},
                                 {"proofs_with_size", r.withSize},
                                 {"open_stages", r.openStages}};
  if (isProved(r.verdict)) {
    json["least"] = r.least;
    json["most"] = r.most;
  }
  json["open"] = nlohmann::ordered_json::array();
  for (const auto& open : r.open)
    json["open"].push_back({{"tensor", open.tensor}, {"reason", open.reason}});
  json["conditions"] = nlohmann::ordered_json::array();
  for (const auto& condition : r.conditions) json["conditions"].push_back(condition.text);
  json["approved"] = r.approved;
  json["compared"] = run.ofTheFamily;
  json["not_of_the_family"] = nlohmann::ordered_json::array();
  for (const auto& [size, why] : run.others)
    json["not_of_the_family"].push_back({{"size", size}, {"reason", why}});
  json["one_by_one"] = nlohmann::ordered_json::array();
  for (const OneSize& one : run.oneByOne)
    json["one_by_one"].push_back(
        {{"size", one.size}, {"verdict", toString(one.verdict)}, {"cause", one.cause}});
  return json.dump(2) + "\n";
}

int codeOf(Verdict verdict) {
  Report report;
  report.verdict = verdict;
  return exitCodeFor(report, 0);
}

int codeOf(const FamilyRun& run) {
  int code = codeOf(verdictOf(run));
  if (verdictOf(run) == Verdict::kUndecided && interruptingSignal() != 0)
    code = kExitSignal + interruptingSignal();
  // Small sizes, and those asked for, are part of what is claimed.
  for (const OneSize& one : run.oneByOne) code = worse(code, codeOf(one.verdict));
  if (!run.others.empty()) code = worse(code, kExitUndecided);
  return code;
}

int runFamily(FamilyArguments arguments) {
  const std::size_t equals = arguments.any.find('=');
  const std::string parameter = arguments.any.substr(0, equals);
  std::vector<std::int64_t> sizes = equals == std::string::npos
                                        ? std::vector<std::int64_t>()
                                        : sizesOf(arguments.any.substr(equals + 1), "--any");
  const bool files = !arguments.plans.empty();
  if (files == !arguments.generated.architecture.empty())
    throw WrongUsage(
        "expected either an architecture of `shardproof generate`, or --plan SIZE=FILE "
        "for each size");
  NamedFiles named;
  std::unique_ptr<Plans> plans;
  if (files) {
    auto own = std::make_unique<PlanFiles>();
    for (const std::string& plan : arguments.plans) {
      const std::size_t at = plan.find('=');
      const auto size = sizesOf(plan.substr(0, at), "--plan");
      if (at == std::string::npos || size.size() != 1)
        throw WrongUsage("--plan: found '" + plan + "', expected SIZE=FILE, as in 4=dp4.plan.json");
      named.input("--plan", plan.substr(at + 1));
      own->add(size[0], plan.substr(at + 1));
    }
    // Those that --also names are compared with the family, which the others make.
    const auto others = sizesOf(arguments.also, "--also");
    if (sizes.empty())
      for (const std::int64_t size : own->sizes())
        if (std::find(others.begin(), others.end(), size) == others.end()) sizes.push_back(size);
    std::sort(sizes.begin(), sizes.end());
    for (const auto& all = own->sizes(); const std::int64_t size : all)
      if (std::count(all.begin(), all.end(), size) > 1)
        throw WrongUsage("--plan: found two plans of the size " + std::to_string(size) +
                         ", expected one for each size");
    plans = std::move(own);
  } else {
    if (const CLI::Option* option = arguments.command->get_option_no_throw("--" + parameter);
        option != nullptr && option->count() > 0)
      throw WrongUsage("found --" + parameter + " beside --any " + parameter +
                       ", expected one of them");
    plans = std::make_unique<GeneratedPlans>(arguments.generated, parameter);
  }
  if (sizes.size() < StageFamily::kLeastMembers)
    throw WrongUsage("found " + counted(sizes.size(), "size", "sizes") +
                     ", expected three or more: two of them determine what a number is of the "
                     "size, the others confirm it (--any dp=4,5,7)");
  named.output("--json", arguments.json);
  named.check();
  catchInterrupts();
  arguments.options.cancel = &interrupted();
  const FamilyRun run = Family(arguments, *plans, parameter, sizes).run();
  if (!arguments.json.empty()) writeFileAtomically(arguments.json, jsonOf(run));
  writeStandardOutput(textOf(run, *plans, arguments));
  return codeOf(run);
}

}  // namespace

void addFamilyCommand(CLI::App& app, std::function<int()>& run) {
  auto arguments = std::make_shared<FamilyArguments>();
  CLI::App* command =
      app.add_subcommand("family",
                         "Prove plans that differ in one size for all sizes at once.\n"
                         "  shardproof family --any dp=4,5,7 llama3 --size 8B --tp 8\n"
                         "  shardproof family --any dp --plan 4=a.plan.json --plan 5=b.plan.json "
                         "--plan 7=c.plan.json");
  command
      ->add_option("--any", arguments->any,
                   "The size, an option of `shardproof generate`, and three or more of its values")
      ->required()
      ->type_name("NAME=A,B,C");
  command
      ->add_option("--plan,-p", arguments->plans,
                   "A plan of this size, in place of generated ones; its model is beside it")
      ->type_name("SIZE=FILE");
  command
      ->add_option("--also", arguments->also,
                   "More sizes, whose plans are compared with what the family has there: they are "
                   "proved where they are the same")
      ->type_name("A,B,...");
  command->add_option("--json", arguments->json, "Write the report as JSON")->type_name("FILE");
  command->add_flag("-q,--quiet", arguments->quiet, "The first line only");
  arguments->command = command;
  VerifyOptions& options = arguments->options;
  addJobs(command, options.jobs);
  options.runSeconds = kFamilySeconds;
  command->add_option("-t,--timeout", options.runSeconds, "Seconds for the whole run")
      ->check(secondsRange())
      ->capture_default_str()
      ->type_name("S");
  addStageTimeout(command, options.stageSeconds);
  addMemoryLimits(command, options.memoryMegabytes);
  addConditionOptions(command, options);
  addGeneratorOptions(command, arguments->generated);
  command->get_option("ARCH")->required(false);
  command->callback([arguments, &run] { run = [arguments] { return runFamily(*arguments); }; });
}

}  // namespace shardproof
