// SPDX-License-Identifier: Apache-2.0
// Which content a file had when it was verified, so that a later sweep can tell whether the result
// still stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardproof::sweep {

struct InputFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds since 1970
  std::uint32_t crc = 0;      // CRC-32 of the content
  friend bool operator==(const InputFile&, const InputFile&) = default;
  // The same content, wherever it lies and whenever it was written.
  bool sameContent(const InputFile& other) const {
    return bytes == other.bytes && crc == other.crc;
  }
};

// None if the file cannot be read, or changes meanwhile.
std::optional<InputFile> describeFile(const std::string& path);

}  // namespace shardproof::sweep
