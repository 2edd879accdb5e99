// SPDX-License-Identifier: Apache-2.0
// A file with a part of a trace: its tensors by key, and texts that describe it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
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

// What a header may have at most, in bytes, as the reference implementation of safetensors has it.
constexpr std::size_t kMostHeader = 100'000'000;

// A file that is mapped into memory, so that only what is looked at is read from the disk.
class MappedFile {
 public:
  // `expected`: a kind of file, for the message. Throws InputError where it cannot be mapped.
  MappedFile(const std::string& path, const std::string& expected);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::byte* bytes() const { return bytes_; }
  std::size_t size() const { return size_; }

 private:
  const std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

class TensorFile {
 public:
  explicit TensorFile(std::string path) : path_(std::move(path)) {}
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;
  virtual ~TensorFile() = default;

  const std::string& path() const { return path_; }
  const std::map<std::string, Stored>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 protected:
  std::string path_;
  std::map<std::string, Stored> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace shardproof::compare
