// SPDX-License-Identifier: Apache-2.0
// One run of a problem in one arithmetic: the model on whole arrays, then the plan rank by rank.
// Each lineage entry is compared as soon as its parts are there, and every array goes after its
// last use.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/call.h"
#include "executor/compare.h"
#include "executor/draw.h"
#include "executor/setup.h"
#include "executor/threads.h"
#include "util/processor_clock.h"

namespace shardproof::executor {

// Out of time, or cancelled.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Limits {
  std::int64_t maxBytes = 0;
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max();
  // Of the thread that runs it.
  ProcessorClock::time_point processorEnd = ProcessorClock::time_point::max();
  const std::atomic<bool>* cancel = nullptr;
  Threads* threads = nullptr;
  bool late() const {
    return (end != std::chrono::steady_clock::time_point::max() &&
            std::chrono::steady_clock::now() > end) ||
           (processorEnd != ProcessorClock::time_point::max() &&
            ProcessorClock::now() > processorEnd);
  }
};

struct Arrays {  // Options::keep
  std::map<std::string, Array>* model = nullptr;
  std::map<std::string, Array>* local = nullptr;
};

// What a caller sees of a run, and gives it.
template <class T>
struct Hooks {
  // The model's values, by tensor, as an earlier run with the same draw made them: the model is not
  // run again. They outlive the run.
  const std::vector<Value<T>>* logical = nullptr;
  // Called with every tensor of the model, and with every tensor of a rank (and microbatch), as
  // soon as it has its value.
  std::function<void(TensorId tensor, const Value<T>&)> ofModel;
  std::function<void(Rank rank, std::int32_t slot, const Value<T>&)> ofPlan;
  // Called once all of the model has its values. False: the run ends there, with nothing compared.
  std::function<bool()> afterModel;
  // Called with every claim that is compared (Setup::claims), instead of comparing it: what the
  // model has of the claim's tensor, all of it, and what the ranks hold, which lies in the claim's
  // box. `entries` of the result stays empty.
  std::function<void(std::size_t claim, const Value<T>& logical, const Value<T>& local)> ofClaim;
};

struct RunResult {
  std::map<std::int32_t, Comparison> entries;  // by index into the plan's lineage
  double flops = 0;
  std::int64_t peakBytes = 0;
  std::int64_t closeDecisions = 0;  // Context::closeDecisions
  std::int64_t saturated = 0;       // Context::saturated
};

// Throws CannotRun, Stopped, TooLarge; std::logic_error where the model itself cannot be run.
template <class T>
RunResult run(const Setup& setup, const Draw& draw, double tolerance, const Limits& limits,
              const Arrays& keep = {}, const Hooks<T>& hooks = {});

}  // namespace shardproof::executor
