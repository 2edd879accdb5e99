// SPDX-License-Identifier: Apache-2.0
#include "worker/pool.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace shardproof {
namespace {

// Counters that parent and workers share.
class Shared {
 public:
  Shared()
      : memory_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Shared() { ::munmap(memory_, 4096); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  std::atomic<int>& operator[](std::size_t i) const {
    return static_cast<std::atomic<int>*>(memory_)[i];
  }

 private:
  void* memory_;
};

struct Run {
  std::map<std::size_t, TaskResult> results;
  PoolStatistics statistics;
};

std::vector<std::size_t> firstTasks(std::size_t n) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Run run(std::size_t tasks, const std::function<std::string(std::size_t)>& work,
        PoolOptions options = {}) {
  Run r;
  r.statistics = runPool(
      firstTasks(tasks), work,
      [&](std::size_t task, const TaskResult& result) {
        EXPECT_TRUE(r.results.emplace(task, result).second)
            << "task " << task << " was reported twice";
      },
      options);
  EXPECT_EQ(r.results.size(), tasks);
  return r;
}

PoolOptions withJobs(int jobs) {
  PoolOptions options;
  options.jobs = jobs;
  return options;
}

std::size_t openDescriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir("/proc/self/fd"), ::closedir);
  std::size_t n = 0;
  while (::readdir(dir.get())) ++n;
  return n;
}

// After each test: no child is left, not even as a zombie, and no descriptor.
class PoolTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(openDescriptors(), descriptors_);
  }

 private:
  std::size_t descriptors_ = openDescriptors();
};

