// SPDX-License-Identifier: Apache-2.0
#include "commands/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

#include "report/exit_codes.h"

namespace shardproof {
namespace {

// A signal handler can reach nothing but globals, and of those only lock-free atomics.
std::atomic<bool> flag = false;
std::atomic<int> signalNumber = 0;
std::atomic<long> firstSecond = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<long>::is_always_lock_free);

long monotonicSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

// `timeout` and many wrappers deliver a signal twice, to the process and to its group; that must
// not look like an impatient user.
void handle(int number) {
  if (!flag.load()) {
    firstSecond = monotonicSeconds();
    signalNumber = number;
    flag = true;
  } else if (monotonicSeconds() - firstSecond.load() >=
             2) {  // whole seconds: at least one has passed
    ::_exit(kExitSignal + number);
  }
}

}  // namespace

void catchInterrupts() {
  struct sigaction action {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  // Also where they were ignored: a shell script starts its background jobs so, and `kill -INT`
  // must still end one with its report.
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
}

const std::atomic<bool>& interrupted() { return flag; }
int interruptingSignal() { return signalNumber; }

}  // namespace shardproof
