// SPDX-License-Identifier: Apache-2.0
// The time that a diagnosis has is its thread's processor time: on a busy machine it takes longer,
// and says the same as on an idle one.
#pragma once

#include <chrono>
#include <ctime>

namespace shardproof::diagnose {

struct DiagnosisClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<DiagnosisClock>;
  static constexpr bool is_steady = true;
  // Processor time of the calling thread.
  static time_point now() noexcept {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
  }
};

// What a second of processor time may take at most, in seconds: work that only knows the time of
// day, and the time after which a process is killed, are given as much more.
constexpr int kMostSecondsPerSecond = 10;

// The time of day until which work may go on that has `left` of processor time.
inline std::chrono::steady_clock::time_point latest(DiagnosisClock::duration left) {
  return std::chrono::steady_clock::now() + kMostSecondsPerSecond * left;
}

}  // namespace shardproof::diagnose
