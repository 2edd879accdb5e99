// SPDX-License-Identifier: Apache-2.0
// The pool of worker processes.
//
// Each worker is a fork of this process with two pipes: task numbers go down one, length-prefixed
// results come back on the other. A worker takes task after task, so that a run of thousands of
// small classes does not pay for thousands of forks; it is replaced when it is lost. Processes, not
// threads, because a solver can crash, leak, or ignore its own time limit: only a process can be
// killed for certain and gives back all that it took.
//
// PR_SET_PDEATHSIG is tied to the thread that forks: runPool must be called from a thread that
// outlives it, as the main thread does.
#include "worker/pool.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "util/processor_clock.h"
#include "util/write_all.h"
#include "worker/file_descriptor.h"
#include "worker/total_memory.h"
#include "worker/worker_process.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxAttempts = 2;
constexpr int kForkTries = 6;

struct Pipe {
  FileDescriptor readEnd, writeEnd;
};

std::string errnoText(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// False with errno set.
bool openPipe(Pipe& pipe) {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return false;
  pipe.readEnd = FileDescriptor(fds[0]);
  pipe.writeEnd = FileDescriptor(fds[1]);
  return true;
}

// A worker that died is found by EPIPE on its pipe, which must not end this process; and its exit
// status must not be thrown away, as it is when we were started with SIGCHLD ignored. Restored at
// the end: the library leaves no trace in the caller's process.
class SignalDispositions {
 public:
  SignalDispositions() {
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, &pipe_);
    action.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &action, &child_);
  }
  ~SignalDispositions() {
    ::sigaction(SIGPIPE, &pipe_, nullptr);
    ::sigaction(SIGCHLD, &child_, nullptr);
  }
  SignalDispositions(const SignalDispositions&) = delete;
  SignalDispositions& operator=(const SignalDispositions&) = delete;

 private:
  struct sigaction pipe_ {};
  struct sigaction child_ {};
};

std::string describeExit(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* name = ::sigabbrev_np(number);
    return "killed by signal " + std::to_string(number) +
           (name ? " (SIG" + std::string(name) + ")" : "");
  }
  if (WEXITSTATUS(status) == kWorkerTerminated)
    return "ended by an exception that could not be reported, probably for want of memory";
  return "ended unexpectedly with exit code " + std::to_string(WEXITSTATUS(status));
}

// What a task may have is the least of what it is given and what the process may have at all.
std::string moreThan(std::size_t megabytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur >> 20 < megabytes)
    return "needed more than the " + std::to_string(limit.rlim_cur >> 20) +
           " MB that this process may have (ulimit -v)";
  return "needed more than " + std::to_string(megabytes) + " MB";
}

