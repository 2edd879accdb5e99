#include "reader/plan_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace shardproof::reader {

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

}  // namespace shardproof::reader
