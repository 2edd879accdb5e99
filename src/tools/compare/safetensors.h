// SPDX-License-Identifier: Apache-2.0
// One file of tensors, mapped into memory (https://huggingface.co/docs/safetensors, "Format"):
// 8 bytes length of the header, the header as JSON, the elements. Nothing is copied; only what is
// looked at is read from the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compare/elements.h"

namespace shardproof::compare {

struct Stored {
  Dtype dtype{};
  std::vector<std::int64_t> shape;  // each at least 0
  const std::byte* data = nullptr;  // of the mapping; not aligned
  std::size_t count = 0;            // elements
};

// The number of elements, or nothing where it is beyond `most`. Sizes are not negative.
std::optional<std::size_t> elementsOf(const std::vector<std::int64_t>& shape, std::size_t most);
constexpr std::size_t kMostElements = std::size_t{1} << 40;

class SafetensorsFile {
 public:
  // Maps the file and checks its header. Throws InputError, with the place in the header.
  explicit SafetensorsFile(const std::string& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::map<std::string, Stored>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void readHeader();

  std::string path_;
  const std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::map<std::string, Stored> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace shardproof::compare
