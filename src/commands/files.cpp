// SPDX-License-Identifier: Apache-2.0
#include "commands/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "commands/usage.h"
#include "reader/plan_files.h"
#include "report/file.h"
#include "util/printable.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

// What a name stands for: device, inode, and nothing; of a file that is not there yet, those of its
// directory, and its name there.
using Identity = std::tuple<dev_t, ino_t, std::string>;

// Nothing for pipes, terminals and devices: what is written there replaces nothing.
std::optional<Identity> identityOf(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return Identity{status.st_dev, status.st_ino, ""};
}

std::optional<Identity> identityOf(const std::string& path) {
  if (path == "-") return identityOf(STDIN_FILENO);
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    return Identity{status.st_dev, status.st_ino, ""};
  }
  const fs::path file(path);
  const std::string directory = file.has_parent_path() ? file.parent_path().string() : ".";
  if (!file.has_filename() || ::stat(directory.c_str(), &status) != 0) return std::nullopt;
  return Identity{status.st_dev, status.st_ino, file.filename().string()};
}

// "--json r.json", "the model of PLAN p.json (m.json)"
std::string told(const std::string& option, const std::string& path) {
  if (option.starts_with("the ") || option.starts_with("a "))
    return option + " (" + printable(path) + ")";
  return option + " " + printable(path);
}

[[noreturn]] void refuse(const std::string& output, const std::string& other, bool input) {
  throw WrongUsage(output + " and " + other + " are the same file: " +
                   (input ? "the input would be overwritten" : "one would overwrite the other") +
                   "; expected another name");
}

// Whether `path` is a file that a directory's owner may write there.
bool isIn(const std::string& path, const std::string& directory,
          const std::vector<std::string>& names) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(path), error);
  if (error || file.parent_path() != fs::weakly_canonical(fs::absolute(directory), error) || error)
    return false;
  const std::string name = file.filename().string();
  return std::any_of(names.begin(), names.end(), [&](const std::string& n) {
    return n.starts_with(".") ? name.ends_with(n) : name == n;
  });
}

}  // namespace

std::vector<std::string> PlanArguments::plans() const {
  std::vector<std::string> all = named;
  all.insert(all.end(), byPlace.begin(), byPlace.end());
  if (all.empty()) throw WrongUsage("no plan is given, expected a file: PLAN, or --plan FILE");
  return reader::expandPlans(all);
}

std::string PlanArguments::plan() const {
  const std::vector<std::string> all = plans();
  if (all.size() != 1)
    throw WrongUsage("takes one plan, but " + std::to_string(all.size()) + " were given");
  return all.front();
}

void addPlanOptions(CLI::App* command, PlanArguments& arguments, PlanCount count) {
  const bool several = count == PlanCount::kSeveral;
  command
      ->add_option("PLAN", arguments.byPlace,
                   several ? "The plans: what each rank runs (*.plan.json or .json.gz), or "
                             "directories of them; -: standard input"
                           : "The plan: what each rank runs (*.plan.json or .json.gz)")
      ->type_name("");
  command
      ->add_option("-p,--plan", arguments.named,
                   several ? "The same; may be given several times" : "The same")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

CLI::Option* addModelOption(CLI::App* command, PlanArguments& arguments, PlanCount count) {
  return command
      ->add_option("-m,--model", arguments.model,
                   count == PlanCount::kSeveral
                       ? "The logical model, for all plans (default: the file that the plan names, "
                         "beside it)"
                       : "The logical model (default: the file that the plan names, beside it)")
      ->type_name("FILE");
}

void NamedFiles::input(const std::string& option, const std::string& path) {
  if (!path.empty()) inputs_.push_back({option, path});
}

void NamedFiles::output(const std::string& option, const std::string& path) {
  if (!path.empty() && path != "-") outputs_.push_back({option, path});
}

void NamedFiles::optionalOutput(const std::string& option, const std::string& path) {
  if (!path.empty()) outputs_.push_back({option, path, false});
}

void NamedFiles::outputDirectory(const std::string& option, const std::string& path,
                                 std::vector<std::string> names) {
  if (!path.empty()) directories_.push_back({option, path, std::move(names)});
}

void NamedFiles::plan(const std::string& option, const std::string& plan,
                      const std::string& model) {
  input(option, plan);
  if (model.empty())
    if (const auto named = reader::modelNamedBy(plan))
      input("the model of " + told(option, plan), *named);
}

void NamedFiles::plans(const PlanArguments& arguments) {
  input("--model", arguments.model);
  for (const std::string& path : reader::expandPlans(arguments.named))
    plan("--plan", path, arguments.model);
  for (const std::string& path : reader::expandPlans(arguments.byPlace))
    plan("PLAN", path, arguments.model);
}

void NamedFiles::check() const {
  std::map<Identity, std::string> read, written;
  for (const Named& file : inputs_)
    if (auto identity = identityOf(file.path))
      read.emplace(std::move(*identity), told(file.option, file.path));
  // Where the text goes; both may be one file.
  for (const auto& [descriptor, name] :
       {std::pair(STDOUT_FILENO, "standard output"), std::pair(STDERR_FILENO, "standard error")}) {
    const auto identity = identityOf(descriptor);
    if (!identity) continue;
    if (const auto found = read.find(*identity); found != read.end())
      refuse(name, found->second, true);
    written.emplace(*identity, name);
  }
  for (const Named& file : outputs_) {
    const std::string output = told(file.option, file.path);
    const auto identity = identityOf(file.path);
    if (!identity) continue;
    if (const auto found = read.find(*identity); found != read.end())
      refuse(output, found->second, true);
    if (const auto [found, isNew] = written.emplace(*identity, output); !isNew)
      refuse(output, found->second, false);
  }
  for (const Directory& directory : directories_) {
    const auto among = [&](const std::vector<Named>& files, bool input) {
      for (const Named& file : files)
        if (isIn(file.path, directory.path, directory.names))
          refuse("a file of " + told(directory.option, directory.path),
                 told(file.option, file.path), input);
    };
    among(inputs_, true);
    among(outputs_, false);
  }
  for (const Named& file : outputs_)
    if (file.required) checkWritable(file.path);
}

}  // namespace shardproof
