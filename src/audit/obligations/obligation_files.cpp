// SPDX-License-Identifier: Apache-2.0
#include "obligations/obligation_files.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <system_error>

#include <nlohmann/json.hpp>

#include "describe/describe.h"
#include "obligations/written_obligation.h"
#include "report/file.h"

namespace shardproof {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "shardproof-obligations";
constexpr std::size_t kMostBytes = 64'000'000;  // of one script
constexpr std::size_t kMostStagesNamed = 20;    // in a script's comments; the index has all

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what);
}

std::string fileName(std::size_t number) {
  std::string digits = std::to_string(number);
  return "class_" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".smt2";
}
bool isOurs(const std::string& name) {
  return name.starts_with("class_") && name.ends_with(".smt2") &&
         name.find('/') == std::string::npos;
}

std::string indexFile(const std::string& directory) {
  return (fs::path(directory) / "index.json").string();
}

void writeIndex(const std::string& directory, const Json& index) {
  writeFileAtomically(indexFile(directory),
                      index.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

// The files that an earlier run's index lists; nothing where there is no such index.
std::vector<std::string> filesOfIndex(const std::string& directory, bool& found) {
  std::vector<std::string> files;
  std::ifstream file(indexFile(directory));
  const Json index = Json::parse(file, nullptr, false);
  found = index.is_object() && index.contains("format") && index["format"] == kFormat &&
          index.contains("obligations") && index["obligations"].is_array();
  if (!found) return files;
  for (const Json& o : index["obligations"]) {
    if (o.is_object() && o.contains("file") && o["file"].is_string() && isOurs(o["file"]))
      files.push_back(o["file"]);
  }
  return files;
}

class ObligationFiles {
 public:
  ObligationFiles(const std::string& directory, const PlanIndex& planIndex,
                  const std::vector<ObligationClass>& classes, const PoolOptions& pool)
      : directory_(directory),
        planIndex_(planIndex),
        problem_(planIndex.problem()),
        classes_(classes),
        pool_(pool) {}

  void write(const std::vector<std::pair<std::int32_t, std::string>>& without,
             const std::function<void(std::size_t, std::size_t, const char*)>& progress) {
    Json index{{"format", kFormat},
               {"version", 1},
               {"complete", false},
               {"model", problem_.model.file},
               {"plan", problem_.plan.file}};
    Json& list = index["obligations"] = Json::array();
    for (std::size_t c = 0; c < classes_.size(); ++c) list.push_back(describe(c));
    Json& uncut = index["stages_without_obligation"] = Json::array();
    for (const auto& [entry, reason] : without) {
      Json stage = describeEntry(EntryId(entry));
      stage["reason"] = reason;
      uncut.push_back(std::move(stage));
    }
    writeIndex(directory_,
               index);  // so that the next run knows what to remove, should this one not end

    std::vector<std::size_t> order(classes_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto size = [&](std::size_t c) {
      return classes_[c].stage->nodes.size() + classes_[c].stage->tensors.size();
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return size(a) > size(b); });
    std::size_t done = 0;
    std::string failure;
    runPool(
        order,
        [&](std::size_t c) {
          return serialize(
              writeObligation(*classes_[c].stage, notes(c), pool_.memoryMegabytes, kMostBytes));
        },
        [&](std::size_t c, const TaskResult& result) {
          const auto keep = [&] {
            WrittenObligation written;
            if (result.outcome == TaskOutcome::kDone)
              written = deserializeObligation(result.payload);
            else
              written.missing =
                  result.reason.empty() ? "not written before the run ended" : result.reason;
            enter(list[c], c, written);
          };
          try {
            if (failure.empty()) keep();
          } catch (
              const std::runtime_error& error) {  // a full disk: not an exception through the pool
            failure = error.what();
          }
          if (progress) progress(++done, order.size(), "writing obligations");
        },
        pool_);
    if (!failure.empty()) throw std::runtime_error(failure);
    index["complete"] = !pool_.cancelled();
    writeIndex(directory_, index);
  }

 private:
  Json describeEntry(EntryId entry) const {
    const LineageEntry& e = problem_.plan.lineage[entry];
    return {{"entry", entry},
            {"tensor", problem_.names.text(problem_.model.graph.tensors[e.tensor].name)},
            {"role", toString(e.role)}};
  }

  Json describe(std::size_t c) const {
    const ObligationClass& cls = classes_[c];
    Json stages = Json::array();
    for (const EntryId e : cls.entries) stages.push_back(describeEntry(e));
    return {{"class", c},
            {"file", fileName(c)},
            {"missing", nullptr},
            {"bytes", 0},
            {"verdict", toString(cls.outcome->verdict())},
            {"method", toString(cls.outcome->method())},
            {"reason", cls.outcome->reason},
            {"final", cls.final},
            {"stages", std::move(stages)}};
  }

  // In the end a class either has its file or says why there is none.
  void enter(Json& entry, std::size_t c, const WrittenObligation& written) const {
    if (!written.missing.empty()) {
      entry["file"] = nullptr;
      entry["missing"] = written.missing;
      return;
    }
    writeFileAtomically((fs::path(directory_) / fileName(c)).string(), written.text);
    entry["bytes"] = written.text.size();
    entry["logic"] = written.logic;
    entry["status"] = written.status;
    entry["conclusive"] = written.conclusive;
    entry["pairs"] = written.pairs;
    entry["identical"] = written.identical;
    entry["functions_with_more_laws"] = written.functions;
  }

  ObligationNotes notes(std::size_t c) const {
    const ObligationClass& cls = classes_[c];
    const StageOutcome& outcome = *cls.outcome;
    ObligationNotes notes;
    notes.head.push_back("obligation of class " + std::to_string(c) + ": model " +
                         problem_.model.file + ", plan " + problem_.plan.file);
    notes.head.push_back(std::string("shardproof: ") + toString(outcome.verdict()) +
                         (outcome.method() == Method::kNone
                              ? ""
                              : std::string(", by ") + toString(outcome.method())) +
                         (outcome.reason.empty() ? "" : ": " + outcome.reason));
    for (std::size_t i = 0; i < cls.entries.size() && i < kMostStagesNamed; ++i) {
      const Json e = describeEntry(EntryId(cls.entries[i]));
      notes.head.push_back("stage: /lineage/" + std::to_string(cls.entries[i]) + " " +
                           e["role"].get<std::string>() + " '" + e["tensor"].get<std::string>() +
                           "'");
    }
    if (cls.entries.size() > kMostStagesNamed)
      notes.head.push_back("... and " + std::to_string(cls.entries.size() - kMostStagesNamed) +
                           " stages more: index.json");
    for (std::size_t i = 0; i < cls.stage->claims.size(); ++i) {
      notes.head.push_back("claim: " + claimText(planIndex_, *cls.stage, cls.stage->claims[i]));
    }
    notes.proved = outcome.verdict() == StageVerdict::kProved;
    const auto finite = [](const Counterexample& e) {
      return std::isfinite(e.logical) && std::isfinite(e.parallel);
    };
    notes.refuted = outcome.verdict() == StageVerdict::kRefuted && !outcome.shortenedMask &&
                    outcome.counterexample && finite(*outcome.counterexample);
    return notes;
  }

  const std::string& directory_;
  const PlanIndex& planIndex_;
  const Problem& problem_;
  const std::vector<ObligationClass>& classes_;
  const PoolOptions& pool_;
};

}  // namespace

void prepareObligationDirectory(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    if (fs::exists(directory, error)) fail(directory, "is no directory");
    if (!fs::create_directories(directory, error) && error)
      fail(directory, "cannot be made: " + error.message());
  }
  bool found = false;
  const std::vector<std::string> old = filesOfIndex(directory, found);
  const fs::directory_iterator first(directory, error);
  if (error) fail(directory, "cannot be listed: " + error.message());
  if (!found && first != fs::directory_iterator())
    fail(directory, "holds files that no earlier run left; expected an empty or a new directory");
  for (const std::string& name : old) {
    const std::string file = (fs::path(directory) / name).string();
    if (std::remove(file.c_str()) != 0 && errno != ENOENT)
      fail(file, std::string("cannot be removed: ") + std::strerror(errno));
  }
  writeIndex(
      directory,
      {{"format", kFormat}, {"version", 1}, {"complete", false}, {"obligations", Json::array()}});
}

void writeObligations(const std::string& directory, const PlanIndex& planIndex,
                      const std::vector<ObligationClass>& classes,
                      const std::vector<std::pair<std::int32_t, std::string>>& without,
                      const PoolOptions& pool,
                      const std::function<void(std::size_t, std::size_t, const char*)>& progress) {
  ObligationFiles(directory, planIndex, classes, pool).write(without, progress);
}

}  // namespace shardproof
