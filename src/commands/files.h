// SPDX-License-Identifier: Apache-2.0
// The files of one command line: what it reads and what it writes, each by the option that names
// it. No output may be an input, nor another output: a slip in the names would destroy a plan that
// may have taken hours to export, and the exit code would still be 0.
//
// Two names are the same file when the system says so (device and inode, so symbolic and hard links
// count), or, where there is no file yet, when they are the same name in the same directory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "shardproof/graph.h"

namespace shardproof {

// The options that name plans and a model, the same for every command.
struct PlanArguments {
  std::vector<std::string> byPlace, named;  // PLAN, --plan
  std::string model;

  // All of them, directories replaced by what they hold. Throws WrongUsage where there is none.
  std::vector<std::string> plans() const;
  // The only one. Throws WrongUsage where there are none or several.
  std::string plan() const;
  bool given() const { return !byPlace.empty() || !named.empty(); }
  std::optional<std::string> modelFile() const {
    return model.empty() ? std::nullopt : std::optional(model);
  }
};

enum class PlanCount { kOne, kSeveral };

// PLAN and -p, --plan.
void addPlanOptions(CLI::App* command, PlanArguments& arguments, PlanCount count);
// -m, --model.
CLI::Option* addModelOption(CLI::App* command, PlanArguments& arguments, PlanCount count);

class NamedFiles {
 public:
  // Names that are empty are not given. "-" is standard input or output.
  void input(const std::string& option, const std::string& path);
  void output(const std::string& option, const std::string& path);
  // A file whose loss does not keep the results from being written (a cache), so that it need not
  // be writable.
  void optionalOutput(const std::string& option, const std::string& path);
  // A directory that gets files of these names, or, of a name that begins with a dot, files that
  // end so.
  void outputDirectory(const std::string& option, const std::string& path,
                       std::vector<std::string> names);
  // Plans and their models, also the models that only the plans name.
  void plans(const PlanArguments& arguments);
  // A plan, and the model that it names where `model` is empty.
  void plan(const std::string& option, const std::string& plan, const std::string& model);
  // The model of a plan that could be read only once (a pipe).
  void modelOf(const Problem& problem) { input("the plan's model", problem.model.file); }

  // Throws WrongUsage where an output is another file of these, and std::runtime_error where one
  // cannot be written. To be called before the work whose results the outputs shall hold.
  void check() const;

 private:
  struct Named {
    std::string option, path;
    bool required = true;
  };
  struct Directory {
    std::string option, path;
    std::vector<std::string> names;
  };
  std::vector<Named> inputs_, outputs_;
  std::vector<Directory> directories_;
};

}  // namespace shardproof
