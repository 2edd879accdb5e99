// SPDX-License-Identifier: Apache-2.0
#include "trace_files.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace shardproof::compare {

namespace fs = std::filesystem;

Folder::Folder() {
  std::string name = (fs::temp_directory_path() / "compare.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
  path_ = name;
}

Folder::~Folder() { fs::remove_all(path_); }

std::string Folder::path(const std::string& name) const { return (path_ / name).string(); }

Local floats(const std::string& name, const std::vector<std::int64_t>& shape,
             const std::vector<float>& values, nlohmann::json described) {
  described["name"] = name;
  return {name + "#" + std::to_string(described.value("call", 0)), "F32", shape,
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)),
          described};
}

std::string safetensorsText(const nlohmann::json& header, const std::string& data) {
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

void writeFile(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
}

void writeRank(const std::string& directory, int rank, const Axes& mesh,
               const std::vector<Local>& tensors, const nlohmann::json& more) {
  nlohmann::json header = nlohmann::json::object(), described = nlohmann::json::object();
  std::string data;
  int order = 0;
  for (const Local& tensor : tensors) {
    header[tensor.key] = {{"dtype", tensor.dtype},
                          {"shape", tensor.shape},
                          {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
    nlohmann::json json = tensor.described;
    if (!json.contains("kind")) json["kind"] = "gradient";
    if (!json.contains("order")) json["order"] = order++;
    described[tensor.key] = json;
  }
  nlohmann::json trace = {{"rank", rank}, {"mesh", mesh}, {"tensors", described}};
  trace.update(more);
  header["__metadata__"] = {{"format", "shardproof-trace 1"}, {"trace", trace.dump()}};
  writeFile(directory + "/rank" + std::to_string(rank) + ".0000.safetensors",
            safetensorsText(header, data));
}

}  // namespace shardproof::compare
