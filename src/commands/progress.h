// SPDX-License-Identifier: Apache-2.0
// The progress line, on a terminal only.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace shardproof {

class Progress {
 public:
  // Writes to standard error if that is a terminal and `wanted`.
  explicit Progress(bool wanted);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::size_t done, std::size_t all, const char* doing);
  void clear();

  // "[#####.....]  12/24 checking", at most `width` columns.
  static std::string line(std::size_t done, std::size_t all, const char* doing, std::size_t width);

 private:
  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace shardproof
