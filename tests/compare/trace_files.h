// SPDX-License-Identifier: Apache-2.0
// Small traces for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace shardproof::compare {

// A directory that is removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name = "") const;

 private:
  std::filesystem::path path_;
};

// One tensor of a rank: what its header and its metadata have, and its bytes.
struct Local {
  std::string key;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
  nlohmann::json described;  // name, kind and order are added where they are missing
};

Local floats(const std::string& name, const std::vector<std::int64_t>& shape,
             const std::vector<float>& values, nlohmann::json described = {});

// The text of a safetensors file.
std::string safetensorsText(const nlohmann::json& header, const std::string& data);

void writeFile(const std::string& path, const std::string& text);

using Axes = std::vector<std::pair<std::string, std::int64_t>>;

// Writes DIRECTORY/rankR.0000.safetensors. `more`: of the trace, beside its tensors.
void writeRank(const std::string& directory, int rank, const Axes& mesh,
               const std::vector<Local>& tensors,
               const nlohmann::json& more = nlohmann::json::object());

}  // namespace shardproof::compare
