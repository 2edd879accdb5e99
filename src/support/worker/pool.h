// SPDX-License-Identifier: Apache-2.0
// A pool of forked worker processes (docs/design.md, "Workers"). A task is an index; the worker
// computes a string for it from memory it inherited by fork, and sends it back through its pipe. A
// worker that crashes, is killed, or overruns its limits costs its task one retry in a fresh
// process, then the task is lost with a reason; never the run.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shardproof {

// For PoolOptions::cancel: whether the flag is set; null: never.
std::function<bool()> whenSet(const std::atomic<bool>* flag);

struct PoolOptions {
  int jobs = 1;
  // No process is forked: tasks run one after the other in the caller's. An exception costs the
  // task what a lost worker would, without the retry; but limits of time and memory are not kept,
  // and a crash is the caller's own.
  bool inProcess = false;
  double timeoutSeconds = 60;  // per attempt of one task: wall clock, or, ...
  // ... of the worker's processor time (and kMostSecondsPerSecond times as much by the wall clock).
  bool processorTime = false;
  std::size_t memoryMegabytes = 4096;  // address space a worker may add to what it inherited
  // What this process and the workers may have together, in bytes; nothing: totalMemoryLimit().
  // Where they have more, the task that was begun last is stopped, and begun again once there is
  // room; a task that has more with no other beside it is out of memory.
  std::optional<std::size_t> totalBytes;
  std::function<bool()> cancel;  // asked between tasks and while waiting; empty: never
  bool cancelled() const { return cancel && cancel(); }
};

enum class TaskOutcome : std::uint8_t { kDone, kTimedOut, kOutOfMemory, kCrashed, kCancelled };

struct TaskResult {
  TaskOutcome outcome = TaskOutcome::kCancelled;
  std::string payload;  // kDone: what `work` returned
  std::string reason;   // otherwise: one sentence ("killed by signal 9 (SIGKILL), twice")
  int attempts = 0;
};

struct PoolStatistics {
  std::size_t workersLost = 0;
  std::size_t peakWorkerBytes = 0;  // largest resident set of any worker
  std::size_t stopped = 0;          // attempts that were stopped for PoolOptions::totalBytes
};

// Runs work(task) for each task of `order` (listed largest first) in forked processes, and calls
// done(task, result) in this process as results arrive. Workers inherit all memory, but no threads
// of the parent; OpenMP has one thread there. A std::bad_alloc in `work` is kOutOfMemory. If fork
// fails for good the remaining tasks get kCrashed with the reason. Never throws for a failing task.
PoolStatistics runPool(const std::vector<std::size_t>& order,
                       const std::function<std::string(std::size_t)>& work,
                       const std::function<void(std::size_t, const TaskResult&)>& done,
                       const PoolOptions& options);

// One task in a process of its own.
TaskResult runAlone(const std::function<std::string()>& work, const PoolOptions& options);

}  // namespace shardproof
