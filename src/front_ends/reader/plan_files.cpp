// SPDX-License-Identifier: Apache-2.0
#include "reader/plan_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "reader/json_stream.h"
#include "reader/reader.h"
#include "shardproof/error.h"

namespace shardproof::reader {

namespace {

// Ends the reading at the name of the model, which is near a plan's beginning.
class ModelName : public StreamClient {
 public:
  struct Found {
    std::string name;
  };

  int open(int state, std::string_view, bool, const Place&) override { return state + 1; }
  void value(int state, std::string_view key, const Value& value) override {
    if (state == kOutside + 1 && key == "model") throw Found{std::string(value.name())};
  }
  void close(int, const Place&) override {}
};

}  // namespace

std::vector<std::string> plansIn(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string file = entry->path().string();
    if ((file.ends_with(".plan.json") || file.ends_with(".plan.json.gz")) && !entry->is_directory())
      found.push_back(file);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> expandPlans(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  for (const std::string& path : given) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found = plansIn(path);
    if (found.empty()) found.push_back(path);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::optional<std::string> modelNamedBy(const std::string& planFile) {
  const bool standardInput = planFile == "-";
  const std::string file = standardInput ? "/dev/stdin" : planFile;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  try {
    ModelName client;
    readJson(file, client);
  } catch (const ModelName::Found& found) {
    try {
      return modelBeside(standardInput ? "" : planFile, found.name);
    } catch (const InputError&) {
    }
  } catch (const InputError&) {  // whoever reads the whole plan tells it
  }
  return std::nullopt;
}

}  // namespace shardproof::reader