std::string shortNumber(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

struct Attempt {
  std::size_t task = 0;
  int attempts = 0;      // made so far
  std::string previous;  // why the last one failed
};

struct Worker {
  pid_t pid = -1;
  FileDescriptor tasks, results;
  bool used = false;                                     // has been given a task
  std::optional<Attempt> current;                        // what it is working on
  Clock::time_point begun{}, deadline{};                 // of `current`
  std::optional<ProcessorClock::time_point> usedBefore;  // PoolOptions::processorTime: `current`
  std::string received;
};

class Pool {
 public:
  Pool(const std::function<std::string(std::size_t)>& work,
       const std::function<void(std::size_t, const TaskResult&)>& done, const PoolOptions& options)
      : work_(work), done_(done), options_(options) {}
  // Also when `done` throws: no worker outlives the pool.
  ~Pool() {
    for (auto& worker : workers_) reap(worker);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  PoolStatistics run(const std::vector<std::size_t>& order) {
    for (const std::size_t task : order) pending_.push_back({task, 0, {}});
    workers_.resize(
        std::min<std::size_t>(static_cast<std::size_t>(std::max(options_.jobs, 1)), order.size()));
    allowed_ = workers_.size();
    while (!cancelled() && (!pending_.empty() || busy())) {
      dispatch();
      if (busy()) {
        await();
        keepToTotalMemory();
      } else if (!pending_.empty() && !forkError_.empty()) {
        giveUp(TaskOutcome::kCrashed, "no worker process could be started: " + forkError_);
      }
    }
    if (cancelled()) {
      for (auto& worker : workers_) {
        if (worker && worker->current) pending_.push_back(std::move(*worker->current));
        reap(worker);
      }
      giveUp(TaskOutcome::kCancelled, "interrupted");
    }
    for (auto& worker : workers_) reap(worker);
    return statistics_;
  }

 private:
  using Slot = std::unique_ptr<Worker>;

  bool cancelled() const { return options_.cancelled(); }
  static bool isBusy(const Slot& w) { return w && w->current; }
  bool busy() const { return std::any_of(workers_.begin(), workers_.end(), isBusy); }
  std::size_t countBusy() const {
    return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), isBusy));
  }

  void dispatch() {
    for (auto& slot : workers_) {
      // A task can come back to the front of the queue at once, when its worker is found dead.
      while (!pending_.empty() && !isBusy(slot)) {
        if (countBusy() >= allowed_) return;
        // A retry runs in a fresh process: what the old one allocated or spoiled must not count
        // against it.
        if (slot && slot->used && pending_.front().attempts > 0) reap(slot);
        if (!slot && !start(slot)) return;
        Attempt next = std::move(pending_.front());
        pending_.pop_front();
        const std::uint64_t task = next.task;
        if (writeAll(slot->tasks.get(), bytesOf(task))) {
          slot->begun = Clock::now();
          slot->deadline = deadline();
          if (options_.processorTime) slot->usedBefore = processorTimeOf(slot->pid);
          slot->used = true;
          ++next.attempts;
          slot->current = std::move(next);
        } else if (slot->used) {  // it died while idle, which is not this task's fault
          ++statistics_.workersLost;
          reap(slot);
          pending_.push_front(std::move(next));
        } else {
          ++next.attempts;
          slot->current = std::move(next);
          lose(slot, TaskOutcome::kCrashed, {}, true);
        }
      }
    }
  }

  Clock::duration timeout() const {
    constexpr double kForever = 1e8;  // so many times kMostSecondsPerSecond is a duration, too
    const double seconds = std::isfinite(options_.timeoutSeconds)
                               ? std::clamp(options_.timeoutSeconds, 0.0, kForever)
                               : kForever;
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  Clock::time_point deadline() const {
    return Clock::now() + (options_.processorTime ? kMostSecondsPerSecond : 1) * timeout();
  }

  // What its task may still take: processor time passes no faster than time does.
  Clock::duration left(const Worker& worker) const {
    const Clock::duration byClock = worker.deadline - Clock::now();
    if (!worker.usedBefore) return byClock;
    const auto now = processorTimeOf(worker.pid);
    return now ? std::min<Clock::duration>(byClock, timeout() - (*now - *worker.usedBefore))
               : byClock;
  }

  // Process table or descriptors full: while other workers run, the caller waits for them; else
  // this waits a little itself.
  bool start(Slot& slot) {
    forkError_.clear();
    auto pause = std::chrono::milliseconds(10);
    for (int tries = 1; !fork(slot); ++tries) {
      if (busy() || tries == kForkTries || cancelled()) return false;
      std::this_thread::sleep_for(pause);
      pause *= 2;
    }
    forkError_.clear();
    return true;
  }

  bool fork(Slot& slot) {
    auto worker = std::make_unique<Worker>();
    Pipe tasks, results;
    if (!openPipe(tasks) || !openPipe(results)) {
      forkError_ = errnoText("pipe");
      return false;
    }
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
      forkError_ = errnoText("fork");
      return false;
    }
    if (pid == 0) {
      // The parent's ends, also those of the other workers: a copy left open here would hide the
      // end of a pipe from its reader.
      tasks.writeEnd.reset();
      results.readEnd.reset();
      for (auto& other : workers_) {
        if (!other) continue;
        other->tasks.reset();
        other->results.reset();
      }
#ifdef _OPENMP
      omp_set_num_threads(1);  // the parent's threads are not there
#endif
      runWorker(tasks.readEnd.get(), results.writeEnd.get(), parent, options_.memoryMegabytes,
                work_);
    }
    worker->pid = pid;
    worker->tasks = std::move(tasks.writeEnd);
    worker->results = std::move(results.readEnd);
    ::fcntl(worker->results.get(), F_SETFL, O_NONBLOCK);
    slot = std::move(worker);
    return true;
  }

  // Waits until a worker answers, dies or is late, and deals with it.
  void await() {
    std::vector<pollfd> polled;
    std::vector<Slot*> slots;
    auto next = Clock::duration::max();
    for (auto& slot : workers_) {
      if (!slot || !slot->current) continue;
      polled.push_back({slot->results.get(), POLLIN, 0});
      slots.push_back(&slot);
      next = std::min(next, left(*slot));
    }
    // A signal that sets the cancel flag just before poll() does not interrupt it, so it never
    // sleeps for long.
    constexpr auto kLongest = std::chrono::milliseconds(100);
    const auto wait = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(next),
                                 std::chrono::milliseconds(0), kLongest);
    if (::poll(polled.data(), polled.size(), static_cast<int>(wait.count())) < 0)
      return;  // EINTR: the caller looks at the cancel flag
    for (std::size_t i = 0; i < polled.size(); ++i) {
      Slot& slot = *slots[i];
      if (polled[i].revents != 0) {
        // Late but already answering counts as in time: it may have waited for us.
        receive(slot);
      } else if (left(*slot) <= Clock::duration::zero()) {
        // No retry: it would be late again.
        lose(slot, TaskOutcome::kTimedOut,
             "no answer within " + shortNumber(options_.timeoutSeconds) + " s", false);
      }
    }
  }

  // Waiting workers go first: what they hold is no use to anyone. Then the task that loses least.
  void keepToTotalMemory() {
    std::vector<pid_t> pids;
    for (const Slot& slot : workers_)
      if (slot) pids.push_back(slot->pid);
    if (!memory_.exceeded(pids)) return;
    bool waited = false;
    for (Slot& slot : workers_) {
      waited = waited || (slot && !slot->current);
      if (slot && !slot->current) reap(slot);
    }
    const std::size_t busy = countBusy();
    if (waited || busy == 0) return;
    Slot& last =
        *std::max_element(workers_.begin(), workers_.end(), [](const Slot& a, const Slot& b) {
          return isBusy(b) && (!isBusy(a) || a->begun < b->begun);
        });
    if (busy == 1) {
      lose(last, TaskOutcome::kOutOfMemory, "needed more than " + totalMemoryText(totalBytes_),
           false);
      return;
    }
    Attempt attempt = std::move(*last->current);
    --attempt.attempts;  // it was not its fault
    reap(last);
    pending_.push_front(std::move(attempt));
    allowed_ = busy - 1;
    ++statistics_.stopped;
  }
  // Where more than one task cannot be in memory, the next would only be stopped, too.
  void allowMore() {
    if (allowed_ < workers_.size() && memory_.roomy()) ++allowed_;
  }

  void receive(Slot& slot) {
    bool ended = false;
    while (!ended) {
      std::array<char, 65536> buffer;
      const ssize_t n = ::read(slot->results.get(), buffer.data(), buffer.size());
      if (n > 0) {
        slot->received.append(buffer.data(), static_cast<std::size_t>(n));
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else if (n < 0 && errno == EAGAIN) {
        break;
      } else {
        ended = true;
      }
    }
    MessageHeader header;
    std::string& received = slot->received;
    if (received.size() < sizeof header) {
      if (ended) lose(slot, TaskOutcome::kCrashed, {}, true);
      return;
    }
    std::memcpy(&header, received.data(), sizeof header);
    if (received.size() - sizeof header < header.length) {
      if (ended) lose(slot, TaskOutcome::kCrashed, {}, true);
      return;
    }
    std::string payload = received.substr(sizeof header);
    received = std::string();  // gives the memory of a large answer back
    switch (header.kind) {
      case MessageKind::kOutOfMemory:
        return lose(slot, TaskOutcome::kOutOfMemory, moreThan(options_.memoryMegabytes), true);
      case MessageKind::kException:
        return lose(slot, TaskOutcome::kCrashed,
                    payload.empty() ? "an exception without a message" : std::move(payload), true);
      case MessageKind::kResult:
        break;
    }
    const Attempt attempt = std::move(*slot->current);
    slot->current.reset();
    allowMore();
    if (ended) {
      ++statistics_.workersLost;
      reap(slot);
    }
    TaskResult result;
    result.outcome = TaskOutcome::kDone;
    result.payload = std::move(payload);
    result.attempts = attempt.attempts;
    done_(attempt.task, result);
  }

  // The worker is gone or has to go. An empty reason: what its exit status says.
  void lose(Slot& slot, TaskOutcome outcome, std::string reason, bool retry) {
    Attempt attempt = std::move(*slot->current);
    ++statistics_.workersLost;
    const int status = reap(slot);
    if (reason.empty()) reason = describeExit(status);
    if (retry && attempt.attempts < kMaxAttempts) {
      attempt.previous = std::move(reason);
      pending_.push_front(std::move(attempt));
      return;
    }
    TaskResult result;
    result.outcome = outcome;
    result.attempts = attempt.attempts;
    if (attempt.previous.empty()) result.reason = std::move(reason);
    else if (attempt.previous == reason) result.reason = reason + ", twice";
    else result.reason = attempt.previous + "; then, in a fresh process: " + reason;
    done_(attempt.task, result);
  }

  void giveUp(TaskOutcome outcome, const std::string& reason) {
    while (!pending_.empty()) {
      const Attempt attempt = std::move(pending_.front());
      pending_.pop_front();
      TaskResult result;
      result.outcome = outcome;
      result.reason = reason;
      result.attempts = attempt.attempts;
      done_(attempt.task, result);
    }
  }

  // Ends the worker if it is still there and returns its exit status: SIGKILL does not change the
  // status of a process that already ends.
  int reap(Slot& slot) {
    if (!slot) return 0;
    const Slot worker = std::move(slot);
    ::kill(worker->pid, SIGKILL);
    int status = 0;
    rusage usage{};
    while (::wait4(worker->pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    statistics_.peakWorkerBytes =
        std::max(statistics_.peakWorkerBytes, static_cast<std::size_t>(usage.ru_maxrss) * 1024);
    return status;
  }

  const std::function<std::string(std::size_t)>& work_;
  const std::function<void(std::size_t, const TaskResult&)>& done_;
  const PoolOptions& options_;
  std::deque<Attempt> pending_;
  std::vector<Slot> workers_;
  std::size_t allowed_ = 1;  // tasks at a time
  const std::size_t totalBytes_ = options_.totalBytes.value_or(totalMemoryLimit());
  MemoryWatch memory_{totalBytes_};
  std::string forkError_;
  PoolStatistics statistics_;
};

// PoolOptions::inProcess: what a worker does with exceptions, without the worker.
TaskResult runHere(std::size_t task, const std::function<std::string(std::size_t)>& work) {
  TaskResult result;
  result.attempts = 1;
  result.outcome = TaskOutcome::kCrashed;
  try {
    result.payload = work(task);
    result.outcome = TaskOutcome::kDone;
  } catch (const std::bad_alloc&) {
    result.outcome = TaskOutcome::kOutOfMemory;
    result.reason = "out of memory";
  } catch (const std::exception& error) {
    result.reason = *error.what() == '\0' ? "an exception without a message" : error.what();
  } catch (...) {
    result.reason = "an exception of unknown type";
  }
  return result;
}

PoolStatistics runAllHere(const std::vector<std::size_t>& order,
                          const std::function<std::string(std::size_t)>& work,
                          const std::function<void(std::size_t, const TaskResult&)>& done,
                          const PoolOptions& options) {
  PoolStatistics statistics;
  for (const std::size_t task : order) {
    TaskResult result;
    if (options.cancelled()) result.reason = "interrupted";
    else result = runHere(task, work);
    statistics.workersLost += result.attempts > 0 && result.outcome != TaskOutcome::kDone ? 1 : 0;
    done(task, result);
  }
  return statistics;
}

}  // namespace

std::function<bool()> whenSet(const std::atomic<bool>* flag) {
  if (flag == nullptr) return {};
  return [flag] { return flag->load(); };
}

PoolStatistics runPool(const std::vector<std::size_t>& order,
                       const std::function<std::string(std::size_t)>& work,
                       const std::function<void(std::size_t, const TaskResult&)>& done,
                       const PoolOptions& options) {
  if (options.inProcess) return runAllHere(order, work, done, options);
  const SignalDispositions signals;
  return Pool(work, done, options).run(order);
}

TaskResult runAlone(const std::function<std::string()>& work, const PoolOptions& options) {
  TaskResult only;
  runPool(
      {0}, [&](std::size_t) { return work(); },
      [&](std::size_t, const TaskResult& result) { only = result; }, options);
  return only;
}

}  // namespace shardproof
