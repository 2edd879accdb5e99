// SPDX-License-Identifier: Apache-2.0
// How far a run is, on standard error: a line that is written over on a terminal; elsewhere, in a
// log, a line of its own now and then, so that a long run does not look like one that hangs.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace shardproof {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // Writes if `wanted`.
  explicit Progress(bool wanted);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::size_t done, std::size_t all, const char* doing);
  void clear();

  // "[#####.....]  12/24 checking", at most `width` columns.
  static std::string line(std::size_t done, std::size_t all, const char* doing, std::size_t width);
  // "shardproof: 1 min 30 s: checking, 12 of 24"
  static std::string logLine(double elapsed, std::size_t done, std::size_t all, const char* doing);

 private:
  bool enabled_;
  bool terminal_;
  bool shown_ = false;  // on the terminal
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;  // when something was written
};

}  // namespace shardproof
