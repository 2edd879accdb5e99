// SPDX-License-Identifier: Apache-2.0
// The memory that this process and its workers may have together (--memory-limit): resident
// memory, in which a page that several of them share counts once. Pools and the runs between them
// keep to it; one limit for the process, as those of the system are.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace shardproof {

inline constexpr std::size_t kNoMemoryLimit = std::numeric_limits<std::size_t>::max();

// What the machine has free for new processes, less where a control group allows less; nothing
// where the system does not tell.
std::optional<std::size_t> freeMemoryBytes();
// The least room that control groups leave to process `self`, whose groups `memberships` lists as
// /proc/self/cgroup does. `root`: where their file systems are (/sys/fs/cgroup).
std::optional<std::size_t> controlGroupBytes(const std::string& memberships,
                                             const std::string& root);

// The limit, in bytes; kNoMemoryLimit before it is set.
std::size_t totalMemoryLimit();
void limitTotalMemory(std::size_t bytes);
// "the 2048 MB that all processes may have together (--memory-limit)"
std::string totalMemoryText(std::size_t bytes);

// Whether processes have more than a limit. Cheap enough to be asked every few milliseconds: what
// is certainly enough is read first, and exact numbers take at most a small part of the time.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::size_t bytes) : bytes_(bytes) {}
  // Of this process and of `workers`, which it forked.
  bool exceeded(const std::vector<pid_t>& workers);
  // Whether they had no more than half of it, by the same numbers, when they were looked at last.
  bool roomy() const { return last_ <= bytes_ / 2; }

 private:
  using Clock = std::chrono::steady_clock;

  std::size_t bytes_;
  std::size_t last_ = 0;
  Clock::time_point nextLook_{}, nextExactLook_{};
};

// The same for this process alone, from any of its threads. Once exceeded it stays so.
class OwnMemory {
 public:
  bool exceeded() const;

 private:
  mutable std::atomic<bool> exceeded_ = false;
  mutable std::atomic<std::int64_t> nextLook_ = 0;  // nanoseconds of the steady clock
};

}  // namespace shardproof