TEST_F(PoolTest, ManyTasksOnFewWorkers) {
  for (const int jobs : {1, 3}) {
    const Shared seen;
    const auto r = run(
        500, [](std::size_t task) { return std::to_string(task * task); }, withJobs(jobs));
    for (const auto& [task, result] : r.results) {
      EXPECT_EQ(result.outcome, TaskOutcome::kDone);
      EXPECT_EQ(result.payload, std::to_string(task * task));
      EXPECT_EQ(result.attempts, 1);
    }
    EXPECT_EQ(r.statistics.workersLost, 0u);
    EXPECT_GT(r.statistics.peakWorkerBytes, 100'000u);
  }
}

TEST_F(PoolTest, InProcessNoneIsForkedAndExceptionsCostTheirTaskOnly) {
  PoolOptions options = withJobs(2);
  options.inProcess = true;
  const pid_t self = ::getpid();
  const auto r = run(
      4,
      [&](std::size_t task) -> std::string {
        if (task == 1) throw std::bad_alloc();
        if (task == 2) throw std::logic_error("a broken assumption");
        return ::getpid() == self ? "here" : "elsewhere";
      },
      options);
  EXPECT_EQ(r.results.at(0).payload, "here");
  EXPECT_EQ(r.results.at(1).outcome, TaskOutcome::kOutOfMemory);
  EXPECT_EQ(r.results.at(2).outcome, TaskOutcome::kCrashed);
  EXPECT_EQ(r.results.at(2).reason, "a broken assumption");
  EXPECT_EQ(r.results.at(3).outcome, TaskOutcome::kDone);
  EXPECT_EQ(r.statistics.workersLost, 2u);
}

TEST_F(PoolTest, InProcessWhatComesAfterACancelIsNotRun) {
  std::atomic<bool> cancel = false;
  PoolOptions options;
  options.inProcess = true;
  options.cancel = whenSet(&cancel);
  const auto r = run(
      3,
      [&](std::size_t task) {
        cancel = task == 1;
        return std::string("done");
      },
      options);
  EXPECT_EQ(r.results.at(1).outcome, TaskOutcome::kDone);
  EXPECT_EQ(r.results.at(2).outcome, TaskOutcome::kCancelled);
  EXPECT_EQ(r.statistics.workersLost, 0u);
}

TEST_F(PoolTest, NoTasks) {
  EXPECT_EQ(run(0, [](std::size_t) { return std::string(); }).results.size(), 0u);
}

TEST_F(PoolTest, WorksInAnotherProcess) {
  int calls = 0;
  const auto r = run(
      3, [&](std::size_t) { return std::to_string(++calls) + " " + std::to_string(::getpid()); },
      withJobs(1));
  EXPECT_EQ(calls, 0);
  const std::string pid = r.results.at(0).payload.substr(2);
  EXPECT_NE(pid, std::to_string(::getpid()));
  EXPECT_EQ(r.results.at(2).payload, "3 " + pid)
      << "the worker should have been kept for all three tasks";
}

TEST_F(PoolTest, TasksStartInTheGivenOrder) {
  std::vector<std::size_t> seen;
  runPool(
      {7, 2, 5}, [](std::size_t) { return std::string(); },
      [&](std::size_t task, const TaskResult&) { seen.push_back(task); }, withJobs(1));
  EXPECT_EQ(seen, (std::vector<std::size_t>{7, 2, 5}));
}

TEST_F(PoolTest, KilledWorkerIsReplacedAndTheTaskRetried) {
  const Shared attempts;
  const auto r = run(
      8,
      [&](std::size_t task) {
        if (++attempts[task] == 1 && task == 3) ::raise(SIGKILL);
        return "ok " + std::to_string(task);
      },
      withJobs(2));
  for (const auto& [task, result] : r.results) {
    EXPECT_EQ(result.outcome, TaskOutcome::kDone);
    EXPECT_EQ(result.payload, "ok " + std::to_string(task));
  }
  EXPECT_EQ(r.results.at(3).attempts, 2);
  EXPECT_EQ(r.statistics.workersLost, 1u);
}

TEST_F(PoolTest, WorkerKilledFromOutsideIsReplaced) {
  const Shared shared;  // [0]: the worker's pid
  std::thread killer([&] {
    while (shared[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(shared[0], SIGKILL);
  });
  const auto r = run(1, [&](std::size_t) {
    if (shared[0] == 0) {
      shared[0] = ::getpid();
      for (;;) ::pause();
    }
    return std::string("second");
  });
  killer.join();
  EXPECT_EQ(r.results.at(0).payload, "second");
}

TEST_F(PoolTest, TaskThatAlwaysDiesIsLostAndNothingElse) {
  const auto r = run(
      6,
      [](std::size_t task) {
        if (task == 0) ::raise(SIGKILL);
        if (task == 1) std::abort();
        if (task == 2) ::_exit(7);
        if (task == 3) throw std::runtime_error("cannot do that");
        return std::string("fine");
      },
      withJobs(2));
  EXPECT_EQ(r.results.at(0).reason, "killed by signal 9 (SIGKILL), twice");
  EXPECT_EQ(r.results.at(1).reason, "killed by signal 6 (SIGABRT), twice");
  EXPECT_EQ(r.results.at(2).reason, "ended unexpectedly with exit code 7, twice");
  EXPECT_EQ(r.results.at(3).reason, "cannot do that, twice");
  for (std::size_t task = 0; task < 4; ++task) {
    EXPECT_EQ(r.results.at(task).outcome, TaskOutcome::kCrashed);
    EXPECT_EQ(r.results.at(task).attempts, 2);
  }
  EXPECT_EQ(r.results.at(4).payload, "fine");
  EXPECT_EQ(r.results.at(5).payload, "fine");
  EXPECT_EQ(r.statistics.workersLost, 8u);
}

TEST_F(PoolTest, TwoDifferentFailuresAreBothTold) {
  const Shared attempts;
  const auto r = run(1, [&](std::size_t) -> std::string {
    if (++attempts[0] == 1) ::raise(SIGKILL);
    throw std::runtime_error("no");
  });
  EXPECT_EQ(r.results.at(0).reason, "killed by signal 9 (SIGKILL); then, in a fresh process: no");
}

TEST_F(PoolTest, RetryRunsInAProcessThatHasDoneNothingElse) {
  const Shared attempts;
  int before = 0;  // in a worker: how many tasks it has had
  const auto r = run(
      4,
      [&](std::size_t task) {
        if (task == 2 && ++attempts[0] == 1) throw std::runtime_error("once");
        return std::to_string(before++);
      },
      withJobs(1));
  EXPECT_EQ(r.results.at(1).payload, "1");
  EXPECT_EQ(r.results.at(2).payload, "0");
  EXPECT_EQ(r.results.at(3).payload, "1");
}

TEST_F(PoolTest, TimeOutKillsTheTaskWithoutRetry) {
  const Shared attempts;
  PoolOptions options = withJobs(2);
  options.timeoutSeconds = 0.5;
  const auto start = std::chrono::steady_clock::now();
  const auto r = run(
      5,
      [&](std::size_t task) {
        if (task == 1) {
          ++attempts[0];
          for (;;) ::pause();
        }
        return std::string("fine");
      },
      options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(r.results.at(1).outcome, TaskOutcome::kTimedOut);
  EXPECT_EQ(r.results.at(1).reason, "no answer within 0.5 s");
  EXPECT_EQ(attempts[0], 1);
  EXPECT_EQ(r.results.at(4).payload, "fine");
}

// Of processor time: what waits for the processor, or for something else, has not used it.
TEST_F(PoolTest, TimeOutOfProcessorTime) {
  PoolOptions options = withJobs(2);
  options.timeoutSeconds = 0.2;
  options.processorTime = true;
  const auto r = run(
      3,
      [](std::size_t task) {
        if (task == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
        volatile std::uint64_t steps = 0;
        while (task == 1) steps = steps + 1;
        return std::string("fine");
      },
      options);
  EXPECT_EQ(r.results.at(0).payload, "fine");
  EXPECT_EQ(r.results.at(1).outcome, TaskOutcome::kTimedOut);
  EXPECT_EQ(r.results.at(2).payload, "fine");
}

// A worker that waits for ever uses none, so there is a limit by the clock, too.
TEST_F(PoolTest, TimeOutOfAWorkerThatWaits) {
  PoolOptions options = withJobs(1);
  options.timeoutSeconds = 0.05;
  options.processorTime = true;
  const auto r = run(
      1,
      [](std::size_t) -> std::string {
        for (;;) ::pause();
      },
      options);
  EXPECT_EQ(r.results.at(0).outcome, TaskOutcome::kTimedOut);
}

TEST_F(PoolTest, MemoryLimit) {
#ifdef SHARDPROOF_SANITIZED
  GTEST_SKIP() << "the sanitizer reserves all address space at the start";
#endif
  PoolOptions options = withJobs(2);
  options.memoryMegabytes = 64;
  const auto r = run(
      3,
      [](std::size_t task) {
        if (task != 1) return std::string(20'000'000, 'x').substr(0, 2);
        std::string big;
        for (;;) big.append(1'000'000, 'x');
      },
      options);
  EXPECT_EQ(r.results.at(1).outcome, TaskOutcome::kOutOfMemory);
  EXPECT_EQ(r.results.at(1).reason, "needed more than 64 MB, twice");
  EXPECT_EQ(r.results.at(0).payload, "xx");
  EXPECT_EQ(r.results.at(2).payload, "xx");
  EXPECT_GT(r.statistics.peakWorkerBytes, 20'000'000u);
}

TEST_F(PoolTest, CancelKillsTheRunningAndSkipsTheRest) {
  std::atomic<bool> cancel = false;
  PoolOptions options = withJobs(2);
  options.cancel = whenSet(&cancel);
  const Shared started;
  std::thread canceller([&] {
    while (started[0] < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    cancel = true;
  });
  const auto r = run(
      10,
      [&](std::size_t task) {
        if (task == 0) return std::string("done");
        ++started[0];
        for (;;) ::pause();
      },
      options);
  canceller.join();
  EXPECT_EQ(r.results.at(0).outcome, TaskOutcome::kDone);
  for (std::size_t task = 1; task < 10; ++task)
    EXPECT_EQ(r.results.at(task).outcome, TaskOutcome::kCancelled);
  EXPECT_EQ(r.statistics.workersLost, 0u);
}

TEST_F(PoolTest, CancelledBeforeItStarts) {
  const std::atomic<bool> cancel = true;
  PoolOptions options;
  options.cancel = whenSet(&cancel);
  const auto r = run(
      2, [](std::size_t) { return std::string(); }, options);
  EXPECT_EQ(r.results.at(1).outcome, TaskOutcome::kCancelled);
  EXPECT_EQ(r.results.at(1).attempts, 0);
}

TEST_F(PoolTest, LargePayloads) {
  const auto r = run(
      6,
      [](std::size_t task) {
        std::string payload(10'000'000 + task, static_cast<char>('a' + task));
        payload[5] = '\0';
        return payload;
      },
      withJobs(3));
  for (const auto& [task, result] : r.results) {
    ASSERT_EQ(result.payload.size(), 10'000'000 + task);
    EXPECT_EQ(result.payload[5], '\0');
    EXPECT_EQ(result.payload.back(), static_cast<char>('a' + task));
  }
}

TEST_F(PoolTest, EmptyPayload) {
  EXPECT_EQ(run(1, [](std::size_t) { return std::string(); }).results.at(0).outcome,
            TaskOutcome::kDone);
}

TEST_F(PoolTest, ExitInsideAWorkerDoesNotRunTheParentsHandlers) {
  static const Shared ran;
  std::atexit([] { ++ran[0]; });
  const auto r = run(1, [](std::size_t) -> std::string { std::exit(0); });
  EXPECT_EQ(r.results.at(0).outcome, TaskOutcome::kCrashed);
  EXPECT_EQ(ran[0], 0);
}

TEST_F(PoolTest, NoDescriptorsLeftForPipes) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit few = old;
  few.rlim_cur = 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto r = run(3, [](std::size_t) { return std::string(); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  for (const auto& [task, result] : r.results) {
    EXPECT_EQ(result.outcome, TaskOutcome::kCrashed);
    EXPECT_NE(result.reason.find("no worker process could be started: pipe: "), std::string::npos)
        << result.reason;
  }
}

TEST_F(PoolTest, WorkersDieWithTheirParent) {
  const Shared shared;                 // [0]: the worker's pid
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that the orphan can be waited for here
  const pid_t parent = ::fork();
  if (parent == 0) {
    runPool(
        {0},
        [&](std::size_t) -> std::string {
          shared[0] = ::getpid();
          for (;;) ::pause();
        },
        [](std::size_t, const TaskResult&) {}, {});
    ::_exit(0);
  }
  while (shared[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(parent, SIGKILL);
  EXPECT_EQ(::waitpid(parent, nullptr, 0), parent);
  int status = 0;
  EXPECT_EQ(::waitpid(shared[0], &status, 0), shared[0]);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(PoolTest, ThrowingCallbackLeavesNoWorkerBehind) {
  EXPECT_THROW(
      runPool(
          firstTasks(4), [](std::size_t) { return std::string(); },
          [](std::size_t, const TaskResult&) { throw std::logic_error("stop"); }, withJobs(2)),
      std::logic_error);
}

TEST_F(PoolTest, SignalDispositionsAreRestored) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGPIPE, nullptr, &before);
  run(1, [](std::size_t) { return std::string(); });
  ::sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST_F(PoolTest, SurvivesIgnoredChildSignal) {
  auto* const old = std::signal(SIGCHLD, SIG_IGN);
  const auto r = run(1, [](std::size_t) -> std::string { ::_exit(9); });
  std::signal(SIGCHLD, old);
  EXPECT_EQ(r.results.at(0).reason, "ended unexpectedly with exit code 9, twice");
}

}  // namespace
}  // namespace shardproof
