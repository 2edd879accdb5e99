// SPDX-License-Identifier: Apache-2.0
// What came out of a sweep, and its JSON: written after each configuration, read again to go on
// (--resume) and to compare (--baseline). docs/sweep.md lists the keys.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardproof/report.h"
#include "sweep/config.h"
#include "sweep/input_files.h"

namespace shardproof::sweep {

using Json = nlohmann::ordered_json;

// kSkipped: cannot be generated, and that was foreseen. kInputError: about the configuration or its
// files. kCrashed: about this program or its machine.
enum class State : std::uint8_t { kNotRun, kDone, kInterrupted, kSkipped, kInputError, kCrashed };

// What it comes to. kPassed: the expected verdict; kFailed: the opposite one. kConditional: proved,
// where "equivalent" is expected, but under conditions that are not accepted.
enum class Outcome : std::uint8_t {
  kNotRun,
  kPassed,
  kFailed,
  kConditional,
  kUndecided,
  kInterrupted,
  kSkipped,
  kInputError,
  kCrashed
};

// The numbers of a report that the table and the comparison show.
struct Figures {
  std::size_t ranks = 0, outputs = 0, outputsProved = 0, stages = 0, classes = 0,
              classesFromCache = 0, peakMemoryBytes = 0;
};

struct Result {
  std::string name;
  Verdict expect = Verdict::kEquivalent;
  Json configuration;  // what was asked for, in one canonical form
  State state = State::kNotRun;
  std::string reason;  // why undecided, skipped, not read, crashed
  double generateSeconds = 0, verifySeconds = 0;
  std::optional<Verdict> verdict;  // with a report only
  Figures figures;
  Json report;  // of format shardproof-report, but with those stages only that are not proved; or
                // null
  std::string text;  // not equivalent or undecided: the beginning of the report for people
  // The plan and the model, where they are given; none: it is not certain which content was
  // verified.
  std::optional<std::vector<InputFile>> inputs;
  bool resumed = false;  // taken over from an earlier run

  double seconds() const { return generateSeconds + verifySeconds; }
};

// Not run yet.
Result resultOf(const Configuration& configuration);
void setReport(Result& result, const Report& report);
Outcome outcomeOf(const Result& result);

struct Sweep {
  std::string config;  // file
  // What results depend on besides their configuration and files: versions, limits. Results of
  // another program are never taken over.
  Json program;
  bool complete = false;  // nothing is left to run
  std::vector<Result> results;
};

struct Count {
  std::size_t equivalent = 0, conditional = 0, notEquivalent = 0,
              undecided = 0;  // verdicts, interrupted ones not among them
  std::size_t skipped = 0, inputErrors = 0, crashed = 0, interrupted = 0, notRun = 0;
  std::size_t passed = 0, resumed = 0, classes = 0, classesFromCache = 0;
  double seconds = 0;
};
Count countOf(const Sweep& sweep);

Json toJson(const Result& result);
Result resultFromJson(const Json& json);  // throws nlohmann's exceptions where it is not one
std::string sweepText(const Sweep& sweep,
                      const Json& baseline);  // `baseline`: the comparison, or null
Sweep readSweep(const std::string& file);     // throws InputError

// The results of `before` that still stand for configurations of `now` are copied there. Reads the
// files that they depend on.
void takeOver(Sweep& now, const Sweep& before);

// Results that other processes have found (`sweep --only`), from all JSON files in `directory`, are
// copied to configurations of `now` that have none. One that was not finished is left out. Throws
// InputError where a file is of another program or other options, has another configuration under
// the same name, verified other content than the files have here, or repeats a result.
void takeParts(Sweep& now, const std::string& directory);

const char* toString(State state);
const char* toString(Outcome outcome);

}  // namespace shardproof::sweep
