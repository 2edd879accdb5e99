// SPDX-License-Identifier: Apache-2.0
// Seconds by a clock that is never set back, and of processor time.
#pragma once

#include <chrono>

#include "util/processor_clock.h"

namespace shardproof {

inline double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Adds the seconds of the thread's processor time until the end of its scope.
class Stopwatch {
 public:
  explicit Stopwatch(double& into) : into_(into), start_(ProcessorClock::now()) {}
  ~Stopwatch() { into_ += secondsSince(start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& into_;
  ProcessorClock::time_point start_;
};

}  // namespace shardproof
