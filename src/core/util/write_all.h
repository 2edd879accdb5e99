// SPDX-License-Identifier: Apache-2.0
// Writing to a file descriptor until everything is written.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <type_traits>

namespace shardproof {

// What a plain value is in memory.
template <class T>
std::string_view bytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// False, with errno, where the rest cannot be written; a signal that breaks a write off does not
// matter.
inline bool writeAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace shardproof
