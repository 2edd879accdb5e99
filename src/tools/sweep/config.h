// SPDX-License-Identifier: Apache-2.0
// A sweep: many configurations, each generated or read, verified, and set beside what was expected
// and what was found before.
//
//   config        what is to be run, from CONFIG.json: grids expanded, plans found
//   execute       one configuration, from options or files to its result
//   child         ... in a process of its own
//   result        what came out, to JSON and back
//   input_files   whether a file is still the one that was verified
//   table         the rows for people
//   baseline      what differs from an earlier sweep
//   junit         the report for CI systems
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generate/options.h"
#include "mutate/mutate.h"
#include "shardproof/report.h"

namespace shardproof::sweep {

// Options of the generator by their names on the command line, without the dashes; a flag that is
// set has the value "true".
using Settings = std::vector<std::pair<std::string, std::string>>;

// The options that the generator has. Its command line defines them, so that a name or a check is
// stated once.
class GeneratorOptions {
 public:
  virtual ~GeneratorOptions() = default;
  virtual std::vector<std::string> names() const = 0;
  // The name of an option that has older spellings, by any of them; else `name` itself.
  virtual std::string nameOf(const std::string& name) const { return name; }
  virtual bool isFlag(const std::string& name) const = 0;
  // Throws generate::OptionError where one option does not take its value. Whether they fit
  // together is for generate::complete to say.
  virtual generate::Options parse(const Settings& settings) const = 0;
};

struct Bug {
  std::string name;
  mutate::Choice choice;
};

struct Configuration {
  std::string name;
  Verdict expect = Verdict::kEquivalent;
  std::optional<Bug> bug;
  // Either options ...
  Settings settings;
  std::optional<generate::Options> options;
  // ... or files. An empty model is the one that the plan names.
  std::string plan, model;

  std::string invalid;       // why it cannot be run
  bool skipInvalid = false;  // options that do not fit together, or a bug that does not apply:
                             // foreseen, and no error
};

// The configurations in the order of the file, plans first; their names are distinct. Throws
// InputError. What is wrong with single configurations only (options that do not fit together, a
// plan that is not there) is left in `invalid`.
std::vector<Configuration> readConfig(const std::string& file, const GeneratorOptions& known);

}  // namespace shardproof::sweep
