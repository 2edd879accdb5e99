// SPDX-License-Identifier: Apache-2.0
// How long a run may take, and whether its caller wants it to end. Copies of a budget end at the
// same time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

namespace shardproof {

class Budget {
 public:
  using Clock = std::chrono::steady_clock;

  Budget() = default;  // without an end
  // `seconds` from now on. `cancel` may be null.
  explicit Budget(double seconds, const std::atomic<bool>* cancel = nullptr)
      : end_(after(seconds)), cancel_(cancel) {}

  // The same, but no longer than `seconds` from now on.
  Budget within(double seconds) const {
    Budget part = *this;
    part.end_ = std::min(end_, after(seconds));
    return part;
  }

  bool cancelled() const { return cancel_ != nullptr && cancel_->load(); }
  bool timedOut() const { return Clock::now() >= end_; }
  bool over() const { return cancelled() || timedOut(); }
  // Seconds; infinite where there is no end.
  double left() const {
    if (end_ == Clock::time_point::max()) return std::numeric_limits<double>::infinity();
    return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count());
  }
  const std::atomic<bool>* cancel() const { return cancel_; }

 private:
  static Clock::time_point after(double seconds) {
    constexpr double kForever = 1e9;
    if (!(seconds < kForever)) return Clock::time_point::max();
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  Clock::time_point end_ = Clock::time_point::max();
  const std::atomic<bool>* cancel_ = nullptr;
};

}  // namespace shardproof
