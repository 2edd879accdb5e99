// SPDX-License-Identifier: Apache-2.0
#include "executor/threads.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace shardproof::executor {
namespace {

constexpr double kWorthThreads = 1e7;
constexpr auto kInterval = std::chrono::milliseconds(300);

#ifdef _OPENMP
int ompThreads() { return omp_get_max_threads(); }
int processors() { return omp_get_num_procs(); }
void setThreads(int n) { omp_set_num_threads(n); }
#else
int ompThreads() { return 1; }
int processors() { return 1; }
void setThreads(int) {}
#endif

}  // namespace

int othersRunning() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/loadavg", "r"),
                                                             std::fclose);
  double a = 0, b = 0, c = 0;
  int running = 0;
  // Three averages, then how many tasks are runnable at this moment: this thread is one of them.
  if (!file || std::fscanf(file.get(), "%lf %lf %lf %d/", &a, &b, &c, &running) != 4) return 0;
  return std::max(0, running - 1);
}

Threads::Threads(double work)
    : before_(ompThreads()),
      most_(work < kWorthThreads ? 1 : std::min(before_, processors())),
      next_(std::chrono::steady_clock::now()) {
  choose();
}
Threads::~Threads() { setThreads(before_); }

void Threads::choose() {
  // Others that run for a moment only are no reason to give up: the least of a few looks.
  int others = 0;
  if (most_ > 1) {
    others = othersRunning();
    for (int i = 0; i < 2 && others > 0; ++i) others = std::min(others, othersRunning());
  }
  setThreads(std::max(1, most_ - others));
}

void Threads::adapt() {
  if (most_ == 1) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  choose();
}

}  // namespace shardproof::executor
