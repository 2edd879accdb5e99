// SPDX-License-Identifier: Apache-2.0
// How many threads loops over large arrays may use: as many as there are processors that nobody
// else keeps busy. OpenMP's threads wait for one another by spinning, so one that does not get a
// processor makes all others wait: on a busy machine two threads can be ten times slower than one.
#pragma once

#include <chrono>
#include <cstdint>

namespace shardproof::executor {

// While it lives, OpenMP's number of threads on this thread is its own; afterwards what it was.
class Threads {
 public:
  // `work`: numbers to be computed, about. Little work is done by one thread, without looking.
  explicit Threads(double work);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  // Looks again, a few times a second.
  void adapt();

 private:
  void choose();
  int before_ = 1, most_ = 1;
  std::chrono::steady_clock::time_point next_;
};

// Tasks of other processes, and of other threads of this one, that want a processor now; 0 where
// the system does not say.
int othersRunning();

}  // namespace shardproof::executor
