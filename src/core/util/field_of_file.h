// SPDX-License-Identifier: Apache-2.0
// Files of the system that have a field and a number on each line, as many in /proc do.
#pragma once

#include <cstddef>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace shardproof {

// The number after `field`, in the file's unit; nothing where there is no such line.
inline std::optional<std::size_t> fieldOfFile(const std::string& path, std::string_view field) {
  std::ifstream file(path);
  for (std::string name; file >> name; std::getline(file, name)) {
    std::size_t number = 0;
    if (name == field && file >> number) return number;
  }
  return std::nullopt;
}

}  // namespace shardproof
