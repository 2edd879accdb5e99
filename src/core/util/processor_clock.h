// SPDX-License-Identifier: Apache-2.0
// Time that limits work whose result is told: processor time, so that a busy machine takes longer
// and says the same as an idle one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <ctime>
#include <optional>

namespace shardproof {

// Processor time of the calling thread.
struct ProcessorClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<ProcessorClock>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept { return at(CLOCK_THREAD_CPUTIME_ID); }
  // Of a clock that ::pthread_getcpuclockid or ::clock_getcpuclockid gave; zero: there is no such
  // thread or process any more.
  static time_point at(clockid_t clock) noexcept {
    timespec t{};
    clock_gettime(clock, &t);
    return time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
  }
};

// What a second of processor time may take at most, in seconds: work that only knows the time of
// day, and the time after which a process is killed, are given as much more.
constexpr int kMostSecondsPerSecond = 10;

// The time of day until which work may go on that has `left` of processor time.
inline std::chrono::steady_clock::time_point latest(ProcessorClock::duration left) {
  return std::chrono::steady_clock::now() + kMostSecondsPerSecond * left;
}

// Seconds of the calling thread's processor time since then.
inline double secondsSince(ProcessorClock::time_point start) {
  return std::chrono::duration<double>(ProcessorClock::now() - start).count();
}

// Processor time that a process has used. Nothing: there is no such process.
inline std::optional<ProcessorClock::time_point> processorTimeOf(pid_t process) {
  clockid_t clock{};
  if (::clock_getcpuclockid(process, &clock) != 0) return std::nullopt;
  return ProcessorClock::at(clock);
}

}  // namespace shardproof
