// SPDX-License-Identifier: Apache-2.0
#include "sweep/result.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>

#include "reader/text_source.h"
#include "report/json.h"
#include "shardproof/error.h"

namespace shardproof::sweep {
namespace {

constexpr const char* kFormat = "shardproof-sweep-report";
constexpr std::array kStates = {State::kNotRun,  State::kDone,       State::kInterrupted,
                                State::kSkipped, State::kInputError, State::kCrashed};
constexpr std::array kVerdicts = {Verdict::kEquivalent, Verdict::kNotEquivalent,
                                  Verdict::kUndecided, Verdict::kConditional};

// The value of `all` that is called `name`.
template <class All>
auto named(const All& all, const std::string& name) {
  for (const auto value : all)
    if (toString(value) == name) return value;
  throw std::invalid_argument("unknown name '" + name + "'");
}

void readReport(Result& result) {
  if (result.report.is_null()) return;
  const Json& statistics = result.report.at("statistics");
  const auto number = [](const Json& in, const char* key) { return in.at(key).get<std::size_t>(); };
  result.verdict = named(kVerdicts, result.report.at("verdict").get<std::string>());
  result.figures = {.ranks = number(statistics, "ranks"),
                    .outputs = number(result.report, "outputs"),
                    .outputsProved = number(result.report, "outputs_proved"),
                    .stages = number(statistics, "stages"),
                    .classes = number(statistics, "classes"),
                    .classesFromCache = number(statistics, "classes_from_cache"),
                    .peakMemoryBytes = number(statistics, "peak_memory_bytes")};
}

Json toJson(const InputFile& file) {
  return {{"path", file.path},
          {"bytes", file.bytes},
          {"modified_ns", file.modified},
          {"crc32", file.crc}};
}

InputFile inputFromJson(const Json& json) {
  return {.path = json.at("path").get<std::string>(),
          .bytes = json.at("bytes").get<std::uint64_t>(),
          .modified = json.at("modified_ns").get<std::int64_t>(),
          .crc = json.at("crc32").get<std::uint32_t>()};
}

Json toJson(const Count& count) {
  return {{"equivalent", count.equivalent},
          {"conditional", count.conditional},
          {"not_equivalent", count.notEquivalent},
          {"undecided", count.undecided},
          {"skipped", count.skipped},
          {"input_errors", count.inputErrors},
          {"crashed", count.crashed},
          {"interrupted", count.interrupted},
          {"not_run", count.notRun},
          {"as_expected", count.passed},
          {"resumed", count.resumed},
          {"classes", count.classes},
          {"classes_from_cache", count.classesFromCache},
          {"seconds", count.seconds}};
}

bool stillStands(const Result& result) {
  if (result.state != State::kDone || !result.inputs) return false;
  return std::all_of(result.inputs->begin(), result.inputs->end(),
                     [](const InputFile& file) { return describeFile(file.path) == file; });
}

void takePart(Sweep& now, const std::string& file, std::map<std::string, std::string>& fileOf) {
  const Sweep part = readSweep(file);
  if (part.program != now.program)
    throw InputError(file, "/program",
                     "found " + part.program.dump() + ", expected " + now.program.dump() +
                         ": its results are of another program or of other options; run the same "
                         "program with the same options everywhere");
  std::map<std::string, Result*> byName;
  for (Result& result : now.results) byName.emplace(result.name, &result);
  for (const Result& found : part.results) {
    const std::string where = "'" + found.name + "': ";
    const auto it = byName.find(found.name);
    if (it == byName.end() || it->second->configuration != found.configuration)
      throw InputError(file, "/configurations",
                       where + "expected a configuration of " + now.config +
                           ": the configuration file or its plans are others where it ran");
    if (found.state == State::kNotRun || found.state == State::kInterrupted) continue;
    if (const auto first = fileOf.find(found.name); first != fileOf.end())
      throw InputError(file, "/configurations",
                       where + "a result of it is in " + first->second + ", too");
    Result& result = *it->second;
    if (result.state != State::kNotRun) continue;  // taken over, or known not to be runnable
    fileOf.emplace(found.name, file);
    for (const InputFile& read : found.inputs.value_or(std::vector<InputFile>())) {
      const auto here = describeFile(read.path);
      if (!here || !here->sameContent(read))
        throw InputError(file, "/configurations",
                         where + read.path + " had other content where it was verified: expected " +
                             "one file system for all, on which nothing changes meanwhile");
    }
    const Verdict expect = result.expect;
    result = found;
    result.expect = expect;
  }
}

// nlohmann's own words without its error numbers.
std::string plain(const char* what) {
  const std::string text = what;
  const std::size_t cut = text.find("] ");
  return cut == std::string::npos ? text : text.substr(cut + 2);
}

}  // namespace

Result resultOf(const Configuration& configuration) {
  Result result;
  result.name = configuration.name;
  result.expect = configuration.expect;
  result.configuration = Json::object();
  if (configuration.options) {
    Json& options = result.configuration["generate"] = Json::object();
    for (const auto& [option, value] : configuration.settings) options[option] = value;
    result.inputs.emplace();  // there are none
  } else {
    result.configuration["plan"] = configuration.plan;
    result.configuration["model"] = configuration.model;
  }
  if (configuration.bug) {
    Json& bug = result.configuration["mutate"] = {{"bug", configuration.bug->name}};
    if (!configuration.bug->choice.at.empty()) bug["at"] = configuration.bug->choice.at;
    if (configuration.bug->choice.seed) bug["seed"] = *configuration.bug->choice.seed;
  }
  return result;
}

void setReport(Result& result, const Report& report) {
  result.report = shardproof::toJson(report);
  Json open = Json::array();
  for (Json& stage : result.report.at("stages"))
    if (stage.at("verdict") != shardproof::toString(StageVerdict::kProved))
      open.push_back(std::move(stage));
  result.report.erase("stages");
  result.report["stages_not_proved"] = std::move(open);
  result.state = report.interrupted ? State::kInterrupted : State::kDone;
  result.reason = report.reason;
  result.verifySeconds = report.statistics.secondsTotal;
  readReport(result);
}

Outcome outcomeOf(const Result& result) {
  switch (result.state) {
    case State::kNotRun:
      return Outcome::kNotRun;
    case State::kSkipped:
      return Outcome::kSkipped;
    case State::kInputError:
      return Outcome::kInputError;
    case State::kCrashed:
      return Outcome::kCrashed;
    case State::kInterrupted:  // a defect that was found before the interruption stays found
    case State::kDone:
      break;
  }
  const bool finished = result.state == State::kDone;
  switch (result.verdict.value_or(Verdict::kUndecided)) {
    case Verdict::kUndecided:
      return finished ? Outcome::kUndecided : Outcome::kInterrupted;
    case Verdict::kEquivalent:
      return result.expect == Verdict::kEquivalent ? Outcome::kPassed : Outcome::kFailed;
    case Verdict::kNotEquivalent:
      return result.expect == Verdict::kNotEquivalent ? Outcome::kPassed : Outcome::kFailed;
    case Verdict::kConditional:
      return result.expect == Verdict::kNotEquivalent ? Outcome::kFailed : Outcome::kConditional;
  }
  return Outcome::kUndecided;
}

Count countOf(const Sweep& sweep) {
  Count count;
  for (const Result& result : sweep.results) {
    switch (outcomeOf(result)) {
      case Outcome::kNotRun:
        ++count.notRun;
        break;
      case Outcome::kInterrupted:
        ++count.interrupted;
        break;
      case Outcome::kSkipped:
        ++count.skipped;
        break;
      case Outcome::kInputError:
        ++count.inputErrors;
        break;
      case Outcome::kCrashed:
        ++count.crashed;
        break;
      case Outcome::kUndecided:
        ++count.undecided;
        break;
      case Outcome::kConditional:
        ++count.conditional;
        break;
      case Outcome::kPassed:
        ++count.passed;
        [[fallthrough]];
      case Outcome::kFailed:
        ++(*result.verdict == Verdict::kEquivalent    ? count.equivalent
           : *result.verdict == Verdict::kConditional ? count.conditional
                                                      : count.notEquivalent);
        break;
    }
    count.resumed += result.resumed ? 1 : 0;
    count.classes += result.figures.classes;
    count.classesFromCache += result.figures.classesFromCache;
    count.seconds += result.seconds();
  }
  return count;
}

Json toJson(const Result& result) {
  Json inputs = nullptr;
  if (result.inputs) {
    inputs = Json::array();
    for (const InputFile& file : *result.inputs) inputs.push_back(toJson(file));
  }
  return {{"name", result.name},
          {"state", toString(result.state)},
          {"outcome", toString(outcomeOf(result))},
          {"expect", shardproof::toString(result.expect)},
          {"verdict", result.verdict ? Json(shardproof::toString(*result.verdict)) : Json(nullptr)},
          {"reason", result.reason},
          {"resumed", result.resumed},
          {"generate_seconds", result.generateSeconds},
          {"verify_seconds", result.verifySeconds},
          {"configuration", result.configuration},
          {"inputs", std::move(inputs)},
          {"report", result.report},
          {"text", result.text}};
}

Result resultFromJson(const Json& json) {
  Result result;
  result.name = json.at("name").get<std::string>();
  result.state = named(kStates, json.at("state").get<std::string>());
  result.expect = named(kVerdicts, json.at("expect").get<std::string>());
  result.reason = json.at("reason").get<std::string>();
  result.resumed = json.at("resumed").get<bool>();
  result.generateSeconds = json.at("generate_seconds").get<double>();
  result.verifySeconds = json.at("verify_seconds").get<double>();
  result.configuration = json.at("configuration");
  if (const Json& inputs = json.at("inputs"); !inputs.is_null()) {
    result.inputs.emplace();
    for (const Json& file : inputs) result.inputs->push_back(inputFromJson(file));
  }
  result.report = json.at("report");
  result.text = json.at("text").get<std::string>();
  readReport(result);
  if ((result.state == State::kDone || result.state == State::kInterrupted) && !result.verdict)
    throw std::invalid_argument("'" + result.name + "' is done, but has no report");
  return result;
}

std::string sweepText(const Sweep& sweep, const Json& baseline) {
  Json results = Json::array();
  for (const Result& result : sweep.results) results.push_back(toJson(result));
  Json document = {{"format", kFormat},
                   {"version", 1},
                   {"config", sweep.config},
                   {"program", sweep.program},
                   {"complete", sweep.complete},
                   {"summary", toJson(countOf(sweep))},
                   {"configurations", std::move(results)}};
  if (!baseline.is_null()) document["baseline"] = baseline;
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Sweep readSweep(const std::string& file) {
  reader::TextSource source(file);
  Sweep sweep;
  try {
    const Json json = Json::parse(reader::TextIterator(&source), reader::TextIterator());
    if (!json.is_object() || json.value("format", Json()) != kFormat)
      throw InputError(file, "/format",
                       std::string("expected \"") + kFormat + "\": the JSON file of a sweep");
    if (json.at("version") != 1)
      throw InputError(file, "/version", "found " + json.at("version").dump() + ", expected 1");
    sweep.config = json.at("config").get<std::string>();
    sweep.program = json.at("program");
    sweep.complete = json.at("complete").get<bool>();
    for (const Json& result : json.at("configurations"))
      sweep.results.push_back(resultFromJson(result));
  } catch (const Json::exception& error) {
    throw InputError(file, "", "not the JSON file of a sweep: " + plain(error.what()));
  } catch (const std::invalid_argument& error) {
    throw InputError(file, "", std::string("not the JSON file of a sweep: ") + error.what());
  }
  return sweep;
}

void takeOver(Sweep& now, const Sweep& before) {
  if (now.program != before.program) return;
  std::map<std::string, const Result*> byName;
  for (const Result& result : before.results) byName.emplace(result.name, &result);
  for (Result& result : now.results) {
    const auto it = byName.find(result.name);
    if (it == byName.end() || result.state != State::kNotRun) continue;
    const Result& old = *it->second;
    if (old.configuration != result.configuration || !stillStands(old)) continue;
    const Verdict expect =
        result.expect;  // what is expected may have changed: the verdict stands all the same
    result = old;
    result.expect = expect;
    result.resumed = true;
  }
}

void takeParts(Sweep& now, const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  if (error) throw InputError(directory, "", "cannot be read: " + error.message());
  std::sort(files.begin(), files.end());
  std::map<std::string, std::string> fileOf;
  for (const std::string& file : files) takePart(now, file, fileOf);
}

const char* toString(State state) {
  switch (state) {
    case State::kNotRun:
      return "not-run";
    case State::kDone:
      return "done";
    case State::kInterrupted:
      return "interrupted";
    case State::kSkipped:
      return "skipped";
    case State::kInputError:
      return "input-error";
    case State::kCrashed:
      return "crashed";
  }
  return "not-run";
}

const char* toString(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNotRun:
      return "not-run";
    case Outcome::kPassed:
      return "as-expected";
    case Outcome::kFailed:
      return "not-as-expected";
    case Outcome::kUndecided:
      return "undecided";
    case Outcome::kConditional:
      return "conditional";
    case Outcome::kInterrupted:
      return "interrupted";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kInputError:
      return "input-error";
    case Outcome::kCrashed:
      return "crashed";
  }
  return "not-run";
}

}  // namespace shardproof::sweep
